# SPDX-License-Identifier: Apache-2.0
"""Pod manifests into pods.

Owns: which kinds and fields are understood. A field this version does not carry out is a finding and keeps its pod
from running: half of what a manifest says would be worse than nothing.
Never: reads files; gets their content. reading.py decides what follows from findings.
"""

import json
import re
from dataclasses import dataclass, replace

from agent.config.strict_yaml import Tree, UnreadableYaml, parse_documents, plain
from agent.model.finding import Finding, shown, suggestion
from agent.model.pod import DEFAULT_GRACE_S, ContainerSpec, PodSpec, content_hash, static_uid
from agent.pods.sandbox_config import log_directory_name

__all__ = ["Identity", "parse_pods"]

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
UID = re.compile(r"[-a-zA-Z0-9.]{1,64}\Z")
LONGEST_NAME = 253
LONGEST_FILE_NAME = 255
LONGEST_GRACE_S = 2**31 - 1
# One directory serves all planes: these kinds belong to others and are no error here.
FOREIGN_KINDS = ("Service", "EndpointSlice", "Node", "ConfigMap", "Secret", "ServiceCIDR")
KINDS = ("Pod", "PodList", "List", *FOREIGN_KINDS)
OBJECT_FIELDS = ("apiVersion", "kind", "metadata", "spec")
LIST_FIELDS = ("apiVersion", "kind", "metadata", "items")
METADATA_FIELDS = ("name", "namespace", "uid", "labels", "annotations")
SPEC_FIELDS = ("containers", "terminationGracePeriodSeconds")
CONTAINER_FIELDS = ("name", "image", "command", "args", "env")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a pod gets from its node."""

    node: str
    has_name_suffix: bool

    @property
    def suffix(self) -> str:
        """What pod names end in."""
        return f"-{self.node}" if self.has_name_suffix else ""


def parse_pods(path: str, content: bytes, identity: Identity) -> tuple[tuple[PodSpec, ...], tuple[Finding, ...]]:
    """The faultless pods of one file, and everything that is wrong with the rest of it."""
    try:
        documents, findings = parse_documents(content, path)
    except UnreadableYaml as error:
        return (), (error.finding,)
    if findings:
        return (), tuple(findings)
    pods: list[PodSpec] = []
    for document in documents:
        found, complaints = _documents(document, identity, path)
        pods += found
        findings += complaints
    return tuple(pods), tuple(findings)


def _documents(
    tree: Tree, identity: Identity, path: str, default_kind: str = ""
) -> tuple[list[PodSpec], list[Finding]]:
    """The pods of one document, which may be a list of others."""
    if tree.kind != "map":
        return [], [Finding(tree.where, "", "must be a map with apiVersion, kind and metadata")]
    given = tree.entries.get("kind")
    kind = given.scalar if given is not None else default_kind
    if kind in FOREIGN_KINDS:
        return [], []
    if kind in ("List", "PodList"):
        return _items(tree, identity, path, "Pod" if kind == "PodList" else "")
    findings: list[Finding] = []
    if kind == "Pod":
        reader = _Reader(findings)
        pod = reader.pod(tree, identity, path, is_item=bool(default_kind))
        return ([], findings) if findings else ([pod], [])
    if given is None:
        return [], [Finding(tree.where, "kind", f"is missing; known are {', '.join(KINDS)}")]
    text = f"{shown(plain(given))} is not known here{suggestion(str(kind), KINDS) or '; known are ' + ', '.join(KINDS)}"
    return [], [Finding(given.where, "kind", text)]


def _items(tree: Tree, identity: Identity, path: str, default_kind: str) -> tuple[list[PodSpec], list[Finding]]:
    findings: list[Finding] = []
    reader = _Reader(findings)
    reader.only(tree, "", LIST_FIELDS)
    reader.equals(tree, "apiVersion", "v1")
    listed = tree.entries.get("items")
    if listed is None or listed.kind != "list":
        reader.wrong(listed or tree, "items", "must be a list")
        return [], findings
    pods: list[PodSpec] = []
    for index, item in enumerate(listed.items):
        found, complaints = _documents(item, identity, path, default_kind)
        pods += found
        findings += [replace(one, path=f"items[{index}].{one.path}".rstrip(".")) for one in complaints]
    return pods, findings


class _Reader:
    """Reads one document; complaints go to the list it was given."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def pod(self, document: Tree, identity: Identity, path: str, *, is_item: bool) -> PodSpec:
        """One pod; worth nothing if there were complaints. The items of a PodList may leave their type out."""
        self.only(document, "", OBJECT_FIELDS)
        if not is_item or "apiVersion" in document.entries:
            self.equals(document, "apiVersion", "v1")
        metadata = self._map(document, "metadata", "metadata")
        self.only(metadata, "metadata", METADATA_FIELDS)
        spec = self._map(document, "spec", "spec")
        self.only(spec, "spec", SPEC_FIELDS)
        name = self._word(metadata, "name", "metadata.name", DNS_SUBDOMAIN, "a DNS name in lower case")
        namespace = "default"
        if "namespace" in metadata.entries:
            namespace = self._word(metadata, "namespace", "metadata.namespace", DNS_LABEL, "a DNS label")
        content = json.dumps(plain(document), sort_keys=True, default=str)
        if "uid" in metadata.entries:
            right = "a uid: up to 64 letters, digits, hyphens and dots, as text"
            uid = self._word(metadata, "uid", "metadata.uid", UID, right)
        else:
            uid = static_uid(content, identity.node, path)
        pod = PodSpec(
            namespace=namespace,
            name=name + identity.suffix,
            uid=uid,
            hash=content_hash(content),
            grace_s=self._grace_s(spec),
            labels=self._texts(metadata, "labels", "metadata.labels"),
            annotations=self._texts(metadata, "annotations", "metadata.annotations"),
            containers=self._containers(spec),
            file=path,
            source=document.where,
        )
        self._fits(metadata, pod)
        return pod

    def _fits(self, metadata: Tree, pod: PodSpec) -> None:
        """Names that are too long only once they are put together."""
        directory = log_directory_name(pod.namespace, pod.name, pod.uid)
        if len(pod.name) > LONGEST_NAME:
            text = f"with the name of the node it has {len(pod.name)} characters; at most {LONGEST_NAME} are possible"
        elif len(directory) > LONGEST_FILE_NAME:
            text = f"with namespace and uid it has {len(directory)} characters, more than the {LONGEST_FILE_NAME} that"
            text += " the name of its log directory may have"
        else:
            return
        self.wrong(metadata.entries.get("name", metadata), "metadata.name", text)

    def _grace_s(self, spec: Tree) -> int:
        given = spec.entries.get("terminationGracePeriodSeconds")
        value = given.scalar if given is not None else DEFAULT_GRACE_S
        if type(value) is int and 0 <= value <= LONGEST_GRACE_S:
            return value
        text = f"{shown(plain(given or spec))} is not a number of seconds: a whole number from 0 to {LONGEST_GRACE_S}"
        self.wrong(given or spec, "spec.terminationGracePeriodSeconds", text)
        return DEFAULT_GRACE_S

    def _containers(self, spec: Tree) -> tuple[ContainerSpec, ...]:
        listed = spec.entries.get("containers")
        if listed is None or listed.kind != "list" or not listed.items:
            self.wrong(listed or spec, "spec.containers", "must be a list with at least one container")
            return ()
        containers = [self._container(item, f"spec.containers[{index}]") for index, item in enumerate(listed.items)]
        names = [container.name for container in containers]
        for index, name in enumerate(names):
            if name in names[:index]:
                self.wrong(listed.items[index], f"spec.containers[{index}].name", f"{shown(name)} is taken already")
        return tuple(containers)

    def _container(self, tree: Tree, path: str) -> ContainerSpec:
        if tree.kind != "map":
            self.wrong(tree, path, "must be a map")
            return ContainerSpec(name="", image="")
        self.only(tree, path, CONTAINER_FIELDS)
        return ContainerSpec(
            name=self._word(tree, "name", f"{path}.name", DNS_LABEL, "a DNS label"),
            image=self._word(tree, "image", f"{path}.image", re.compile(r"\S+\Z"), "an image reference"),
            command=self._words(tree, "command", f"{path}.command"),
            args=self._words(tree, "args", f"{path}.args"),
            env=self._env(tree, f"{path}.env"),
        )

    def _env(self, tree: Tree, path: str) -> tuple[tuple[str, str], ...]:
        listed = self._list(tree, "env", path)
        if listed is None:
            return ()
        pairs = []
        for index, item in enumerate(listed.items):
            entries = item.entries
            if set(entries) - {"name", "value"} or not isinstance(entries.get("name", item).scalar, str):
                self.wrong(item, f"{path}[{index}]", "must be a name with a value; other sources are not supported")
            else:
                value = entries["value"].scalar if "value" in entries else ""
                if not isinstance(value, str):
                    self.wrong(item, f"{path}[{index}].value", f"{shown(value)} must be text; put it in quotes")
                pairs.append((str(entries["name"].scalar), str(value)))
        return tuple(pairs)

    def only(self, tree: Tree, path: str, known: tuple[str, ...]) -> None:
        """Complain about other fields."""
        for name, child in tree.entries.items():
            if name not in known:
                text = f"not supported by this version{suggestion(name, known)}"
                self.wrong(child, f"{path}.{name}".lstrip("."), text)

    def equals(self, tree: Tree, name: str, expected: str) -> None:
        """Complain if a field has another value or none."""
        given = tree.entries.get(name)
        if given is None or given.scalar != expected:
            self.wrong(given or tree, name, f"must be {expected}")

    def wrong(self, tree: Tree, path: str, text: str) -> None:
        """Complain."""
        self._findings.append(Finding(tree.where, path, text))

    def _map(self, tree: Tree, name: str, path: str) -> Tree:
        child = tree.entries.get(name)
        if child is None or child.kind != "map":
            self.wrong(child or tree, path, "must be a map")
            return Tree("map", tree.where)
        return child

    def _list(self, tree: Tree, name: str, path: str) -> Tree | None:
        child = tree.entries.get(name)
        if child is not None and child.kind != "list":
            self.wrong(child, path, "must be a list")
            return None
        return child

    def _word(self, tree: Tree, name: str, path: str, pattern: re.Pattern[str], right: str) -> str:
        child = tree.entries.get(name)
        value = child.scalar if child is not None else None
        if isinstance(value, str) and pattern.match(value):
            return value
        self.wrong(child or tree, path, "is missing" if child is None else f"{shown(plain(child))} is not {right}")
        return ""

    def _words(self, tree: Tree, name: str, path: str) -> tuple[str, ...]:
        listed = self._list(tree, name, path)
        if listed is None:
            return ()
        for index, item in enumerate(listed.items):
            if not isinstance(item.scalar, str):
                self.wrong(item, f"{path}[{index}]", f"{shown(plain(item))} must be text; put it in quotes")
        return tuple(str(item.scalar) for item in listed.items)

    def _texts(self, tree: Tree, name: str, path: str) -> tuple[tuple[str, str], ...]:
        child = tree.entries.get(name)
        if child is None:
            return ()
        if child.kind != "map":
            self.wrong(child, path, "must be a map")
        for key, value in child.entries.items():
            if not isinstance(value.scalar, str):
                self.wrong(value, f"{path}.{key}", f"{shown(plain(value))} must be text; put it in quotes")
        return tuple((key, str(value.scalar)) for key, value in child.entries.items())
