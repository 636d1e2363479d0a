# SPDX-License-Identifier: Apache-2.0
"""Reads a cluster from the objects that `kubectl get -o json` gives.

What topology reads anyway comes from there, strictly; what only a rehearsal needs is read here, and what is missing is
assumed and told. Never: guesses in silence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from agent.model.finding import Finding, shown
from agent.model.images.reference import default_policy
from agent.model.nodes.node import Node
from agent.model.quantity import QuantityError, parse_quantity
from agent.topology.hints.slices import Endpoint, Slice
from agent.topology.manifest.facts import FINISHED_PHASES, PodFacts, SelectingService
from agent.topology.manifest.objects import FAMILIES, VERSIONS, Document, Manifests, read_manifests
from agent.topology.manifest.pods import DEFAULT_NAMESPACE, WorkloadFacts, read_selector
from agent.topology.manifest.reader import ManifestComplaints, ReadPart
from kepd_rehearsal.plan.cluster import (
    HASH_LABEL,
    MOST_REPLICAS,
    Cluster,
    Crew,
    Guard,
    Host,
    Key,
    Member,
    Object,
    Room,
    Traffic,
    hashed,
    part,
)
from kepd_rehearsal.plan.neighbours import read_neighbours

# What the scheduler takes for a container that asks for nothing, where it ranks nodes.
LEAST_CPU_MILLI, LEAST_MEMORY = 100, 200 << 20
USUAL_PODS = 110
MIRROR = "kubernetes.io/config.mirror"
EXTRA_KINDS = ("PodDisruptionBudget",)


class Reading(msgspec.Struct, frozen=True):
    cluster: Cluster
    errors: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def read_cluster(documents: Sequence[Document]) -> Reading:
    notes: list[Finding] = []
    flat = [one for document in documents for one in _flattened(document) if not _is_foreign(one, notes)]
    known = [one for one in flat if one.content.get("kind") not in EXTRA_KINDS]
    found = read_manifests([one.document for one in known], takes_unknown=True)
    raw = {_key(one.content): one for one in flat}
    errors = list(found.errors)
    notes += found.notes
    owners = _deployments_of(flat)
    hashes = _hashes(flat, owners)
    crews = _crews(found.workloads, raw, owners, notes, errors)
    cluster = Cluster(
        hosts=tuple(_host(node, raw.get(("Node", "", node.name)), notes) for node in found.nodes),
        members=tuple(
            _member(pod, raw.get(("Pod", pod.namespace, pod.name)), owners, notes)
            for pod in found.pods
            if pod.phase not in FINISHED_PHASES
        ),
        crews={key: hashed(one, hashes[key]) if key in hashes else one for key, one in crews.items()},
        traffic=tuple(_traffic(one, raw.get(("Service", one.namespace, one.name))) for one in found.services),
        guards=tuple(_guard(one, errors) for one in flat if one.content.get("kind") == "PodDisruptionBudget"),
        slices=_slices(found, notes),
        unhinted=frozenset(
            f"{one.namespace}/{one.service}"
            for one in found.slices
            if not _is_stored(raw, one.namespace, one.slice.name)
        ),
    )
    return Reading(cluster, tuple(errors), tuple(notes))


def _is_foreign(one: "_Raw", notes: list[Finding]) -> bool:
    """Others have kinds by these names too."""
    kind, version = one.content.get("kind"), one.content.get("apiVersion")
    expected = {**VERSIONS, "PodDisruptionBudget": "policy/v1"}.get(str(kind))
    if expected is None or not isinstance(version, str) or group_of(version) == group_of(expected):
        return False
    notes.append(Finding(one.where, "apiVersion", f"{shown(version)} {kind} is another kind; it is not looked at"))
    return True


def group_of(version: str) -> str:
    return version.rpartition("/")[0]


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


def listed_in(made: Object, name: str) -> Sequence[Object]:
    found = made.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _key(made: Object) -> Key:
    metadata = part(made, "metadata")
    kind = str(made.get("kind", ""))
    namespace = "" if kind == "Node" else str(metadata.get("namespace") or DEFAULT_NAMESPACE)
    return kind, namespace, str(metadata.get("name", ""))


def _hashes(flat: Iterable[_Raw], owners: Mapping[Key, Key]) -> dict[Key, str]:
    """Of Deployments, what the pods of their present ReplicaSet are told apart by."""
    found: dict[Key, tuple[int, int, str]] = {}
    for one in flat:
        owner = owners.get(_key(one.content))
        metadata, count = part(one.content, "metadata"), part(one.content, "spec").get("replicas")
        value = part(metadata, "labels").get(HASH_LABEL)
        revision = str(part(metadata, "annotations").get("deployment.kubernetes.io/revision", ""))
        if owner is not None and isinstance(value, str):
            rank = (int(revision) if revision.isdecimal() else 0, count if isinstance(count, int) else 0, value)
            found[owner] = max(rank, found.get(owner, rank))
    return {key: value for key, (_, _, value) in found.items()}


def _deployments_of(flat: Iterable[_Raw]) -> dict[Key, Key]:
    """Of ReplicaSets: whose they are."""
    found = {}
    for one in flat:
        key = _key(one.content)
        for owner in listed_in(part(one.content, "metadata"), "ownerReferences") if key[0] == "ReplicaSet" else ():
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
    room = Room(
        milli, memory if memory is not None else 1 << 60, USUAL_PODS if pods is None else pods, milli, memory or 0
    )
    return Host(node, room, listed_in(status, "images"))


def _amount(value: object) -> int | None:
    if value is None or isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        return -(-parse_quantity(str(value)).nanos // 10**9)
    except QuantityError:
        return None


def asks_of(spec: Object, where: str, notes: list[Finding]) -> Room:
    """The sum of the containers and sidecars, or what one init container needs beside the sidecars before it; what the
    pod as a whole asks for comes before both, and overhead is added."""
    total, most = Room(), Room()
    for one in listed_in(spec, "containers"):
        total += _of_container(one, where, notes)
    beside = Room()
    for one in listed_in(spec, "initContainers"):
        asks = _of_container(one, where, notes)
        most = _most(most, beside + asks)
        if one.get("restartPolicy") == "Always":
            beside, total = beside + asks, total + asks
    found = _most(most, total)
    if part(spec, "resources"):
        found = _of_pod(_of_container(spec, where, notes), part(spec, "resources"), found)
    overhead = _of_container({"resources": {"requests": part(spec, "overhead")}}, where, notes)
    found += replace(overhead, ranked_cpu=overhead.cpu_milli, ranked_memory=overhead.memory)
    return replace(found, pods=1)


def _most(one: Room, other: Room) -> Room:
    return Room(*map(max, zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)))


def _of_pod(whole: Room, resources: Object, containers: Room) -> Room:
    asked = {**part(resources, "limits"), **part(resources, "requests")}
    cpu = ("cpu_milli", "ranked_cpu") if "cpu" in asked else ()
    memory = ("memory", "ranked_memory") if "memory" in asked else ()
    return replace(containers, **{name: getattr(whole, name) for name in (*cpu, *memory)})


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
    conditions = {
        str(one.get("type")): one.get("status") for one in listed_in(part(raw.content, "status"), "conditions")
    }
    owner = (pod.owner[0], pod.namespace, pod.owner[1]) if pod.owner is not None else None
    spec = part(raw.content, "spec")
    return Member(
        facts=pod,
        asks=asks_of(spec, raw.where, notes),
        is_ready=conditions.get("Ready", "True" if pod.node_name else "False") == "True" and not pod.is_terminating,
        workload=owners.get(owner, owner) if owner is not None else None,
        grace_s=_grace(spec),
        is_mirror=MIRROR in part(raw.content, "metadata", "annotations"),
        images=tuple(images := dict(_images(spec))),
        policies=tuple(images.values()),
        made=raw.content,
        neighbours=read_neighbours(spec, pod, raw.where, notes),
    )


def _images(spec: Object) -> Iterator[tuple[str, str]]:
    """With their policies. Those that are mounted come first, then containers as they start."""
    for one in listed_in(spec, "volumes"):
        if (name := part(one, "image").get("reference")) is not None:
            yield str(name), _policy(part(one, "image").get("pullPolicy"), str(name))
    for field in ("initContainers", "containers"):
        for one in listed_in(spec, field):
            if (name := one.get("image")) is not None:
                yield str(name), _policy(one.get("imagePullPolicy"), str(name))


def _policy(given: object, image: str) -> str:
    return given if isinstance(given, str) and given else _usual_policy(image)


_usual_policy = lru_cache(maxsize=4096)(default_policy)


def _grace(spec: Object) -> int:
    found = spec.get("terminationGracePeriodSeconds")
    return found if isinstance(found, int) else 30


def _crews(
    workloads: Iterable[WorkloadFacts],
    raw: Mapping[Key, _Raw],
    owners: Mapping[Key, Key],
    notes: list[Finding],
    errors: list[Finding],
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
        usual = "25%" if one.kind == "Deployment" else 0
        found[key] = Crew(
            facts=one,
            asks=asks_of(inner, made.where, notes),
            replicas=_replicas(one, made.where, errors),
            counts_itself=one.replicas is not None,
            is_paused=spec.get("paused") is True,
            keeps_order=one.kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel",
            is_on_delete=strategy.get("type") == "OnDelete",
            partition=_whole(rolling.get("partition")),
            first_ordinal=_whole(part(spec, "ordinals").get("start")),
            surge=0 if is_recreated else _share_in(rolling, "maxSurge", made.where, notes, usual) or 0,
            missing="100%"
            if is_recreated
            else _share_in(rolling, "maxUnavailable", made.where, notes, usual or 1) or 0,
            grace_s=_grace(inner),
            images=tuple(images := dict(_images(inner))),
            policies=tuple(images.values()),
            made=part(spec, "template"),
            neighbours=read_neighbours(inner, one.template, made.where, notes),
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


def _slices(found: Manifests, notes: list[Finding]) -> dict[str, tuple[Slice, ...]]:
    """By Service those of one family, since pods have their addresses together. `target` is the pod, if it is known."""
    pods = {one.key for one in found.pods}
    selecting = {one.key for one in found.services if one.selector}
    by_family: dict[str, dict[str, list[Slice]]] = {}
    for one in found.slices:
        endpoints = tuple(replace(each, target=_pod_of(each, pods)) for each in one.slice.endpoints)
        service = by_family.setdefault(f"{one.namespace}/{one.service}", {})
        service.setdefault(one.family, []).append(Slice(one.slice.name, endpoints))
        unknown = sum(each.target is None for each in endpoints)
        if unknown and f"{one.namespace}/{one.service}" in selecting:
            where = f"{one.namespace}/{one.slice.name}"
            notes.append(
                Finding(where, "endpoints", f"{unknown} are of no pod that is given; they stay with their node")
            )
    return {key: tuple(families[min(families, key=FAMILIES.index)]) for key, families in by_family.items()}


def _is_stored(raw: Mapping[Key, _Raw], namespace: str, name: str) -> bool:
    """An API server had it; one that was written by hand got no hints from anybody yet."""
    return "resourceVersion" in part(raw["EndpointSlice", namespace, name].content, "metadata")


def _pod_of(endpoint: Endpoint, pods: AbstractSet[str]) -> str | None:
    kind, _, rest = (endpoint.target or "").partition("/")
    key = "/".join(rest.split("/")[:2])
    return key if kind == "Pod" and key in pods else None


def _replicas(one: WorkloadFacts, where: str, errors: list[Finding]) -> int:
    count = 1 if one.replicas is None else one.replicas
    if 0 <= count <= MOST_REPLICAS:
        return count
    errors.append(Finding(where, "spec.replicas", f"{count} is more than is rehearsed; expected 0 to {MOST_REPLICAS}"))
    return 0


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _guard(raw: _Raw, errors: list[Finding]) -> Guard:
    _, namespace, name = _key(raw.content)
    complaints = ManifestComplaints(raw.where, takes_unknown=True)
    spec = ReadPart(complaints, "spec", part(raw.content, "spec"), None)
    selector = read_selector(spec, "selector")
    errors += complaints.errors
    given = part(raw.content, "spec")
    least, most = (_share_in(given, name, raw.where, errors, None) for name in ("minAvailable", "maxUnavailable"))
    return Guard(namespace, name, selector, least, most, given.get("unhealthyPodEvictionPolicy") == "AlwaysAllow")


def _share_in(made: Object, name: str, where: str, found: list[Finding], usual: str | int | None) -> str | int | None:
    """A number of pods or a percentage; `usual` where there is none."""
    value = made.get(name)
    if value is None:
        return usual
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.endswith("%") and value[:-1].isdigit():
        return value
    found.append(Finding(where, name, f"{shown(value)} is not valid here; expected a number of pods or a percentage"))
    return usual
