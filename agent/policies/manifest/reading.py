# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies from all manifest files together."""

from collections.abc import Mapping

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.manifests.in_force import Key, ReadFiles, read_files, told
from agent.objects.decoding import documents_of, objects_of
from agent.policies.manifest.bounds import within_bounds
from agent.policies.manifest.faults import policy_faults
from agent.policies.manifest.objects import API_VERSION, KIND, Policy


class PlacedPolicy(msgspec.Struct, frozen=True):
    where: str
    policy: Policy


class PolicyObjects(msgspec.Struct, frozen=True):
    """What the files say: policies by NAMESPACE/NAME, and the file and line of each."""

    policies: Mapping[str, Policy] = {}
    places: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()
    files: ReadFiles[PlacedPolicy] = ReadFiles()


NO_OBJECTS = PolicyObjects()


def read_policies(files: Mapping[str, bytes], before: PolicyObjects = NO_OBJECTS) -> PolicyObjects:
    def is_foreign(path: str, content: bytes) -> bool:
        return KIND.encode() not in content and not (path in known and known[path].good)

    known = before.files.by_file
    read = read_files(
        files, before.files, lambda path, text: ({}, ()) if is_foreign(path, text) else _read_file(path, text)
    )
    placed = {"/".join(key[1:]): (each.where, each.policy) for key, each in read.chosen.items()}
    findings = list(read.findings)
    chosen = within_bounds(placed, before.policies, findings)
    if len(chosen) < len(placed):
        # What a bound refuses is not in force, and is not remembered as if it were.
        held = {key: path for key, path in read.holders.items() if "/".join(key[1:]) in chosen}
        read = msgspec.structs.replace(read, holders=held)
    return PolicyObjects(
        {key: policy for key, (_, policy) in chosen.items()},
        {key: where for key, (where, _) in chosen.items()},
        tuple(findings),
        read,
    )


def _read_file(path: str, content: bytes) -> tuple[Mapping[Key, PlacedPolicy], list[Finding]]:
    trees, findings = documents_of(content, path)
    good: dict[Key, PlacedPolicy] = {}
    for kind, tree in objects_of(trees) if not findings else ():
        if kind != KIND:
            continue
        policy, key = read_policy(tree, findings), _key(tree)
        if policy is not None and key in good:
            findings.append(Finding(tree.where, "metadata.name", f"{told(key)} stands twice; the first counts"))
        elif policy is not None:
            good[key] = PlacedPolicy(tree.where, policy)
    return good, findings


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


def _key(tree: Tree) -> Key:
    metadata = tree.entries.get("metadata")
    named = {key: one.scalar for key, one in metadata.entries.items()} if metadata is not None else {}
    return KIND, str(named.get("namespace") or "default"), str(named.get("name") or "")
