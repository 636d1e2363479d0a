# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies from all manifest files together.

The last good version of one whose file has a fault stays; of two with one name the first file's wins.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree, UnreadableYaml, parse_documents
from agent.model.finding import Finding
from agent.policies.manifest.bounds import within_bounds
from agent.policies.manifest.faults import policy_faults
from agent.policies.manifest.objects import API_VERSION, KIND, Policy


class ReadFile(msgspec.Struct, frozen=True):
    """The same content becomes the same, so only a file that changed is read again. Policies by their keys, each with
    its place."""

    content: bytes = b""
    good: Mapping[str, tuple[str, Policy]] = {}
    findings: tuple[Finding, ...] = ()


NOT_READ = ReadFile()


class PolicyObjects(msgspec.Struct, frozen=True):
    """What the files say: policies by NAMESPACE/NAME, and the file and line of each."""

    policies: Mapping[str, Policy] = {}
    places: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()
    by_file: Mapping[str, ReadFile] = {}


NO_OBJECTS = PolicyObjects()


def read_policies(files: Mapping[str, bytes], before: PolicyObjects = NO_OBJECTS) -> PolicyObjects:
    by_file: dict[str, ReadFile] = {}
    findings: list[Finding] = []
    chosen: dict[str, tuple[str, Policy]] = {}
    for path in sorted(files):
        last = before.by_file.get(path, NOT_READ)
        by_file[path] = last if last.content == files[path] else _read_file(path, files[path], last.good)
        findings += by_file[path].findings
        for key, (where, one) in by_file[path].good.items():
            if key in chosen:
                text = f"{KIND} {key} is already in {chosen[key][0]}; this one is ignored"
                findings.append(Finding(where, "metadata.name", text))
            chosen.setdefault(key, (where, one))
    chosen = within_bounds(chosen, before.policies, findings)
    return PolicyObjects(
        {key: one for key, (_, one) in chosen.items()}, {key: where for key, (where, _) in chosen.items()},
        tuple(findings), by_file,
    )  # fmt: skip


def _read_file(path: str, content: bytes, before: Mapping[str, tuple[str, Policy]]) -> ReadFile:
    if KIND.encode() not in content and not before:
        return ReadFile(content)
    try:
        trees, findings = parse_documents(content, path)
    except UnreadableYaml as error:
        return ReadFile(content, before, (error.finding,))
    if findings:
        return ReadFile(content, before, tuple(findings))
    good: dict[str, tuple[str, Policy]] = {}
    for tree in policies_in(trees):
        found, key = read_policy(tree, findings), _key(tree)
        if found is not None:
            if key in good:
                findings.append(Finding(tree.where, "metadata.name", f"{KIND} {key} stands twice; the first counts"))
            good.setdefault(key, (tree.where, found))
        elif key in before:
            findings.append(Finding(tree.where, "", f"the last good version of {KIND} {key} stays in force"))
            good.setdefault(key, before[key])
    return ReadFile(content, good, tuple(findings))


def policies_in(trees: Iterable[Tree], default: str = "") -> Iterator[Tree]:
    """Lists taken apart; other kinds belong to other planes."""
    for tree in trees:
        given, items = tree.entries.get("kind"), tree.entries.get("items")
        kind = str(given.scalar) if given is not None else default
        if kind in ("List", f"{KIND}List") and items is not None:
            yield from policies_in(items.items, kind.removesuffix("List"))
        elif kind == KIND:
            yield tree


def read_policy(tree: Tree, findings: list[Finding]) -> Policy | None:
    """None where something is wrong, which is added to `findings`."""
    before = len(findings)
    version = tree.entries.get("apiVersion")
    if version is None or version.scalar != API_VERSION:
        findings.append(Finding((version or tree).where, "apiVersion", f"must be {API_VERSION}"))
    missing = [name for name in ("metadata", "spec") if name not in tree.entries]
    findings += [Finding(tree.where, name, "must be a map") for name in missing]
    value = Shape(findings).read(tree, Policy, "")
    if len(findings) == before:
        found = msgspec.convert(value, Policy)
        findings += [Finding(place_of(tree, path), path, text) for path, text in policy_faults(found)]
        if len(findings) == before:
            return found
    return None


def _key(tree: Tree) -> str:
    metadata = tree.entries.get("metadata")
    named = {key: one.scalar for key, one in metadata.entries.items()} if metadata is not None else {}
    return f"{named.get('namespace') or 'default'}/{named.get('name') or ''}"
