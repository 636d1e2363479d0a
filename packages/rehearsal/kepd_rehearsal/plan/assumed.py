# SPDX-License-Identifier: Apache-2.0
"""Pods that files do not have although their workloads would: a directory of plain manifests has none at all.

They are taken to be there, where the scheduler would have put them, and that is told. A workload that an API server
wrote says in its status how many pods it has; else it is as many as it shall have. Pods of a Deployment whose
ReplicaSets are missing are told to be its own by their labels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.model.selector import Matcher, compile_selector
from agent.topology.manifest.objects import Document
from agent.topology.manifest.pods import DEFAULT_NAMESPACE
from kepd_rehearsal.plan.changes import SCALED, daemon_on, made_for, takes_daemon
from kepd_rehearsal.plan.cluster import Cluster, Crew, Key, Member, part
from kepd_rehearsal.plan.scheduling import Floor, place

MOST_TOLD = 5


def with_assumed(cluster: Cluster, documents: Sequence[Document]) -> tuple[Cluster, list[str]]:
    """And what is assumed, in words."""
    cluster = _adopted(cluster)
    counts, own = dict(_counts(documents)), Counter(one.workload for one in cluster.members)
    floor, notes = Floor(cluster.hosts, [one for one in cluster.members if not _is_unplaced(one)]), []
    taken = {one.key for one in cluster.members}
    for crew in cluster.crews.values():
        made = _missing(cluster, crew, own[crew.key], counts, taken)
        if made:
            placed = [_put(cluster, floor, one, crew) for one in made]
            taken |= {one.key for one in made}
            notes.append(_told(f"{crew.key[1]}/{crew.key[2]}", len(made), sum(not one.node for one in placed)))
    for one in filter(_is_unplaced, cluster.members):
        is_placed = bool(_put(cluster, floor, one, None).node)
        notes.append(f"{one.key} has no node in the files; it {'is taken as placed' if is_placed else 'fits nowhere'}")
    if len(notes) > MOST_TOLD:
        notes[MOST_TOLD:] = [f"and so for {len(notes) - MOST_TOLD} more workloads and pods"]
    return replace(cluster, members=tuple(floor.members.values())), notes


def _told(what: str, count: int, lost: int) -> str:
    if count == 1:
        return f"a pod of {what} is not in the files; it {'fits nowhere' if lost else 'is taken as placed'}"
    more = f", {lost} of them on no node" if lost else ""
    return f"{count} pods of {what} are not in the files; they are taken as placed{more}"


def _adopted(cluster: Cluster) -> Cluster:
    """With pods of ReplicaSets that are not given as those of the Deployment that chooses them."""
    by_namespace: dict[str, list[tuple[Key, Matcher]]] = {}
    for key, crew in cluster.crews.items():
        if key[0] == "Deployment":
            by_namespace.setdefault(key[1], []).append((key, compile_selector(crew.facts.selector)))
    members = []
    for one in cluster.members:
        if one.workload is not None and one.workload[0] == "ReplicaSet" and one.workload not in cluster.crews:
            known = by_namespace.get(one.facts.namespace, ())
            found = next((key for key, chosen in known if chosen.matches(one.facts.labels)), one.workload)
            members.append(replace(one, workload=found))
        else:
            members.append(one)
    return replace(cluster, members=tuple(members))


def _is_unplaced(one: Member) -> bool:
    """A pod that nobody has seen yet; one that waits for a node has a phase."""
    return not one.node and not one.facts.phase


def _put(cluster: Cluster, floor: Floor, member: Member, crew: Crew | None) -> Member:
    placed, _ = place(cluster, floor, member, crew)
    placed = replace(placed, is_ready=bool(placed.node))
    floor.put(placed)
    return placed


def _missing(cluster: Cluster, crew: Crew, own: int, counts: Mapping[Key, int], taken: set[str]) -> tuple[Member, ...]:
    kind = crew.key[0]
    if kind in SCALED:
        return made_for(crew, counts.get(crew.key, crew.replicas) - own, taken, "assumed")
    if kind != "DaemonSet" or own:
        return ()
    return tuple(daemon_on(crew, host.node) for host in cluster.hosts if takes_daemon(crew, host.node))


def _counts(documents: Iterable[Document]) -> Iterator[tuple[Key, int]]:
    """Of workloads that an API server wrote, how many pods they had."""
    for document in documents:
        content = document.content if isinstance(document.content, Mapping) else {}
        items = content.get("items")
        if isinstance(items, list):
            yield from _counts(Document("", one) for one in items)
        count, metadata = part(content, "status").get("replicas"), part(content, "metadata")
        if "observedGeneration" in part(content, "status"):
            namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE)
            key = str(content.get("kind")), namespace, str(metadata.get("name"))
            yield key, count if isinstance(count, int) else 0
