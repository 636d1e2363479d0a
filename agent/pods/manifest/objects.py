# SPDX-License-Identifier: Apache-2.0
"""Documents into pods, ConfigMaps and Secrets, and into what makes pods. Never: renders a Secret's value."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from agent.config.document import Configuration
from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.kinds.registry import MANIFEST_KINDS, kinds_read_by
from agent.model.finding import Finding
from agent.model.pods.fields import Metadata, PodFields
from agent.model.pods.pod import NOTHING_GIVEN, GivenMetadata, PodSpec, content_hash, static_uid
from agent.model.pods.shown_spec import without_copy
from agent.model.pods.source_folder import SourceFolder
from agent.objects.reading import Object, Reading, Readings, read_file
from agent.pods.admission.objects import VERSIONS as RULE_KINDS
from agent.pods.admission.objects import Rule, read_rule, rule_warnings
from agent.pods.manifest.annotations import annotations_of
from agent.pods.manifest.bound import within_bound
from agent.pods.manifest.of_cluster import LEFT_OUT, token_volumes, without_own_selector, without_tokens
from agent.pods.manifest.source_folders import read_folder
from agent.pods.manifest.validation import check_pod, warnings_about, where_claimed
from agent.pods.manifest.validation.complaint import Complaints, told
from agent.pods.manifest.validation.object_names import DATA_KEY_TEXT, check_metadata, is_data_key
from agent.pods.runtime.environment import EnvironmentSource
from agent.pods.runtime.names import log_directory_name
from agent.pods.storage.objects import VERSIONS as STORAGE_KINDS
from agent.pods.storage.objects import StorageObject, read_storage, storage_warnings
from agent.pods.workloads.budget import KIND as BUDGET
from agent.pods.workloads.budget import Budget, read_budget
from agent.pods.workloads.cron_job import CRON_JOB
from agent.pods.workloads.cron_reading import manifest_warnings, read_cron_job
from agent.pods.workloads.reading import JOB, read_workload
from agent.pods.workloads.workload import Workload

Read = TypeVar("Read", bound=msgspec.Struct)
LONGEST_NAME = 253
LONGEST_FILE_NAME = 255
MOST_DATA_BYTES = 1 << 20
POD = "Pod"
SOURCE_KINDS = ("ConfigMap", "Secret")
KINDS = kinds_read_by(__name__)


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()


class _Pod(_Object, frozen=True, kw_only=True, rename="camel"):
    spec: PodFields = PodFields()
    status: object = None


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

    @property
    def gives(self) -> dict[str, bool]:
        return {"gives_devices": self.gives_devices, "gives_plugins": self.gives_plugins}

    @property
    def suffix(self) -> str:
        return f"-{self.node}" if self.has_name_suffix else ""


def pod_reading(identity: NodeIdentity) -> Reading:
    return Reading(
        plane="pods",
        kinds=frozenset(KINDS),
        read=lambda tree, kind, path, findings: _read_object(tree, kind, path, identity, findings),
        warnings=_warnings,
        marks=lambda value: [("metadata.uid", f"a pod with uid {value.uid}")] if isinstance(value, PodSpec) else (),
        read_folder=_folder_object,
        bound=within_bound,
        settings=identity,
    )


ANY_NODE = NodeIdentity("", False, True, True)


def reading_for(configuration: Configuration | None) -> Reading:
    """None: of no node in particular."""
    return pod_reading(identity_of(configuration) if configuration is not None else ANY_NODE)


def identity_of(configuration: Configuration) -> NodeIdentity:
    devices = configuration.devices
    return NodeIdentity(
        configuration.node.name, configuration.pods.name_suffix, devices.manager.enabled, devices.plugins.enabled
    )


def _read_object(tree: Tree, kind: str, path: str, identity: NodeIdentity, findings: list[Finding]) -> object | None:
    """None with findings."""
    if kind == POD:
        return _pod(without_tokens(tree), identity, path, findings)
    if kind in SOURCE_KINDS:
        return _source(tree, kind, path, findings)
    if kind == CRON_JOB:
        return read_cron_job(tree, path, identity.node, findings, gives=identity.gives)
    if kind == BUDGET:
        return read_budget(tree, path, findings)
    if kind in RULE_KINDS:
        return read_rule(tree, kind, findings)
    if kind in STORAGE_KINDS:
        return read_storage(tree, kind, path, findings)
    if kind == JOB:
        tree = without_own_selector(tree)
    return read_workload(tree, kind, path, identity.node, findings, gives=identity.gives)


def _warnings(tree: Tree, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, PodSpec):
        yield from warnings_about(value.spec)
        yield from (("spec.volumes", f"{name} {LEFT_OUT}") for name in token_volumes(tree))
    elif isinstance(value, Workload):
        yield from manifest_warnings(value)
    elif isinstance(value, Rule):
        yield from rule_warnings(value)
    elif isinstance(value, StorageObject):
        yield from storage_warnings(value)


def _folder_object(folder: SourceFolder) -> tuple[Object | None, Sequence[Finding]]:
    source, findings = read_folder(folder)
    return (Object(source.key, source, folder.path, folder.path) if source is not None else None), findings


class Objects(msgspec.Struct):
    """What of a file the pods plane carries out, and all that is wrong with the file."""

    pods: list[PodSpec]
    sources: list[EnvironmentSource]
    workloads: list[Workload]
    budgets: list[Budget]
    findings: list[Finding]


def parse_objects(path: str, content: bytes, identity: NodeIdentity) -> Objects:
    file = read_file(path, content, Readings([pod_reading(identity)]), MANIFEST_KINDS)
    values = [object_.value for object_ in file.objects.values()]
    return Objects(
        [value for value in values if isinstance(value, PodSpec)],
        [value for value in values if isinstance(value, EnvironmentSource)],
        [value for value in values if isinstance(value, Workload)],
        [value for value in values if isinstance(value, Budget)],
        [complaint.finding for complaint in file.complaints],
    )


def _version(tree: Tree, findings: list[Finding]) -> None:
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != "v1":
        findings.append(Finding((given or tree).where, "apiVersion", "must be v1"))


def _read(tree: Tree, kind: type[Read], findings: list[Finding]) -> Read | None:
    before = len(findings)
    value = Shape(findings).read(tree, kind, "")
    return msgspec.convert(value, kind) if len(findings) == before else None


def _pod(tree: Tree, identity: NodeIdentity, path: str, findings: list[Finding]) -> PodSpec | None:
    before = len(findings)
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
        if len(findings) == before:
            pod = _built(read, tree, identity, path)
            findings += [*_fits(pod, tree), *_starts(pod, tree)]
            return pod if len(findings) == before else None
    return None


def _built(read: _Pod, tree: Tree, identity: NodeIdentity, path: str) -> PodSpec:
    """Hashes are over the decoded values: defaults written out, comments and key order change nothing."""
    metadata = read.metadata
    known = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid, "labels": metadata.labels}
    document = {**known, "annotations": _own_annotations(metadata.annotations), "spec": read.spec}
    given = given_metadata(metadata)
    # What is not given changes no hash that an earlier kepd left on a sandbox.
    document |= {"given": given} if given != NOTHING_GIVEN else {}
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
        given=given,
    )


def given_metadata(metadata: Metadata) -> GivenMetadata:
    """What is written in a shape that Kubernetes does not have is left out."""
    shown = {
        "generateName": metadata.generate_name, "ownerReferences": metadata.owner_references,
        "finalizers": metadata.finalizers, "generation": metadata.generation,
    }  # fmt: skip
    try:
        return msgspec.convert({name: value for name, value in shown.items() if value}, GivenMetadata)
    except msgspec.ValidationError:
        return NOTHING_GIVEN


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


def _source(tree: Tree, kind: str, path: str, findings: list[Finding]) -> EnvironmentSource | None:
    before = len(findings)
    _version(tree, findings)
    read = _read(tree, _Source, findings)
    if read is not None:
        complaints = Complaints()
        check_metadata(read.metadata, complaints)
        findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in complaints.found]
        data = _values(read, kind, tree, findings)
        if len(findings) == before:
            return EnvironmentSource(
                kind=kind,
                namespace=read.metadata.namespace,
                name=read.metadata.name,
                data=data,
                file=path,
                source=tree.where,
                binary=frozenset(read.binary_data) - read.data.keys(),
            )
    return None


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
