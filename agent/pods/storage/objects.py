# SPDX-License-Identifier: Apache-2.0
"""A document becomes a PersistentVolumeClaim, a PersistentVolume or a StorageClass, or a list of what is wrong with it.

A volume is a directory of this node. What a cloud or a network serves is refused by its path, with what serves here.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.pods.affinity import NodeSelectorTerm, NodeTerms
from agent.model.pods.container_fields import Amount, Fields
from agent.model.pods.fields import ELSEWHERE, HostPath, Metadata, Texts
from agent.model.quantity import NANOS_PER_UNIT, parse_quantity
from agent.pods.manifest.selecting import Selector, check_expressions
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.object_names import check_metadata
from agent.pods.manifest.validation.volumes import check_host_path

Key = tuple[str, str, str]
CLAIM, VOLUME, CLASS = "PersistentVolumeClaim", "PersistentVolume", "StorageClass"
VERSIONS = {CLAIM: "v1", VOLUME: "v1", CLASS: "storage.k8s.io/v1"}
OWN_PROVISIONER, NO_PROVISIONER = "kepd.dev/directory", "kubernetes.io/no-provisioner"
OWN_CLASS = "directory"
RETAIN, DELETE = "Retain", "Delete"
ONE_POD = "ReadWriteOncePod"
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", ONE_POD)
BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
DEFAULT_MARKS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BOUND_ELSEWHERE = "pv.kubernetes.io/bind-completed"
# Each needs a storage driver, and a node alone has none.
CLAIM_REFUSALS = {
    "dataSource": "nothing here fills a volume with content",
    "dataSourceRef": "nothing here fills a volume with content",
    "volumeAttributesClassName": "there are no classes of attributes here",
}
NO_BLOCKS = "claims are directories here, and no block devices; use Filesystem"


class Requests(Fields, frozen=True):
    requests: dict[str, Amount] = msgspec.field(default_factory=dict)
    limits: dict[str, Amount] = msgspec.field(default_factory=dict)


class ClaimFields(Fields, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: Requests = Requests()
    storage_class_name: str | None = None
    volume_mode: str = "Filesystem"
    selector: Selector | None = None
    volume_name: str = ""
    data_source: object = None
    data_source_ref: object = None
    volume_attributes_class_name: object = None

    @property
    def size(self) -> str:
        return str(self.resources.requests.get("storage", ""))


class ObjectReference(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class LocalPath(Fields, frozen=True):
    path: str = ""
    fs_type: str = ""


class VolumeAffinity(Fields, frozen=True):
    required: NodeTerms | None = None


class VolumeFields(Fields, frozen=True):
    ELSEWHERE: ClassVar[Mapping[str, str]] = ELSEWHERE
    capacity: dict[str, Amount] = msgspec.field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    persistent_volume_reclaim_policy: str = RETAIN
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    claim_ref: ObjectReference | None = None
    host_path: HostPath | None = None
    local: LocalPath | None = None
    node_affinity: VolumeAffinity | None = None
    mount_options: object = None
    volume_attributes_class_name: object = None


class _Claim(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: ClaimFields = ClaimFields()
    status: object = None


class _Volume(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: VolumeFields = VolumeFields()
    status: object = None


class _Class(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    provisioner: str = ""
    reclaim_policy: str = ""
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False
    parameters: Texts = msgspec.field(default_factory=dict)
    mount_options: object = None
    allowed_topologies: object = None


SHAPES: Mapping[str, type[_Claim] | type[_Volume] | type[_Class]] = {CLAIM: _Claim, VOLUME: _Volume, CLASS: _Class}


class WantedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """`maker` is the StatefulSet that it is made for; empty for one of a manifest."""

    namespace: str
    name: str
    spec: ClaimFields
    labels: Texts = msgspec.field(default_factory=dict)
    maker: str = ""
    file: str = ""
    source: str = ""

    @property
    def key(self) -> Key:
        return CLAIM, self.namespace, self.name


class WantedVolume(msgspec.Struct, frozen=True, kw_only=True):
    """`terms` are the nodes that have it; empty: all."""

    name: str
    spec: VolumeFields
    labels: Texts = msgspec.field(default_factory=dict)
    file: str = ""
    source: str = ""

    @property
    def key(self) -> Key:
        return VOLUME, "", self.name

    @property
    def path(self) -> str:
        return self.spec.host_path.path if self.spec.host_path is not None else (self.spec.local or LocalPath()).path

    @property
    def check(self) -> str:
        """As a hostPath has it."""
        return self.spec.host_path.type if self.spec.host_path is not None else "Directory"

    @property
    def size(self) -> str:
        return str(self.spec.capacity["storage"])

    @property
    def terms(self) -> tuple[NodeSelectorTerm, ...]:
        affinity = self.spec.node_affinity
        return affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()


class WantedClass(msgspec.Struct, frozen=True, kw_only=True):
    """`deletes`: the directory goes with its claim, which is so only where it is written."""

    name: str
    provisioner: str = OWN_PROVISIONER
    deletes: bool = False
    is_default: bool = False
    file: str = ""
    source: str = ""

    @property
    def key(self) -> Key:
        return CLASS, "", self.name


StorageObject = WantedClaim | WantedVolume | WantedClass


def bytes_of(size: str) -> int:
    return -(-parse_quantity(size).nanos // NANOS_PER_UNIT)


def read_storage(tree: Tree, kind: str, path: str, findings: list[Finding]) -> StorageObject | None:
    """None if there are findings, which are added to the list."""
    before = len(findings)
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != VERSIONS[kind]:
        findings.append(Finding((given or tree).where, "apiVersion", f"must be {VERSIONS[kind]}"))
    needed = ("metadata",) if kind == CLASS else ("metadata", "spec")
    findings += [Finding(tree.where, name, "must be a map") for name in needed if name not in tree.entries]
    shape = SHAPES[kind]
    value = Shape(findings).read(tree, shape, "")
    if len(findings) > before:
        return None
    read = msgspec.convert(value, shape)
    out = Complaints()
    check_metadata(read.metadata, out)
    made = _made(read, path, tree.where, out)
    findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in out.found]
    return made if len(findings) == before else None


def storage_warnings(value: StorageObject) -> Iterator[tuple[str, str]]:
    """What is right and yet means something else on one node."""
    if isinstance(value, WantedVolume) and value.spec.persistent_volume_reclaim_policy != RETAIN:
        text = "kepd removes only directories that it made; what is in this volume stays"
        yield "spec.persistentVolumeReclaimPolicy", text
    elif isinstance(value, WantedClass) and value.provisioner not in (OWN_PROVISIONER, NO_PROVISIONER):
        text = f"{value.provisioner} is not here; claims of this class get directories (pods.claimClasses)"
        yield "provisioner", text


def _made(read: msgspec.Struct, file: str, source: str, out: Complaints) -> StorageObject | None:
    match read:
        case _Claim(metadata=metadata, spec=spec):
            check_claim(out, "spec", spec)
            if metadata.annotations.get(BOUND_ELSEWHERE):
                # A cluster chose that volume, and its name says nothing here.
                spec = msgspec.structs.replace(spec, volume_name="")
            if spec.storage_class_name is None and CLASS_ANNOTATION in metadata.annotations:
                spec = msgspec.structs.replace(spec, storage_class_name=metadata.annotations[CLASS_ANNOTATION])
            return WantedClaim(
                namespace=metadata.namespace, name=metadata.name, spec=spec, labels=metadata.labels, file=file,
                source=source,
            )  # fmt: skip
        case _Volume(metadata=metadata, spec=spec):
            _check_volume(out, spec)
            return WantedVolume(name=metadata.name, spec=spec, labels=metadata.labels, file=file, source=source)
        case _Class(metadata=metadata):
            if not read.provisioner:
                out.required("provisioner", f"{OWN_PROVISIONER} makes directories on this node")
            if read.reclaim_policy:
                out.one_of("reclaimPolicy", read.reclaim_policy, (DELETE, RETAIN))
            out.one_of("volumeBindingMode", read.volume_binding_mode, BINDING_MODES)
            return WantedClass(
                name=metadata.name, provisioner=read.provisioner, deletes=read.reclaim_policy == DELETE,
                is_default=any(metadata.annotations.get(mark) == "true" for mark in DEFAULT_MARKS), file=file,
                source=source,
            )  # fmt: skip
    return None


def check_claim(out: Complaints, path: str, spec: ClaimFields) -> None:
    _modes(out, path, spec.access_modes)
    _size(out, f"{path}.resources.requests[storage]", spec.size)
    _filesystem(out, path, spec.volume_mode)
    if spec.storage_class_name:
        out.subdomain(f"{path}.storageClassName", spec.storage_class_name)
    if spec.selector is not None:
        check_expressions(out, spec.selector, f"{path}.selector")
    for name, value in zip(
        CLAIM_REFUSALS, (spec.data_source, spec.data_source_ref, spec.volume_attributes_class_name), strict=True
    ):
        if value is not None:
            out.forbidden(f"{path}.{name}", CLAIM_REFUSALS[name])


def _check_volume(out: Complaints, spec: VolumeFields) -> None:
    _modes(out, "spec", spec.access_modes)
    _size(out, "spec.capacity[storage]", str(spec.capacity.get("storage", "")))
    _filesystem(out, "spec", spec.volume_mode)
    out.one_of("spec.persistentVolumeReclaimPolicy", spec.persistent_volume_reclaim_policy, (DELETE, RETAIN, "Recycle"))
    given = [name for name, one in (("hostPath", spec.host_path), ("local", spec.local)) if one is not None]
    out.one_type("spec", given, "a hostPath or local directory of this node", "may not specify more than 1 volume type")
    if spec.host_path is not None:
        check_host_path(out, spec.host_path, "spec.hostPath")
    if spec.local is not None:
        check_host_path(out, HostPath(path=spec.local.path), "spec.local")
    if spec.storage_class_name:
        out.subdomain("spec.storageClassName", spec.storage_class_name)


def _modes(out: Complaints, path: str, modes: tuple[str, ...]) -> None:
    if not modes:
        out.required(f"{path}.accessModes", "at least 1 access mode is required")
    for index, mode in enumerate(modes):
        out.one_of(f"{path}.accessModes[{index}]", mode, ACCESS_MODES)


def _filesystem(out: Complaints, path: str, mode: str) -> None:
    if mode == "Block":
        out.forbidden(f"{path}.volumeMode", NO_BLOCKS)
    else:
        out.one_of(f"{path}.volumeMode", mode, ("Filesystem",))


def _size(out: Complaints, path: str, size: str) -> None:
    if not size:
        out.required(path, "how large it should be, such as 1Gi")
        return
    try:
        is_size = parse_quantity(size).nanos > 0
    except ValueError:
        is_size = False
    if not is_size:
        out.invalid(path, size, "must be a quantity above 0, such as 1Gi")
