# SPDX-License-Identifier: Apache-2.0
"""Where pods go that wait for a node, one after the other, as the scheduler decides it.

Looked at: cordons, taints, affinity to nodes and between pods, topology spread, CPU, memory and the number of pods;
ranked by spread, taints that are only disliked, nodes and pods that are only preferred, free room, and balance of it.
`NOT_LOOKED_AT` names the rest. Of nodes that rank alike the scheduler takes any; here it is the first by name, and
`is_tied` says so. Source of behaviour: the default plugins of the scheduler and their weights, 1.36.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.model.nodes.node import Node
from agent.model.selector import LabelSelector, Matcher
from agent.topology.manifest.facts import PodFacts
from agent.topology.spread.constraints import prepare_constraints
from agent.topology.spread.filter import NodeVerdict, SpreadQuestion, count_pods, evaluate_prepared
from agent.topology.spread.placement import stand, term_holds, tolerates
from kepd_rehearsal.plan.cluster import HASH_LABEL, Cluster, Crew, Host, Key, Member, Room, part
from kepd_rehearsal.plan.neighbours import NOBODY, Surroundings

NOT_LOOKED_AT = (
    "host ports", "volumes", "images on nodes", "preemption", "ephemeral storage", "devices and extended resources",
    "labels of namespaces", "schedulers of other names",
    "that a scheduler ranks a part of the nodes where there are over 100",
)  # fmt: skip
SPREAD_WEIGHT, TAINT_WEIGHT, AFFINITY_WEIGHT, NEIGHBOUR_WEIGHT = 2, 3, 2, 2
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
    has_waited: bool = False
    """Before the change already."""


class _Kind:
    """Pods of one template: how nodes stand towards them, and where those are that their constraints count."""

    def __init__(self, question: SpreadQuestion, attitude: "_Attitude", around: Surroundings, heard: int) -> None:
        self.question, self.attitude, self.around, self.heard = question, attitude, around, heard
        self.prepared = prepare_constraints(
            question.pod, question.services, question.defaulting, question.owner_selector
        )
        self.counts: dict[Matcher, dict[str, int]] = {}
        if self.prepared.hard_error is None:
            matchers = {one.matcher for one in self.prepared.hard + self.prepared.soft}
            self.counts = count_pods(question, attitude.standings, matchers)

    def hear(self, moves: Sequence[tuple[Member, int]], hosts: Mapping[str, Host]) -> None:
        """What came and went since it was asked last."""
        for member, step in moves[self.heard :]:
            pod, host = member.facts, hosts.get(member.node)
            if host is None:
                continue
            self.around.note(pod, member.neighbours, host.node.labels, step)
            if pod.namespace == self.question.pod.namespace and not pod.is_terminating:
                for matcher, by_node in self.counts.items():
                    if not matcher.is_empty and matcher.matches(pod.labels):
                        by_node[host.name] = by_node.get(host.name, 0) + step
        self.heard = len(moves)


class _Attitude:
    """How nodes stand towards pods that ask the same of them and put up with the same."""

    def __init__(self, pod: PodFacts, nodes: Sequence[Node]) -> None:
        self.standings = [stand(pod, node) for node in nodes]
        self.disliked = {one.name: _disliked(pod, one) for one in nodes}
        self.liked = {one.name: _liked(pod, one) for one in nodes}
        self.verdicts: tuple[NodeVerdict, ...] = ()
        """As long as no constraint has a say."""


class Floor:
    """What is taken on each node while pods are placed."""

    def __init__(self, hosts: Iterable[Host], members: Iterable[Member]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.used: dict[str, Room] = dict.fromkeys(self.hosts, Room())
        self.members: dict[str, Member] = {}
        self._waiting: dict[str, None] = {}
        self._moves: list[tuple[Member, int]] = []
        self._with_terms: dict[str, Member] = {}
        self._ranks: dict[Room, dict[str, int]] = {}
        self._attitudes: dict[object, _Attitude] = {}
        self.nodes = tuple(host.node for host in self.hosts.values())
        self._kinds: dict[tuple[Key | None, str | None], _Kind] = {}
        self._by_label: dict[tuple[str, str, str], dict[str, Member]] = {}
        for one in members:
            self.put(one)

    def put(self, member: Member) -> None:
        self.members[member.key] = member
        if member.neighbours is not NOBODY:
            self._with_terms[member.key] = member
        if member.node:
            self._waiting.pop(member.key, None)
        else:
            self._waiting[member.key] = None
        for pair in member.facts.labels.items():
            self._by_label.setdefault((member.facts.namespace, *pair), {})[member.key] = member
        if member.node in self.used:
            self.used[member.node] += member.asks
            self._forget(member.node)
        self._moves.append((member, 1))

    def take(self, key: str) -> Member:
        member = self.members.pop(key)
        self._waiting.pop(key, None)
        self._with_terms.pop(key, None)
        for pair in member.facts.labels.items():
            self._by_label[member.facts.namespace, *pair].pop(key, None)
        if member.node in self.used:
            self.used[member.node] -= member.asks
            self._forget(member.node)
        self._moves.append((member, -1))
        return member

    def _forget(self, node: str) -> None:
        for ranks in self._ranks.values():
            ranks.pop(node, None)

    def waiting(self) -> list[Member]:
        """Those without a node."""
        return [self.members[key] for key in self._waiting]

    def kind_of(self, cluster: Cluster, member: Member, crew: Crew | None) -> _Kind:
        own = member.workload if crew is not None else ("Pod", member.facts.namespace, member.facts.name)
        key = own, member.facts.labels.get(HASH_LABEL)
        if key not in self._kinds:
            question = SpreadQuestion(
                member.facts,
                self.nodes,
                tuple(one.facts for one in self._near(member.facts)),
                tuple(one.service for one in cluster.traffic),
                owner_selector=_selector_of(crew),
            )
            around = self._around(member)
            self._kinds[key] = _Kind(question, self._attitude_of(member.facts), around, len(self._moves))
        self._kinds[key].hear(self._moves, self.hosts)
        return self._kinds[key]

    def _around(self, member: Member) -> Surroundings:
        found = Surroundings(member.neighbours, member.facts)
        known = self._with_terms if member.neighbours is NOBODY else self.members
        for one in known.values():
            if one.node in self.hosts and one.key != member.key:
                found.note(one.facts, one.neighbours, self.hosts[one.node].node.labels, 1)
        return found

    def _attitude_of(self, pod: PodFacts) -> _Attitude:
        key = pod.tolerations, tuple(sorted(pod.node_selector.items())), pod.required_terms, pod.preferred_terms
        if key not in self._attitudes:
            self._attitudes[key] = _Attitude(pod, self.nodes)
        return self._attitudes[key]

    def _near(self, pod: PodFacts) -> Iterable[Member]:
        """Those that its constraints may count. Where each asks for a label of the pod, they have that label too."""
        written = [one.label_selector for one in pod.constraints]
        if not pod.labels or any(one is None or not one.match_labels.items() & pod.labels.items() for one in written):
            return self.members.values()
        shared = [self._by_label.get((pod.namespace, *pair), {}) for pair in pod.labels.items()]
        return {key: one for some in shared for key, one in some.items()}.values()

    def ranks_of(self, asks: Room) -> dict[str, int]:
        """Of all nodes by their room alone; below zero where it is too little."""
        ranks = self._ranks.setdefault(asks, {})
        for name in self.hosts.keys() - ranks.keys():
            used, room = self.used[name], self.hosts[name].room
            ranks[name] = -1 if self.lacks(asks, name) else _room_rank(used, asks, room)
        return ranks

    def lacks(self, asks: Room, name: str) -> str:
        """Of what a node has too little, if of anything."""
        used, room = self.used[name], self.hosts[name].room
        if used.pods + 1 > room.pods:
            return "have all the pods that they may"
        if asks.cpu_milli and used.cpu_milli + asks.cpu_milli > room.cpu_milli:
            return "have too little CPU"
        if asks.memory and used.memory + asks.memory > room.memory:
            return "have too little memory"
        return ""


def place(cluster: Cluster, floor: Floor, member: Member, crew: Crew | None) -> tuple[Member, Placed]:
    """The pod where it goes; the caller puts it there."""
    chosen, why = ranked(cluster, floor, member, crew)
    if not chosen:
        return member, Placed(member.key, why=why)
    facts = msgspec.structs.replace(member.facts, node_name=chosen[0])
    return msgspec.structs.replace(member, facts=facts), Placed(member.key, chosen[0], len(chosen) > 1)


def ranked(cluster: Cluster, floor: Floor, member: Member, crew: Crew | None) -> tuple[list[str], str]:
    """The nodes that rank best, all alike; of none it says why."""
    if crew is not None and crew.facts.kind == "DaemonSet" and member.node:
        return [member.node], ""
    if part(member.made, "spec").get("schedulingGates"):
        return [], "it has scheduling gates"
    kind, asks = floor.kind_of(cluster, member, crew), member.asks
    if kind.prepared.hard_error is not None:
        return [], f"its constraints cannot be used: {kind.prepared.hard_error}"
    ranks, attitude, around = floor.ranks_of(asks), kind.attitude, kind.around
    has_terms = not around.is_empty

    def keeps_out(name: str) -> str:
        return around.keeps_out(floor.hosts[name].node.labels) if has_terms else ""

    result = evaluate_prepared(
        kind.question, kind.prepared, attitude.standings, kind.counts,
        has_room=lambda name: ranks[name] >= 0 and not keeps_out(name), verdicts=attitude.verdicts,
    )  # fmt: skip
    if not kind.prepared.hard:
        attitude.verdicts = result.nodes
    if not result.candidates:
        return [], _why(result.nodes, Counter(floor.lacks(asks, name) or keeps_out(name) for name in result.roomless))
    if result.score is not None and result.score.error is not None:
        return [], f"its constraints cannot be used: {result.score.error}"
    scores = _scores(ranks, attitude, result.candidates, result.score.normalized if result.score is not None else {})
    liked = around.scores({name: floor.hosts[name].node.labels for name in result.candidates}) if has_terms else {}
    scores = (
        {name: score + NEIGHBOUR_WEIGHT * liked.get(name, 0) for name, score in scores.items()} if liked else scores
    )
    best = max(scores.values())
    return sorted(name for name, score in scores.items() if score == best), ""


def _selector_of(crew: Crew | None) -> LabelSelector | None:
    return crew.facts.selector if crew is not None and crew.facts.kind != "DaemonSet" else None


def _why(nodes: tuple[NodeVerdict, ...], lacking: Mapping[str, int]) -> str:
    excluded = Counter(one.excluded_by for one in nodes if one.excluded_by != "ok")
    parts = [f"{count} {REASONS[reason]}" for reason, count in excluded.items()]
    parts += [f"{count} {what}" for what, count in lacking.items()]
    return f"0 of {len(nodes)} nodes: {', '.join(parts) or 'there is none'}"


def _scores(
    ranks: Mapping[str, int], attitude: _Attitude, names: Sequence[str], spread: Mapping[str, int]
) -> dict[str, int]:
    disliked, liked = attitude.disliked, attitude.liked
    found = {name: ranks[name] for name in names}
    if spread:
        found = {name: rank + SPREAD_WEIGHT * spread[name] for name, rank in found.items()}
    if most := max(disliked[name] for name in names):
        found = {name: rank + TAINT_WEIGHT * (BEST - BEST * disliked[name] // most) for name, rank in found.items()}
    if most := max(liked[name] for name in names):
        found = {name: rank + AFFINITY_WEIGHT * (BEST * liked[name] // most) for name, rank in found.items()}
    return found


def _disliked(pod: PodFacts, node: Node) -> int:
    return sum(
        one.effect == "PreferNoSchedule" and not any(tolerates(each, one) for each in pod.tolerations)
        for one in node.taints
    )


def _liked(pod: PodFacts, node: Node) -> int:
    return sum(weight for weight, term in pod.preferred_terms if term_holds(term, node))


def _room_rank(used: Room, asks: Room, room: Room) -> int:
    """Least allocated first, CPU and memory alike; and how much nearer the two come to each other by the pod, if it
    asks for anything at all."""
    scores, kinds = 0, 0
    for taken, total in (
        (used.ranked_cpu + asks.ranked_cpu, room.ranked_cpu),
        (used.ranked_memory + asks.ranked_memory, room.ranked_memory),
    ):
        if total:
            kinds += 1
            scores += (total - taken) * BEST // total if taken < total else 0
    free = scores // kinds if kinds else 0
    if not asks.cpu_milli and not asks.memory:
        return free
    with_it = _evenness(used.cpu_milli + asks.cpu_milli, used.memory + asks.memory, room)
    return free + BEST // 2 + (BEST // 2 + with_it - _evenness(used.cpu_milli, used.memory, room)) // 2


def _evenness(cpu_milli: int, memory: int, room: Room) -> int:
    if not room.ranked_cpu or not room.ranked_memory:
        return BEST
    cpu, held = cpu_milli / room.ranked_cpu, memory / room.ranked_memory
    return int((1 - abs(((cpu if cpu < 1 else 1.0) - (held if held < 1 else 1.0)) / 2)) * BEST)
