# SPDX-License-Identifier: Apache-2.0
"""Where pods go that wait for a node, one after the other, as the scheduler decides it.

Looked at: cordons, taints, required node affinity, topology spread, CPU, memory and the number of pods; ranked by
spread, taints that are only disliked, free room, and balance of it. `NOT_LOOKED_AT` names the rest. Of nodes that rank
alike the scheduler takes any; here it is the first by name, and `is_tied` says so. Source of behaviour: the default
plugins of the scheduler and their weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.model.selector import LabelSelector
from agent.topology.manifest.facts import PodFacts
from agent.topology.rehearsal.cluster import Cluster, Crew, Host, Member, Room
from agent.topology.spread.filter import NodeVerdict, SpreadQuestion, evaluate_spread
from agent.topology.spread.placement import tolerates

NOT_LOOKED_AT = (
    "host ports", "volumes", "affinity between pods", "preferred node affinity", "images on nodes", "preemption",
    "devices and extended resources", "schedulers of other names",
)  # fmt: skip
SPREAD_WEIGHT, TAINT_WEIGHT = 2, 3
BEST = 100
REASONS = {
    "unschedulable": "cordoned", "taint": "have a taint that it does not tolerate",
    "affinity": "do not match its affinity",
    "missing-label": "lack a label of its spread constraint", "skew": "would exceed maxSkew", "room": "",
}  # fmt: skip


class Placed(msgspec.Struct, frozen=True, gc=False):
    """`node` empty: nowhere; then `why` says what keeps it from how many nodes."""

    pod: str
    node: str = ""
    is_tied: bool = False
    why: str = ""


class Floor:
    """What is taken on each node while pods are placed."""

    def __init__(self, hosts: Iterable[Host], members: Iterable[Member]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.used: dict[str, Room] = dict.fromkeys(self.hosts, Room())
        self.members: dict[str, Member] = {}
        for one in members:
            self.put(one)

    def put(self, member: Member) -> None:
        self.members[member.key] = member
        if member.node in self.used:
            self.used[member.node] += member.asks

    def take(self, key: str) -> Member:
        member = self.members.pop(key)
        if member.node in self.used:
            self.used[member.node] -= member.asks
        return member

    def lacks(self, asks: Room, host: Host) -> str:
        """What a node has too little of."""
        used, room = self.used[host.name], host.room
        if used.pods + 1 > room.pods:
            return "pods"
        if asks.cpu_milli and used.cpu_milli + asks.cpu_milli > room.cpu_milli:
            return "CPU"
        if asks.memory and used.memory + asks.memory > room.memory:
            return "memory"
        return ""


def place(cluster: Cluster, floor: Floor, member: Member, crew: Crew | None) -> tuple[Member, Placed]:
    """The pod where it goes; the caller puts it there."""
    if crew is not None and crew.facts.kind == "DaemonSet" and member.node:
        return member, Placed(member.key, member.node)
    question = SpreadQuestion(
        member.facts,
        tuple(host.node for host in floor.hosts.values()),
        tuple(one.facts for one in floor.members.values()),
        tuple(one.service for one in cluster.traffic),
        owner_selector=_selector_of(crew),
    )
    result = evaluate_spread(question)
    if result.prefilter == "Error":
        return member, Placed(member.key, why=f"its constraints cannot be used: {result.prepared.hard_error}")
    excluded: Counter[str] = Counter(one.excluded_by for one in result.nodes if one.excluded_by != "ok")
    lacking: Counter[str] = Counter()
    fitting = []
    for name in result.candidates:
        what = floor.lacks(member.asks, floor.hosts[name])
        if what:
            lacking[what] += 1
        else:
            fitting.append(name)
    if not fitting:
        return member, Placed(member.key, why=_why(result.nodes, excluded, lacking))
    spread = result.score.normalized if result.score is not None else {}
    scores = _scores(member, floor, fitting, spread)
    best = max(scores.values())
    chosen = sorted(name for name, score in scores.items() if score == best)
    facts = msgspec.structs.replace(member.facts, node_name=chosen[0])
    return msgspec.structs.replace(member, facts=facts), Placed(member.key, chosen[0], len(chosen) > 1)


def _selector_of(crew: Crew | None) -> LabelSelector | None:
    return crew.facts.selector if crew is not None and crew.facts.kind != "DaemonSet" else None


def _why(nodes: tuple[NodeVerdict, ...], excluded: Mapping[str, int], lacking: Mapping[str, int]) -> str:
    parts = [f"{count} {REASONS[reason]}" for reason, count in excluded.items()]
    parts += [f"{count} have too little {what}" for what, count in lacking.items()]
    return f"0 of {len(nodes)} nodes: {', '.join(parts) or 'there is none'}"


def _scores(member: Member, floor: Floor, names: list[str], spread: Mapping[str, int]) -> dict[str, int]:
    disliked = {name: _disliked(member.facts, floor.hosts[name]) for name in names}
    most = max(disliked.values())
    found = {}
    for name in names:
        taints = BEST if not most else BEST - BEST * disliked[name] // most
        after = floor.used[name] + member.asks
        room = floor.hosts[name].room
        found[name] = (
            SPREAD_WEIGHT * spread.get(name, 0) + TAINT_WEIGHT * taints + _free(after, room) + _balance(after, room)
        )
    return found


def _disliked(pod: PodFacts, host: Host) -> int:
    return sum(
        one.effect == "PreferNoSchedule" and not any(tolerates(each, one) for each in pod.tolerations)
        for one in host.node.taints
    )


def _free(used: Room, room: Room) -> int:
    """Least allocated first, CPU and memory alike."""
    pairs = ((used.ranked_cpu, room.ranked_cpu), (used.ranked_memory, room.ranked_memory))
    scores = [(total - min(taken, total)) * BEST // total for taken, total in pairs if total]
    return sum(scores) // len(scores) if scores else 0


def _balance(used: Room, room: Room) -> int:
    if not room.ranked_cpu or not room.ranked_memory:
        return BEST
    cpu = min(used.cpu_milli / room.ranked_cpu, 1.0)
    memory = min(used.memory / room.ranked_memory, 1.0)
    return int((1 - abs(cpu - memory) / 2) * BEST)
