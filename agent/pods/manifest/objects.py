# SPDX-License-Identifier: Apache-2.0
"""Manifests into pods, ConfigMaps and Secrets, and into what makes pods.

A document with any fault gives no pod; reading.py decides what follows. Never: renders a Secret's value.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding, shown, suggestion
from agent.model.pods.fields import Metadata, PodFields
from agent.model.pods.pod import PodSpec, content_hash, static_uid
from agent.model.pods.shown_spec import without_copy
from agent.objects.decoding import documents_of
from agent.pods.manifest.annotations import annotations_of
from agent.pods.manifest.validation import check_pod, where_claimed
from agent.pods.manifest.validation.complaint import Complaints, told
from agent.pods.manifest.validation.object_names import DATA_KEY_TEXT, check_metadata, is_data_key
from agent.pods.runtime.environment import EnvironmentSource
from agent.pods.runtime.names import log_directory_name
from agent.pods.workloads.budget import KIND as BUDGET
from agent.pods.workloads.budget import Budget, read_budget
from agent.pods.workloads.cron_job import CRON_JOB
from agent.pods.workloads.cron_reading import read_cron_job
from agent.pods.workloads.reading import VERSIONS, read_workload
from agent.pods.workloads.workload import Workload

Read = TypeVar("Read", bound=msgspec.Struct)
LONGEST_NAME = 253
LONGEST_FILE_NAME = 255
MOST_DATA_BYTES = 1 << 20
# One directory serves all planes: these kinds belong to others and are no error here.
FOREIGN_KINDS = (
    "Service", "EndpointSlice", "Node", "ServiceCIDR", "NetworkPolicy",
    "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice",
)  # fmt: skip
SOURCE_KINDS = ("ConfigMap", "Secret")
KINDS = ("Pod", "PodList", "List", *SOURCE_KINDS, *VERSIONS, CRON_JOB, BUDGET, *FOREIGN_KINDS)


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()


class _Pod(_Object, frozen=True, kw_only=True, rename="camel"):
    spec: PodFields = PodFields()
    status: object = None


class _List(_Object, frozen=True, kw_only=True, rename="camel"):
    metadata: object = None  # type: ignore[assignment]  # a list has another one
    items: object = None


class _Source(_Object, frozen=True, kw_only=True, rename="camel"):
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    type: str = ""
    immutable: bool = False


class NodeIdentity(msgspec.Struct, frozen=True):
    """What a manifest means on this node. One that does not give devices refuses pods that claim some."""

    node: str
    has_name_suffix: bool
    gives_devices: bool = False
    gives_plugins: bool = False
    claim_root: str = ""

    @property
    def gives(self) -> dict[str, bool]:
        return {"gives_devices": self.gives_devices, "gives_plugins": self.gives_plugins}

    @property
    def suffix(self) -> str:
        return f"-{self.node}" if self.has_name_suffix else ""


class Objects(msgspec.Struct):
    pods: list[PodSpec] = msgspec.field(default_factory=list)
    sources: list[EnvironmentSource] = msgspec.field(default_factory=list)
    workloads: list[Workload] = msgspec.field(default_factory=list)
    budgets: list[Budget] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)
    others: int = 0
    """How many belong to other planes."""


def parse_objects(path: str, content: bytes, identity: NodeIdentity) -> Objects:
    found = Objects()
    documents, found.findings = documents_of(content, path)
    if not found.findings:
        for document in documents:
            _document(document, identity, path, found)
    return found


def _document(tree: Tree, identity: NodeIdentity, path: str, found: Objects, default_kind: str = "") -> None:
    if tree.kind != "map":
        found.findings.append(Finding(tree.where, "", "must be a map with apiVersion, kind and metadata"))
        return
    given = tree.entries.get("kind")
    kind = given.scalar if given is not None else default_kind
    if kind in FOREIGN_KINDS:
        found.others += 1
        return
    if kind in ("List", "PodList"):
        _items(tree, identity, path, found, "Pod" if kind == "PodList" else "")
    elif kind == "Pod":
        _pod(tree, identity, path, found, is_item=bool(default_kind))
    elif kind in SOURCE_KINDS:
        _source(tree, str(kind), path, found)
    elif kind in VERSIONS:
        workload = read_workload(
            tree,
            str(kind),
            path,
            identity.node,
            found.findings,
            gives=identity.gives,
            claim_root=identity.claim_root,
        )
        found.workloads += [workload] if workload is not None else []
    elif kind == CRON_JOB:
        cron_job = read_cron_job(tree, path, identity.node, found.findings, gives=identity.gives)
        found.workloads += [cron_job] if cron_job is not None else []
    elif kind == BUDGET:
        budget = read_budget(tree, path, found.findings)
        found.budgets += [budget] if budget is not None else []
    elif given is None:
        found.findings.append(Finding(tree.where, "kind", f"is missing; known are {', '.join(KINDS)}"))
    else:
        hint = suggestion(str(kind), KINDS) or "; known are " + ", ".join(KINDS)
        found.findings.append(Finding(given.where, "kind", f"{shown(plain(given))} is not known here{hint}"))


def _items(tree: Tree, identity: NodeIdentity, path: str, found: Objects, default_kind: str) -> None:
    Shape(found.findings).read(tree, _List, "")
    _version(tree, found.findings)
    listed = tree.entries.get("items")
    if listed is None or listed.kind != "list":
        found.findings.append(Finding((listed or tree).where, "items", "must be a list"))
        return
    for index, item in enumerate(listed.items):
        inner = Objects()
        _document(item, identity, path, inner, default_kind)
        found.pods += inner.pods
        found.sources += inner.sources
        found.workloads += inner.workloads
        found.budgets += inner.budgets
        found.others += inner.others
        found.findings += [replace(one, path=f"items[{index}].{one.path}".rstrip(".")) for one in inner.findings]


def _version(tree: Tree, findings: list[Finding]) -> None:
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != "v1":
        findings.append(Finding((given or tree).where, "apiVersion", "must be v1"))


def _read(tree: Tree, kind: type[Read], findings: list[Finding]) -> Read | None:
    before = len(findings)
    value = Shape(findings).read(tree, kind, "")
    return msgspec.convert(value, kind) if len(findings) == before else None


def _pod(tree: Tree, identity: NodeIdentity, path: str, found: Objects, *, is_item: bool) -> None:
    """The items of a PodList may leave their type out."""
    findings: list[Finding] = []
    if not is_item or "apiVersion" in tree.entries:
        _version(tree, findings)
    missing = [name for name in ("metadata", "spec") if name not in tree.entries]
    findings += [Finding(tree.where, name, "must be a map") for name in missing]
    read = _read(tree, _Pod, findings)
    if read is not None:
        complaints = Complaints()
        check_metadata(read.metadata, complaints)
        unfit = where_claimed(read.spec, **identity.gives)
        wrong = (*complaints.found, *check_pod(read.spec), *unfit)
        findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in wrong]
        if not findings:
            pod = _built(read, tree, identity, path)
            findings += [*_fits(pod, tree), *_starts(pod, tree)]
            if not findings:
                found.pods.append(pod)
    found.findings += findings


def _built(read: _Pod, tree: Tree, identity: NodeIdentity, path: str) -> PodSpec:
    """Hashes are over the decoded values: defaults written out, comments and key order change nothing."""
    metadata = read.metadata
    known = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid, "labels": metadata.labels}
    document = {**known, "annotations": _own_annotations(metadata.annotations), "spec": read.spec}
    content = msgspec.json.encode(document, order="sorted").decode()
    return PodSpec(
        namespace=metadata.namespace,
        name=metadata.name + identity.suffix,
        uid=metadata.uid or static_uid(content, identity.node, path),
        hash=content_hash(content),
        labels=tuple(metadata.labels.items()),
        annotations=tuple(metadata.annotations.items()),
        spec=read.spec,
        file=path,
        source=tree.where,
        has_own_uid=bool(metadata.uid),
        manifest_name=metadata.name,
    )


def _own_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Without those that are set by whoever runs the pod, and kubectl's copy of what stands beside it anyway."""
    own = without_copy(annotations)
    return {name: value for name, value in own.items() if not name.startswith("kubernetes.io/config.")}


def _fits(pod: PodSpec, tree: Tree) -> list[Finding]:
    """Names that are too long only once they are put together."""
    directory = log_directory_name(pod.namespace, pod.name, pod.uid)
    if len(pod.name) > LONGEST_NAME:
        text = f"with the name of the node it has {len(pod.name)} characters; at most {LONGEST_NAME} are possible"
    elif len(directory) > LONGEST_FILE_NAME:
        text = f"with namespace and uid it has {len(directory)} characters, more than the {LONGEST_FILE_NAME} that"
        text += " the name of its log directory may have"
    else:
        return []
    return [Finding(place_of(tree, "metadata.name"), "metadata.name", text)]


def _starts(pod: PodSpec, tree: Tree) -> list[Finding]:
    """What would wait for itself is no order at all."""
    if not (cycle := annotations_of(pod).cycle):
        return []
    text = f"Invalid value: kepd.dev/depends-on {cycle}: each waits for the next, so none of them would ever start"
    return [Finding(place_of(tree, "metadata.annotations"), "metadata.annotations", text)]


def _source(tree: Tree, kind: str, path: str, found: Objects) -> None:
    findings: list[Finding] = []
    _version(tree, findings)
    read = _read(tree, _Source, findings)
    if read is not None:
        complaints = Complaints()
        check_metadata(read.metadata, complaints)
        findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in complaints.found]
        data = _values(read, kind, tree, findings)
        if not findings:
            found.sources.append(
                EnvironmentSource(
                    kind=kind,
                    namespace=read.metadata.namespace,
                    name=read.metadata.name,
                    data=data,
                    file=path,
                    source=tree.where,
                    binary=frozenset(read.binary_data) - read.data.keys(),
                )
            )
    found.findings += findings


def binary_keys(values: Mapping[str, bytes]) -> frozenset[str]:
    found = set()
    for key, value in values.items():
        try:
            value.decode()
        except UnicodeDecodeError:
            found.add(key)
    return frozenset(found)


def _values(read: _Source, kind: str, tree: Tree, findings: list[Finding]) -> dict[str, bytes]:
    """Values as bytes; what stands in base64 is decoded, and never shown where it cannot be."""
    encoded, encoded_name = (read.data, "data") if kind == "Secret" else (read.binary_data, "binaryData")
    texts, text_name = (read.string_data, "stringData") if kind == "Secret" else (read.data, "data")
    found = {}
    for name, values in ((encoded_name, encoded), (text_name, texts)):
        for key in values:
            if not is_data_key(key):
                place = place_of(tree, name)
                findings.append(Finding(place, f"{name}[{key}]", f"Invalid value: {told(key)}: {DATA_KEY_TEXT}"))
    for key, value in encoded.items():
        try:
            found[key] = base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            where = f"{encoded_name}.{key}"
            findings.append(Finding(place_of(tree, where), where, "Invalid value: must be base64"))
    for key in texts.keys() & encoded.keys() if kind == "ConfigMap" else ():
        text = f"Invalid value: {told(key)}: is in both data and binaryData; expected only one"
        findings.append(Finding(place_of(tree, "binaryData"), f"binaryData[{key}]", text))
    found.update({key: value.encode() for key, value in texts.items()})
    size = sum(map(len, found.values()))
    if size > MOST_DATA_BYTES:
        text = f"Too long: all values together have {size} bytes; at most {MOST_DATA_BYTES} are possible"
        findings.append(Finding(tree.where, text_name, text))
    return found
