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

from agent.model.nodes.node import Node
from agent.model.selector import LabelSelector, Matcher
from agent.topology.manifest.facts import PodFacts
from agent.topology.rehearsal.cluster import Cluster, Crew, Host, Key, Member, Room
from agent.topology.spread.constraints import prepare_constraints
from agent.topology.spread.filter import NodeVerdict, SpreadQuestion, count_pods, evaluate_prepared
from agent.topology.spread.placement import stand, tolerates

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


class _Kind:
    """Pods of one template: how nodes stand towards them, and where those are that their constraints count."""

    def __init__(self, question: SpreadQuestion) -> None:
        self.question = question
        self.prepared = prepare_constraints(
            question.pod, question.services, question.defaulting, question.owner_selector
        )
        self.standings = [stand(question.pod, node) for node in question.nodes]
        self.disliked = {one.name: _disliked(question.pod, one) for one in question.nodes}
        self.most_disliked = 0
        self.ranks: dict[str, int] = {}
        """Of nodes on which nothing has changed since."""
        self.counts: dict[Matcher, dict[str, int]] = {}
        if self.prepared.hard_error is None:
            matchers = {one.matcher for one in self.prepared.hard + self.prepared.soft}
            self.counts = count_pods(question, self.standings, matchers)

    def note(self, pod: PodFacts, step: int) -> None:
        self.ranks.pop(pod.node_name or "", None)
        if pod.node_name and pod.namespace == self.question.pod.namespace and not pod.is_terminating:
            for matcher, by_node in self.counts.items():
                if not matcher.is_empty and matcher.matches(pod.labels):
                    by_node[pod.node_name] = by_node.get(pod.node_name, 0) + step


class Floor:
    """What is taken on each node while pods are placed."""

    def __init__(self, hosts: Iterable[Host], members: Iterable[Member]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.used: dict[str, Room] = dict.fromkeys(self.hosts, Room())
        self.members: dict[str, Member] = {}
        self._kinds: dict[Key | None, _Kind] = {}
        self._by_label: dict[tuple[str, str, str], dict[str, Member]] = {}
        for one in members:
            self.put(one)

    def put(self, member: Member) -> None:
        self.members[member.key] = member
        for pair in member.facts.labels.items():
            self._by_label.setdefault((member.facts.namespace, *pair), {})[member.key] = member
        if member.node in self.used:
            self.used[member.node] += member.asks
        for kind in self._kinds.values():
            kind.note(member.facts, 1)

    def take(self, key: str) -> Member:
        member = self.members.pop(key)
        for pair in member.facts.labels.items():
            self._by_label[member.facts.namespace, *pair].pop(key, None)
        if member.node in self.used:
            self.used[member.node] -= member.asks
        for kind in self._kinds.values():
            kind.note(member.facts, -1)
        return member

    def kind_of(self, cluster: Cluster, member: Member, crew: Crew | None) -> _Kind:
        key = member.workload if crew is not None else ("Pod", member.facts.namespace, member.facts.name)
        if key not in self._kinds:
            question = SpreadQuestion(
                member.facts,
                tuple(host.node for host in self.hosts.values()),
                tuple(one.facts for one in self._near(member.facts)),
                tuple(one.service for one in cluster.traffic),
                owner_selector=_selector_of(crew),
            )
            self._kinds[key] = _Kind(question)
        return self._kinds[key]

    def _near(self, pod: PodFacts) -> Iterable[Member]:
        """Those that its constraints may count. Where each asks for a label of the pod, they have that label too."""
        written = [one.label_selector for one in pod.constraints]
        if not pod.labels or any(one is None or not one.match_labels.items() & pod.labels.items() for one in written):
            return self.members.values()
        shared = [self._by_label.get((pod.namespace, *pair), {}) for pair in pod.labels.items()]
        return {key: one for some in shared for key, one in some.items()}.values()

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
    kind = floor.kind_of(cluster, member, crew)
    if kind.prepared.hard_error is not None:
        return member, Placed(member.key, why=f"its constraints cannot be used: {kind.prepared.hard_error}")
    result = evaluate_prepared(kind.question, kind.prepared, kind.standings, kind.counts)
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
    scores = _scores(member.asks, floor, kind, fitting, spread)
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


def _scores(asks: Room, floor: Floor, kind: _Kind, names: list[str], spread: Mapping[str, int]) -> dict[str, int]:
    most = max(kind.disliked[name] for name in names)
    if most != kind.most_disliked:
        kind.ranks.clear()
        kind.most_disliked = most
    found = {}
    for name in names:
        rank = kind.ranks.get(name)
        if rank is None:
            after, room = floor.used[name] + asks, floor.hosts[name].room
            taints = BEST if not most else BEST - BEST * kind.disliked[name] // most
            rank = kind.ranks[name] = TAINT_WEIGHT * taints + _free(after, room) + _balance(after, room)
        found[name] = SPREAD_WEIGHT * spread.get(name, 0) + rank
    return found


def _disliked(pod: PodFacts, node: Node) -> int:
    return sum(
        one.effect == "PreferNoSchedule" and not any(tolerates(each, one) for each in pod.tolerations)
        for one in node.taints
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
