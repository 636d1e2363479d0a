# SPDX-License-Identifier: Apache-2.0
"""A cluster as a rehearsal sees it: nodes with their room, pods with what they ask for, workloads, Services, budgets.

It is read from the objects that `kubectl get -o json` gives. What topology reads anyway comes from there, strictly;
what only a rehearsal needs is read here, and what is missing is assumed and told. Never: guesses in silence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agent.model.finding import Finding
from agent.model.nodes.node import Node
from agent.model.quantity import QuantityError, parse_quantity
from agent.model.selector import LabelSelector
from agent.topology.manifest.facts import FINISHED_PHASES, PodFacts, SelectingService
from agent.topology.manifest.objects import Document, read_manifests
from agent.topology.manifest.pods import DEFAULT_NAMESPACE, WorkloadFacts, read_selector
from agent.topology.manifest.reader import ManifestComplaints, ReadPart

Object = Mapping[str, Any]
Key = tuple[str, str, str]
# What the scheduler takes for a container that asks for nothing, where it ranks nodes.
LEAST_CPU_MILLI, LEAST_MEMORY = 100, 200 << 20
USUAL_PODS = 110
MIRROR = "kubernetes.io/config.mirror"
EXTRA_KINDS = ("PodDisruptionBudget",)


class Room(msgspec.Struct, frozen=True, gc=False):
    """`ranked_*` count at least a little for each container, as the scheduler ranks."""

    cpu_milli: int = 0
    memory: int = 0
    pods: int = 0
    ranked_cpu: int = 0
    ranked_memory: int = 0

    def __add__(self, other: "Room") -> "Room":
        return Room(
            *(a + b for a, b in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True))
        )

    def __sub__(self, other: "Room") -> "Room":
        return Room(
            *(a - b for a, b in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True))
        )


class Host(msgspec.Struct, frozen=True, gc=False):
    node: Node
    room: Room

    @property
    def name(self) -> str:
        return self.node.name


class Member(msgspec.Struct, frozen=True, gc=False):
    """A pod. `workload` is what makes another in its place; None: nobody does. `images` are in the order in which they
    are pulled, `policies` what each is pulled by; `made` is the object, or the template, as it was read."""

    facts: PodFacts
    asks: Room
    is_ready: bool = True
    workload: Key | None = None
    grace_s: int = 30
    is_mirror: bool = False
    images: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    made: Object = {}

    @property
    def key(self) -> str:
        return self.facts.key

    @property
    def node(self) -> str:
        return self.facts.node_name or ""


class Crew(msgspec.Struct, frozen=True, gc=False):
    """A workload. `surge` and `missing`: how many pods more and fewer a change may have."""

    facts: WorkloadFacts
    asks: Room
    replicas: int
    surge: str | int = "25%"
    missing: str | int = "25%"
    grace_s: int = 30
    images: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    made: Object = {}

    @property
    def key(self) -> Key:
        return self.facts.kind, self.facts.template.namespace, self.facts.template.name


class Traffic(msgspec.Struct, frozen=True, gc=False):
    """A Service and how it chooses endpoints."""

    service: SelectingService
    is_internal_local: bool = False
    is_external_local: bool = False
    publishes_unready: bool = False

    @property
    def key(self) -> str:
        return self.service.key


class Guard(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    selector: LabelSelector | None
    least: str | int | None = None
    most_missing: str | int | None = None


class Cluster(msgspec.Struct, frozen=True, gc=False):
    hosts: tuple[Host, ...] = ()
    members: tuple[Member, ...] = ()
    crews: Mapping[Key, Crew] = {}
    traffic: tuple[Traffic, ...] = ()
    guards: tuple[Guard, ...] = ()


class Reading(msgspec.Struct, frozen=True):
    cluster: Cluster
    errors: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def read_cluster(documents: Sequence[Document]) -> Reading:
    flat = [one for document in documents for one in _flattened(document)]
    known = [one for one in flat if one.content.get("kind") not in EXTRA_KINDS]
    found = read_manifests([one.document for one in known], takes_unknown=True)
    raw = {_key(one.content): one for one in flat}
    notes, errors = list(found.notes), list(found.errors)
    owners = _deployments_of(flat)
    cluster = Cluster(
        hosts=tuple(_host(node, raw.get(("Node", "", node.name)), notes) for node in found.nodes),
        members=tuple(
            _member(pod, raw.get(("Pod", pod.namespace, pod.name)), owners, notes)
            for pod in found.pods
            if pod.phase not in FINISHED_PHASES
        ),
        crews=_crews(found.workloads, raw, owners, notes),
        traffic=tuple(_traffic(one, raw.get(("Service", one.namespace, one.name))) for one in found.services),
        guards=tuple(_guard(one, errors) for one in flat if one.content.get("kind") == "PodDisruptionBudget"),
    )
    return Reading(cluster, tuple(errors), tuple(notes))


class _Raw(msgspec.Struct, frozen=True):
    where: str
    content: Object
    wrong: object = None
    """What stands there in the place of an object."""

    @property
    def document(self) -> Document:
        return Document(self.where, self.content or self.wrong)


NO_RAW = _Raw("", {})


def _flattened(document: Document) -> Iterator[_Raw]:
    content = document.content
    if not isinstance(content, Mapping):
        # What is no object at all is told by the reader of manifests.
        yield _Raw(document.where, {}, content)
    elif str(content.get("kind", "")).endswith("List") and isinstance(content.get("items"), list):
        only = str(content["kind"]).removesuffix("List")
        for place, item in enumerate(content["items"]):
            implied = {"kind": only, "apiVersion": content.get("apiVersion")} if only else {}
            whole = {**implied, **item} if isinstance(item, Mapping) else item
            yield from _flattened(Document(f"{document.where} items[{place}]", whole))
    else:
        yield _Raw(document.where, content)


def part(made: Object, *names: str) -> Object:
    for name in names:
        found = made.get(name)
        made = found if isinstance(found, Mapping) else {}
    return made


def _list(made: Object, name: str) -> Sequence[Object]:
    found = made.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _key(made: Object) -> Key:
    metadata = part(made, "metadata")
    kind = str(made.get("kind", ""))
    namespace = "" if kind == "Node" else str(metadata.get("namespace") or DEFAULT_NAMESPACE)
    return kind, namespace, str(metadata.get("name", ""))


def _deployments_of(flat: Iterable[_Raw]) -> dict[Key, Key]:
    """Of ReplicaSets: whose they are."""
    found = {}
    for one in flat:
        key = _key(one.content)
        for owner in _list(part(one.content, "metadata"), "ownerReferences") if key[0] == "ReplicaSet" else ():
            if owner.get("kind") == "Deployment":
                found[key] = ("Deployment", key[1], str(owner.get("name")))
    return found


def _host(node: Node, raw: _Raw | None, notes: list[Finding]) -> Host:
    raw = raw or NO_RAW
    status = part(raw.content, "status")
    given = part(status, "allocatable") or part(status, "capacity")
    memory, pods = _amount(given.get("memory")), _amount(given.get("pods"))
    if memory is None:
        notes.append(Finding(raw.where, "status.allocatable.memory", "missing; memory of this node is not looked at"))
    if pods is None:
        notes.append(Finding(raw.where, "status.allocatable.pods", f"missing; {USUAL_PODS} are assumed"))
    milli = node.cpu.milli() if node.cpu is not None else 0
    return Host(node, Room(milli, memory if memory is not None else 1 << 60, pods or USUAL_PODS, milli, memory or 0))


def _amount(value: object) -> int | None:
    if value is None or isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        return -(-parse_quantity(str(value)).nanos // 10**9)
    except QuantityError:
        return None


def asks_of(spec: Object, where: str, notes: list[Finding]) -> Room:
    """The sum of the containers, or what one init container needs alone."""
    sums = [_of_container(one, where, notes) for one in _list(spec, "containers")]
    sidecars = [one for one in _list(spec, "initContainers") if one.get("restartPolicy") == "Always"]
    sums += [_of_container(one, where, notes) for one in sidecars]
    total = Room()
    for one in sums:
        total = total + one
    firsts = [_of_container(one, where, notes) for one in _list(spec, "initContainers") if one not in sidecars]
    most = [max(values) for values in zip(*map(msgspec.structs.astuple, [total, *firsts]), strict=True)]
    return msgspec.structs.replace(Room(*most), pods=1)


def _of_container(one: Object, where: str, notes: list[Finding]) -> Room:
    resources = part(one, "resources")
    requests = {**part(resources, "limits"), **part(resources, "requests")}
    cpu, memory = 0, 0
    for name in ("cpu", "memory"):
        value = requests.get(name)
        if value is None:
            continue
        try:
            quantity = parse_quantity(str(value))
        except QuantityError as error:
            notes.append(Finding(where, f"resources.requests.{name}", f"{error}; it counts as 0"))
            continue
        cpu, memory = (quantity.milli(), memory) if name == "cpu" else (cpu, -(-quantity.nanos // 10**9))
    return Room(cpu, memory, 0, cpu or LEAST_CPU_MILLI, memory or LEAST_MEMORY)


def _member(pod: PodFacts, raw: _Raw | None, owners: Mapping[Key, Key], notes: list[Finding]) -> Member:
    raw = raw or NO_RAW
    conditions = {str(one.get("type")): one.get("status") for one in _list(part(raw.content, "status"), "conditions")}
    owner = (pod.owner[0], pod.namespace, pod.owner[1]) if pod.owner is not None else None
    spec = part(raw.content, "spec")
    return Member(
        facts=pod,
        asks=asks_of(spec, raw.where, notes),
        is_ready=conditions.get("Ready", "True" if pod.node_name else "False") == "True" and not pod.is_terminating,
        workload=owners.get(owner, owner) if owner is not None else None,
        grace_s=_grace(spec),
        is_mirror=MIRROR in part(raw.content, "metadata", "annotations"),
    )


def _grace(spec: Object) -> int:
    found = spec.get("terminationGracePeriodSeconds")
    return found if isinstance(found, int) else 30


def _crews(
    workloads: Iterable[WorkloadFacts], raw: Mapping[Key, _Raw], owners: Mapping[Key, Key], notes: list[Finding]
) -> dict[Key, Crew]:
    found = {}
    for one in workloads:
        key = (one.kind, one.template.namespace, one.template.name)
        if key in owners:
            continue
        made = raw.get(key, NO_RAW)
        spec = part(made.content, "spec")
        strategy = part(spec, "strategy") or part(spec, "updateStrategy")
        rolling = part(strategy, "rollingUpdate")
        is_recreated = strategy.get("type") == "Recreate"
        inner = part(spec, "template", "spec")
        found[key] = Crew(
            facts=one,
            asks=asks_of(inner, made.where, notes),
            replicas=1 if one.replicas is None else one.replicas,
            surge=0 if is_recreated else rolling.get("maxSurge", "25%" if one.kind == "Deployment" else 0),
            missing="100%" if is_recreated else rolling.get("maxUnavailable", "25%" if one.kind == "Deployment" else 1),
            grace_s=_grace(inner),
        )
    return found


def _traffic(service: SelectingService, raw: _Raw | None) -> Traffic:
    spec = part((raw or NO_RAW).content, "spec")
    return Traffic(
        service,
        spec.get("internalTrafficPolicy") == "Local",
        spec.get("externalTrafficPolicy") == "Local",
        spec.get("publishNotReadyAddresses") is True,
    )


def _guard(raw: _Raw, errors: list[Finding]) -> Guard:
    _, namespace, name = _key(raw.content)
    complaints = ManifestComplaints(raw.where, takes_unknown=True)
    spec = ReadPart(complaints, "spec", part(raw.content, "spec"), None)
    selector = read_selector(spec, "selector")
    errors += complaints.errors
    given = part(raw.content, "spec")
    return Guard(namespace, name, selector, given.get("minAvailable"), given.get("maxUnavailable"))


def overlaid(documents: Sequence[Document], edited: Sequence[Document]) -> list[Document]:
    """With the edited objects in the place of those that have their names."""
    new = [one for document in edited for one in _flattened(document)]
    names = {_key(one.content) for one in new}
    old = [one for document in documents for one in _flattened(document) if _key(one.content) not in names]
    return [one.document for one in (*old, *new)]
