# SPDX-License-Identifier: Apache-2.0
"""Which nodes pod topology spread lets a pod go to.

Pods are walked once per distinct selector, nodes once per constraint; nothing walks pods per node.
Never: tests resources, ports, volumes or inter-pod affinity, preempts, or moves pods later. Source of
behaviour: scheduler plugin podtopologyspread (filtering.go); KEP-895, KEP-3022, KEP-3094.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.nodes.node import Node
from agent.model.selector import LabelSelector, Matcher
from agent.topology.manifest.facts import FINISHED_PHASES, PodFacts, SelectingService
from agent.topology.spread.constraints import (
    SYSTEM_DEFAULTS,
    Defaulting,
    PreparedConstraint,
    PreparedConstraints,
    has_all_keys,
    includes,
    prepare_constraints,
)
from agent.topology.spread.placement import NodeStanding, stand
from agent.topology.spread.score import Score, score_nodes

Prefilter = Literal["Success", "Skip", "Error"]
SpreadVerdict = Literal["ok", "missing-label", "skew"]
ExcludedBy = Literal["ok", "unschedulable", "taint", "affinity", "missing-label", "skew"]


class SpreadQuestion(msgspec.Struct, frozen=True, gc=False):
    """Where may `pod` go? `pods` are those that exist; `owner_selector` is that of the controller owning the pod."""

    pod: PodFacts
    nodes: tuple[Node, ...]
    pods: tuple[PodFacts, ...] = ()
    services: tuple[SelectingService, ...] = ()
    defaulting: Defaulting = SYSTEM_DEFAULTS
    owner_selector: LabelSelector | None = None


class WhatIf(msgspec.Struct, frozen=True, gc=False):
    """Changes to try. `ignores_dead_domains`: a domain with none but tainted nodes does not hold the minimum down."""

    honors_taints: bool = False
    min_domains: int | None = None
    dropped_nodes: frozenset[str] = frozenset()
    ignores_dead_domains: bool = False


AS_IT_IS = WhatIf()


class ConstraintCounts(msgspec.Struct, frozen=True, gc=False):
    """What a hard constraint sees: matching pods per domain, the minimum it compares with, and why it is that.

    `dead` are domains without one node whose taints the pod tolerates; they count unless a what-if leaves them out.
    """

    constraint: PreparedConstraint
    domains: Mapping[str, int]
    dead: frozenset[str]
    global_min: int
    is_zeroed_by_min_domains: bool
    self_match: int

    def skew(self, labels: Mapping[str, str]) -> int | None:
        """The skew if the pod went to a node with these labels; None if it has no such domain."""
        value = labels.get(self.constraint.topology_key)
        return None if value is None else self.domains.get(value, 0) + self.self_match - self.global_min

    @property
    def most_allowed(self) -> int:
        """The greatest number of pods a domain may have and still take this one."""
        return self.constraint.max_skew + self.global_min - self.self_match


class NodeVerdict(msgspec.Struct, frozen=True, gc=False):
    """One node: what excludes it first of all, and what spread alone says."""

    name: str
    excluded_by: ExcludedBy
    spread: SpreadVerdict
    failed_constraint: int | None
    skew: tuple[int | None, ...]
    standing: NodeStanding

    @property
    def is_preemptible(self) -> bool:
        """Only too much skew may go away when pods are evicted."""
        return self.excluded_by == "skew"


class SpreadResult(msgspec.Struct, frozen=True, gc=False):
    """The whole answer. With prefilter Error only `prepared` means anything."""

    prefilter: Prefilter
    prepared: PreparedConstraints
    constraints: tuple[ConstraintCounts, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    candidates: tuple[str, ...] = ()
    score: Score | None = None
    roomless: tuple[str, ...] = ()
    """Without a candidate, the nodes that only lack room."""


def evaluate_spread(question: SpreadQuestion, what_if: WhatIf = AS_IT_IS) -> SpreadResult:
    prepared = _changed(
        prepare_constraints(question.pod, question.services, question.defaulting, question.owner_selector), what_if
    )
    if prepared.hard_error is not None:
        return SpreadResult("Error", prepared)
    standings = [stand(question.pod, node) for node in question.nodes if node.name not in what_if.dropped_nodes]
    matchers = {constraint.matcher for constraint in prepared.hard + prepared.soft}
    counts = count_pods(question, standings, matchers)
    return evaluate_prepared(question, prepared, standings, counts, what_if)


def evaluate_prepared(
    question: SpreadQuestion,
    prepared: PreparedConstraints,
    standings: Sequence[NodeStanding],
    counts: Mapping[Matcher, Mapping[str, int]],
    what_if: WhatIf = AS_IT_IS,
    *,
    has_room: Callable[[str], bool] = bool,
    verdicts: tuple[NodeVerdict, ...] = (),
) -> SpreadResult:
    """For who asks for many pods of one template, and keeps what is the same for all of them: `verdicts` too, without
    hard constraints. `has_room`: of a node by its name; ranks are among those that have it."""
    constraints = tuple(
        _count_domains(constraint, prepared.hard, standings, counts[constraint.matcher], question.pod.labels, what_if)
        for constraint in prepared.hard
    )
    if constraints or not verdicts:
        verdicts = tuple(_judge(standing, constraints) for standing in standings)
    left = [standing for standing, verdict in zip(standings, verdicts, strict=True) if verdict.excluded_by == "ok"]
    candidates = [standing for standing in left if has_room(standing.node.name)]
    return SpreadResult(
        prefilter="Success" if prepared.hard else "Skip",
        prepared=prepared,
        constraints=constraints,
        nodes=verdicts,
        candidates=tuple(standing.node.name for standing in candidates),
        score=score_nodes(prepared, standings, candidates, counts),
        roomless=tuple(one.node.name for one in left if not candidates),
    )


def _changed(prepared: PreparedConstraints, what_if: WhatIf) -> PreparedConstraints:
    """The constraints with the what-ifs that are about constraints put in."""

    def changed(constraint: PreparedConstraint) -> PreparedConstraint:
        if what_if.honors_taints:
            constraint = msgspec.structs.replace(constraint, taints_policy="Honor")
        if what_if.min_domains is not None:
            constraint = msgspec.structs.replace(constraint, min_domains=what_if.min_domains)
        return constraint

    return msgspec.structs.replace(
        prepared, hard=tuple(map(changed, prepared.hard)), soft=tuple(map(changed, prepared.soft))
    )


def count_pods(
    question: SpreadQuestion, standings: Sequence[NodeStanding], matchers: Iterable[Matcher]
) -> dict[Matcher, dict[str, int]]:
    """Matching pods per node name, for each matcher. An empty selector counts nobody."""
    known = {standing.node.name for standing in standings}
    countable = [
        (pod.node_name, pod.labels)
        for pod in question.pods
        if pod.node_name in known
        and pod.namespace == question.pod.namespace
        and not pod.is_terminating
        and pod.phase not in FINISHED_PHASES
    ]
    counts: dict[Matcher, dict[str, int]] = {}
    for matcher in matchers:
        by_node: dict[str, int] = {}
        for name, labels in () if matcher.is_empty else countable:
            if name is not None and matcher.matches(labels):
                by_node[name] = by_node.get(name, 0) + 1
        counts[matcher] = by_node
    return counts


def _count_domains(
    constraint: PreparedConstraint,
    hard: Sequence[PreparedConstraint],
    standings: Sequence[NodeStanding],
    pods_by_node: Mapping[str, int],
    labels: Mapping[str, str],
    what_if: WhatIf,
) -> ConstraintCounts:
    domains: dict[str, int] = {}
    alive: set[str] = set()
    for standing in standings:
        if not has_all_keys(standing.node.labels, hard) or not includes(constraint, standing):
            continue
        value = standing.node.labels[constraint.topology_key]
        domains[value] = domains.get(value, 0) + pods_by_node.get(standing.node.name, 0)
        if standing.taint is None:
            alive.add(value)
    dead = frozenset(domains.keys() - alive)
    compared = [count for value, count in domains.items() if value in alive or not what_if.ignores_dead_domains]
    too_few = len(domains) < constraint.min_domains
    return ConstraintCounts(
        constraint=constraint,
        domains=domains,
        dead=dead,
        global_min=0 if too_few else min(compared, default=0),
        is_zeroed_by_min_domains=too_few,
        self_match=int(constraint.matcher.matches(labels)),
    )


def _judge(standing: NodeStanding, constraints: Sequence[ConstraintCounts]) -> NodeVerdict:
    """Cordon, taint and affinity speak before spread does; the first constraint that fails is the one told."""
    skew = tuple(counts.skew(standing.node.labels) for counts in constraints)
    spread: SpreadVerdict = "ok"
    failed = None
    for position, (counts, value) in enumerate(zip(constraints, skew, strict=True)):
        if value is None or value > counts.constraint.max_skew:
            spread, failed = "missing-label" if value is None else "skew", position
            break
    excluded_by: ExcludedBy = spread
    if standing.is_cordoned:
        excluded_by = "unschedulable"
    elif standing.taint is not None:
        excluded_by = "taint"
    elif not standing.matches_affinity:
        excluded_by = "affinity"
    return NodeVerdict(standing.node.name, excluded_by, spread, failed, skew, standing)
