# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices, Nodes, Pods and workloads from decoded manifests, strictly.

Owns: the conversion to the value types and the complaints about what cannot be converted: one line each, with the
place, the value and what would be right. An object with an error is left out; the others are not affected.
Source of behaviour: the API types. What is assumed for a sparse Node manifest is reported as a note.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from agent.model.finding import Finding, shown, suggestion
from agent.model.nodes.node import ZONE_LABEL, Node, ReadyStatus, Taint
from agent.model.quantity import ZERO, Quantity, QuantityError, parse_quantity
from agent.topology.hints.capacity import CONTROL_PLANE_LABELS
from agent.topology.hints.mode import mode_findings
from agent.topology.hints.slices import Endpoint, Hints, Slice
from agent.topology.manifest.facts import PodFacts, SelectingService
from agent.topology.manifest.pods import WorkloadFacts, check_labels, check_pod, read_name, read_pod, read_workload
from agent.topology.manifest.reader import ManifestComplaints, ReadPart

SERVICE_LABEL = "kubernetes.io/service-name"
FAMILIES = ("IPv4", "IPv6", "FQDN")
MOST_HINTS = 8
READY_STATUSES: Mapping[str, ReadyStatus] = {"True": "True", "False": "False", "Unknown": "Unknown"}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
WORKLOADS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicationController": "v1",
    "Job": "batch/v1",
}
VERSIONS: Mapping[str, str] = {
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "Node": "v1",
    "Pod": "v1",
    **WORKLOADS,
}


class Document(msgspec.Struct, frozen=True):
    """One decoded document. `where` is what complaints begin with, for instance `web.yaml:12`."""

    where: str
    content: object


class SliceManifest(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    service: str
    family: str
    slice: Slice


class Manifests(msgspec.Struct, frozen=True, gc=False):
    """All that was usable, in the order in which it came. Errors are for exit code 2, notes are worth showing."""

    services: tuple[SelectingService, ...] = ()
    slices: tuple[SliceManifest, ...] = ()
    nodes: tuple[Node, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    workloads: tuple[WorkloadFacts, ...] = ()
    errors: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


Converted = SelectingService | SliceManifest | Node | PodFacts | WorkloadFacts


def read_manifests(documents: Iterable[Document], *, takes_unknown: bool = False) -> Manifests:
    """Converts all documents of the kinds above; other kinds are nobody's business here. `takes_unknown`: fields of
    another version of Kubernetes are told and left out."""
    converted: list[Converted] = []
    errors: list[Finding] = []
    notes: list[Finding] = []
    seen: dict[tuple[str, str], str] = {}
    for where, content in _flattened(documents, errors):
        kind = str(content.get("kind"))
        if kind not in VERSIONS:
            text = f"{shown(kind)} is not read here; read are {', '.join(VERSIONS)}" + suggestion(kind, VERSIONS)
            notes.append(Finding(where, "kind", text))
            continue
        complaints = ManifestComplaints(where, takes_unknown=takes_unknown)
        value, name = _convert(kind, content, complaints)
        if (kind, name) in seen:
            text = f"{kind} {name} exists twice, first in {seen[kind, name]}; expected only one"
            complaints.error("metadata.name", text)
        seen.setdefault((kind, name), where)
        if not complaints.errors:
            converted.append(value)
        errors += complaints.errors
        notes += complaints.notes
    return Manifests(
        services=tuple(value for value in converted if isinstance(value, SelectingService)),
        slices=tuple(value for value in converted if isinstance(value, SliceManifest)),
        nodes=tuple(value for value in converted if isinstance(value, Node)),
        pods=tuple(value for value in converted if isinstance(value, PodFacts)),
        workloads=tuple(value for value in converted if isinstance(value, WorkloadFacts)),
        errors=tuple(errors),
        notes=tuple(notes),
    )


def together(parts: Iterable[Manifests]) -> Manifests:
    """What is known to be there once in each, as one."""
    lists = [msgspec.structs.astuple(one) for one in parts]
    return Manifests(*(tuple(chain.from_iterable(column)) for column in zip(*lists, strict=True)))


def _flattened(documents: Iterable[Document], errors: list[Finding]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The objects one by one, lists taken apart."""
    for document in documents:
        content = document.content
        if content is None:
            continue
        if not isinstance(content, Mapping):
            errors.append(
                Finding(document.where, "", f"{shown(content)} is not an object; expected a mapping with a kind")
            )
            continue
        kind = content.get("kind")
        if not isinstance(kind, str) or not kind:
            errors.append(
                Finding(document.where, "kind", f"{shown(kind)} is not a kind; expected a kind such as Service")
            )
        elif kind == "List" or (kind.endswith("List") and kind.removesuffix("List") in VERSIONS):
            yield from _flattened(_items(document.where, kind, content, errors), errors)
        else:
            yield document.where, content


def _items(where: str, kind: str, content: Mapping[str, object], errors: list[Finding]) -> list[Document]:
    items = content.get("items")
    if not isinstance(items, (list, tuple)):
        errors.append(Finding(where, "items", f"{shown(items)} is not valid here; expected a list of objects"))
        return []
    only = kind.removesuffix("List")
    documents = []
    for position, item in enumerate(items):
        # An item of a typed list need not repeat its kind and version.
        implied = {"kind": only, "apiVersion": content.get("apiVersion")} if only else {}
        whole = {**implied, **item} if isinstance(item, Mapping) else item
        documents.append(Document(f"{where} items[{position}]", whole))
    return documents


def _convert(kind: str, content: Mapping[str, object], complaints: ManifestComplaints) -> tuple[Converted, str]:
    top = ReadPart(complaints, "", content, "slice" if kind == "EndpointSlice" else "object")
    if top.raw("apiVersion") != VERSIONS[kind]:
        top.wrong("apiVersion", VERSIONS[kind])
    if kind in WORKLOADS:
        workload = read_workload(top, kind)
        check_pod(workload.template, complaints, "spec.template.spec", "spec.template.metadata.labels")
        return workload, workload.template.key
    value = READERS[kind](top)
    match value:
        case PodFacts():
            check_pod(value, complaints)
            return value, value.key
        case SelectingService():
            complaints.notes += mode_findings(complaints.where, value.annotations, value.traffic_distribution)
            return value, value.key
        case SliceManifest():
            return value, f"{value.namespace}/{value.slice.name}"
        case _:
            return value, value.name


def read_service(top: ReadPart) -> SelectingService:
    metadata = top.part("metadata", "metadata")
    namespace, name = read_name(metadata)
    spec = top.part("spec", "service.spec")
    selector = spec.text_map("selector") if spec.has("selector") else None
    check_labels(spec.at("selector"), selector or {}, top.complaints)
    annotations = metadata.text_map("annotations")
    return SelectingService(namespace, name, annotations, spec.optional_text("trafficDistribution"), selector)


def _read_slice(top: ReadPart) -> SliceManifest:
    metadata = top.part("metadata", "metadata")
    namespace, name = read_name(metadata)
    # One that names no Service is for others than us.
    service = metadata.text_map("labels").get(SERVICE_LABEL, "")
    family = top.text("addressType")
    if family not in FAMILIES:
        top.wrong("addressType", " or ".join(FAMILIES))
    endpoints = tuple(map(_read_endpoint, top.parts("endpoints", "endpoint")))
    return SliceManifest(namespace, service, family, Slice(name, endpoints))


def _read_endpoint(part: ReadPart) -> Endpoint:
    addresses = part.texts("addresses")
    if not addresses:
        part.wrong("addresses", "a list with at least one address")
    conditions = part.part("conditions", "endpoint.conditions")
    target = None
    if part.has("targetRef"):
        reference = part.part("targetRef", "endpoint.targetRef")
        target = "/".join(reference.text(name) for name in ("kind", "namespace", "name", "uid"))
    return Endpoint(
        addresses=addresses,
        zone=part.optional_text("zone"),
        node=part.optional_text("nodeName"),
        ready=conditions.optional_flag("ready"),
        serving=conditions.optional_flag("serving"),
        terminating=conditions.optional_flag("terminating"),
        hints=_read_hints(part),
        hostname=part.optional_text("hostname"),
        target=target,
    )


def _read_hints(part: ReadPart) -> Hints | None:
    if not part.has("hints"):
        return None
    hints = part.part("hints", "endpoint.hints")
    names = {}
    for field in ("forZones", "forNodes"):
        names[field] = tuple(entry.text("name") for entry in hints.parts(field, "endpoint.hint"))
        if len(names[field]) > MOST_HINTS:
            text = f"{len(names[field])} hints; expected at most {MOST_HINTS} per endpoint"
            part.complaints.error(hints.at(field), text)
    return Hints(zones=names["forZones"], nodes=names["forNodes"])


def read_node(top: ReadPart) -> Node:
    """A Node. One without conditions counts as ready and one without allocatable CPU by its capacity, with a note."""
    metadata = top.part("metadata", "metadata")
    name = metadata.text("name")
    if not name:
        metadata.wrong("name", "the name of the node")
    labels = metadata.text_map("labels")
    check_labels("metadata.labels", labels, top.complaints)
    if not labels.get(ZONE_LABEL) and not any(label in labels for label in CONTROL_PLANE_LABELS):
        text = "missing or empty; while the node counts, no Service gets hints by CPU. Expected the node's zone"
        top.complaints.note(f"metadata.labels[{ZONE_LABEL}]", text)
    spec = top.part("spec", "node.spec")
    status = top.part("status", "node.status")
    return Node(
        name=name,
        labels=labels,
        ready=_read_ready(status),
        cpu=_read_cpu(status),
        taints=tuple(map(_read_taint, spec.parts("taints", "taint"))),
        is_unschedulable=spec.optional_flag("unschedulable") is True,
    )


def _read_ready(status: ReadPart) -> ReadyStatus | None:
    if not status.has("conditions"):
        status.complaints.note(status.at("conditions"), "missing; the node counts as Ready")
        return "True"
    for condition in status.parts("conditions", "node.condition"):
        if condition.text("type") == "Ready":
            written = condition.text("status")
            if written not in READY_STATUSES:
                condition.wrong("status", '"True", "False" or "Unknown"')
            return READY_STATUSES.get(written)
    return None


def _read_cpu(status: ReadPart) -> Quantity | None:
    allocatable = status.part("allocatable", None)
    if allocatable.has("cpu"):
        return _read_quantity(allocatable, "cpu")
    capacity = status.part("capacity", None)
    if not capacity.has("cpu"):
        text = "missing, and so is status.capacity.cpu; expected the CPU of the node"
        status.complaints.note(allocatable.at("cpu"), text)
        return None
    status.complaints.note(allocatable.at("cpu"), f"missing; status.capacity.cpu {shown(capacity.raw('cpu'))} is used")
    return _read_quantity(capacity, "cpu")


def _read_quantity(part: ReadPart, name: str) -> Quantity | None:
    written = part.raw(name)
    if isinstance(written, bool) or not isinstance(written, (str, int, float)):
        part.wrong(name, 'a quantity such as "4" or "3920m"')
        return None
    try:
        quantity = parse_quantity(written.strip() if isinstance(written, str) else repr(written))
    except QuantityError as error:
        part.complaints.error(part.at(name), str(error))
        return None
    if quantity < ZERO:
        part.wrong(name, "an amount that is not negative")
    return quantity


def _read_taint(part: ReadPart) -> Taint:
    taint = Taint(part.text("key"), part.text("effect"), part.text("value"))
    if not taint.key:
        part.wrong("key", "the key of the taint")
    if taint.effect not in EFFECTS:
        part.wrong("effect", " or ".join(EFFECTS))
    return taint


READERS: Mapping[str, Callable[[ReadPart], SelectingService | SliceManifest | Node | PodFacts]] = {
    "Service": read_service,
    "EndpointSlice": _read_slice,
    "Node": read_node,
    "Pod": read_pod,
}
