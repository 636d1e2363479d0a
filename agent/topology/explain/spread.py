# SPDX-License-Identifier: Apache-2.0
"""Why a pod may go to some nodes and not to others, domain by domain and node by node.

Constraints as they really apply, every domain with its count and skew (also those that do not count, with the cause),
every node with the first thing that excludes it, the scores. Never: claims more than was checked; `not_checked` lists
the rest. Source of behaviour: `spread/filter.py`.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.model.finding import Finding
from agent.topology.spread.changes import SpreadChange, suggest_changes
from agent.topology.spread.constraints import ConstraintSource, has_all_keys, includes
from agent.topology.spread.filter import (
    AS_IT_IS,
    ConstraintCounts,
    ExcludedBy,
    NodeVerdict,
    Prefilter,
    SpreadQuestion,
    SpreadResult,
    WhatIf,
    evaluate_spread,
)
from agent.topology.spread.placement import NOT_CHECKED, NodeStanding
from agent.topology.spread.score import PLUGIN_WEIGHT, Score, SoftCounts


class DomainExplanation(msgspec.Struct, frozen=True, gc=False):
    """One value of the topology key. A domain that is not counted has its cause in `remark`."""

    value: str
    pods: int
    skew_if_placed: int
    is_counted: bool
    nodes: tuple[str, ...]
    remark: str


class ConstraintExplanation(msgspec.Struct, frozen=True, gc=False):
    """A hard constraint with defaults filled in. `most_allowed` is the highest count that may still take the pod."""

    index: int
    position: int
    topology_key: str
    max_skew: int
    min_domains: int
    affinity_policy: str
    taints_policy: str
    selector: str
    domain_count: int
    global_min: int
    is_zeroed_by_min_domains: bool
    self_match: int
    most_allowed: int
    domains: tuple[DomainExplanation, ...]


class NodeExplanation(msgspec.Struct, frozen=True, gc=False):
    """A node. `counts` and `skew` are per hard constraint, None where the node lacks the key."""

    name: str
    excluded_by: ExcludedBy
    detail: str
    failed_constraint: int | None
    counts: tuple[int | None, ...]
    skew: tuple[int | None, ...]
    is_preemptible: bool


class ScoreExplanation(msgspec.Struct, frozen=True, gc=False):
    """A candidate's score; `weighted` is what the default profile adds up."""

    node: str
    raw: int
    normalized: int
    weighted: int
    is_ignored: bool


class SpreadExplanation(msgspec.Struct, frozen=True, gc=False):
    """The whole explanation. `changes` are single changes that would admit a node; they are looked for if none is."""

    pod: str
    source: ConstraintSource
    prefilter: Prefilter
    error: str | None
    what_if: WhatIf
    constraints: tuple[ConstraintExplanation, ...]
    nodes: tuple[NodeExplanation, ...]
    candidates: tuple[str, ...]
    score_error: str | None
    soft: tuple[SoftCounts, ...]
    scores: tuple[ScoreExplanation, ...]
    changes: tuple[SpreadChange, ...]
    notes: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = NOT_CHECKED

    @property
    def exit_code(self) -> int:
        """0: some node may take the pod; 1: none; 2: a hard constraint cannot be evaluated."""
        if self.prefilter == "Error":
            return 2
        return 0 if self.candidates else 1


def explain_question(
    question: SpreadQuestion, what_if: WhatIf = AS_IT_IS, notes: tuple[Finding, ...] = ()
) -> SpreadExplanation:
    result = evaluate_spread(question, what_if)
    standings = [verdict.standing for verdict in result.nodes]
    return SpreadExplanation(
        pod=question.pod.key,
        source=result.prepared.source,
        prefilter=result.prefilter,
        error=result.prepared.hard_error,
        what_if=what_if,
        constraints=tuple(
            _constraint(index, counts, result, standings) for index, counts in enumerate(result.constraints)
        ),
        nodes=tuple(_node(verdict, result.constraints) for verdict in result.nodes),
        candidates=result.candidates,
        score_error=result.prepared.soft_error,
        soft=result.score.constraints if result.score is not None else (),
        scores=tuple(_scores(result.score, result.candidates)),
        changes=suggest_changes(question, what_if, result),
        notes=notes,
    )


def _constraint(
    index: int, counts: ConstraintCounts, result: SpreadResult, standings: Sequence[NodeStanding]
) -> ConstraintExplanation:
    constraint = counts.constraint
    return ConstraintExplanation(
        index=index,
        position=constraint.position,
        topology_key=constraint.topology_key,
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains,
        affinity_policy=constraint.affinity_policy,
        taints_policy=constraint.taints_policy,
        selector=str(constraint.matcher),
        domain_count=len(counts.domains),
        global_min=counts.global_min,
        is_zeroed_by_min_domains=counts.is_zeroed_by_min_domains,
        self_match=counts.self_match,
        most_allowed=counts.most_allowed,
        domains=tuple(_domains(counts, result, standings)),
    )


def _domains(
    counts: ConstraintCounts, result: SpreadResult, standings: Sequence[NodeStanding]
) -> Iterable[DomainExplanation]:
    """Counted and uncounted domains in one list, ordered by value."""
    key = counts.constraint.topology_key
    members: dict[str, list[NodeStanding]] = {}
    for standing in standings:
        value = standing.node.labels.get(key)
        if value is not None:
            members.setdefault(value, []).append(standing)
    for value, inside in sorted(members.items()):
        counted = value in counts.domains
        pods = counts.domains.get(value, 0)
        eligible = [one for one in inside if _is_eligible(one, counts, result)]
        yield DomainExplanation(
            value=value,
            pods=pods,
            skew_if_placed=pods + counts.self_match - counts.global_min,
            is_counted=counted,
            nodes=tuple(one.node.name for one in (eligible if counted else inside)),
            remark=_trap(counts, pods, eligible) if counted else _why_uncounted(inside, counts, result),
        )


def _is_eligible(standing: NodeStanding, counts: ConstraintCounts, result: SpreadResult) -> bool:
    return has_all_keys(standing.node.labels, result.prepared.hard) and includes(counts.constraint, standing)


def _trap(counts: ConstraintCounts, pods: int, eligible: Sequence[NodeStanding]) -> str:
    """A domain that counts though none of its nodes would take the pod holds the minimum down."""
    obstacles = [_obstacle(standing) for standing in eligible]
    if not all(obstacles):
        return ""
    remark = f"no node here takes the pod ({', '.join(sorted(set(obstacles)))})"
    if pods == counts.global_min and not counts.is_zeroed_by_min_domains:
        remark += f"; pins the minimum to {pods}"
    return remark


def _obstacle(standing: NodeStanding) -> str:
    if standing.is_cordoned:
        return "cordoned"
    if standing.taint is not None:
        return f"taint {standing.taint}"
    return "" if standing.matches_affinity else "node affinity"


def _why_uncounted(inside: Sequence[NodeStanding], counts: ConstraintCounts, result: SpreadResult) -> str:
    causes = set()
    for standing in inside:
        lacking = [one.topology_key for one in result.prepared.hard if one.topology_key not in standing.node.labels]
        if lacking:
            causes.add(f"label {lacking[0]} is missing")
        elif counts.constraint.affinity_policy == "Honor" and not standing.matches_affinity:
            causes.add("node affinity does not match")
        elif standing.taint is not None:
            causes.add(f"taint {standing.taint} is honored")
    return f"not counted: {', '.join(sorted(causes))}"


def _node(verdict: NodeVerdict, constraints: Sequence[ConstraintCounts]) -> NodeExplanation:
    labels = verdict.standing.node.labels
    return NodeExplanation(
        name=verdict.name,
        excluded_by=verdict.excluded_by,
        detail=_detail(verdict, constraints),
        failed_constraint=verdict.failed_constraint,
        counts=tuple(_count_at(labels, counts) for counts in constraints),
        skew=verdict.skew,
        is_preemptible=verdict.is_preemptible,
    )


def _count_at(labels: Mapping[str, str], counts: ConstraintCounts) -> int | None:
    value = labels.get(counts.constraint.topology_key)
    return None if value is None else counts.domains.get(value, 0)


def _detail(verdict: NodeVerdict, constraints: Sequence[ConstraintCounts]) -> str:
    match verdict.excluded_by:
        case "ok":
            return ""
        case "unschedulable":
            return "spec.unschedulable is true (cordoned)"
        case "taint":
            return f"taint {verdict.standing.taint} is not tolerated"
        case "affinity":
            return "nodeSelector or required node affinity does not match"
        case _:
            return _spread_detail(verdict, constraints)


def _spread_detail(verdict: NodeVerdict, constraints: Sequence[ConstraintCounts]) -> str:
    failed = verdict.failed_constraint
    if failed is None:
        return ""
    counts = constraints[failed]
    if verdict.skew[failed] is None:
        return f"label {counts.constraint.topology_key} is missing (constraint {failed})"
    return f"skew {verdict.skew[failed]} > {counts.constraint.max_skew} (constraint {failed})"


def _scores(score: Score | None, candidates: Sequence[str]) -> Iterable[ScoreExplanation]:
    """Best first; among equals in node order, where the scheduler would draw lots."""
    if score is None or score.outcome != "scored":
        return
    ignored = set(score.ignored)
    for name in sorted(candidates, key=lambda one: -score.normalized[one]):
        normalized = score.normalized[name]
        yield ScoreExplanation(name, score.raw[name], normalized, normalized * PLUGIN_WEIGHT, name in ignored)
