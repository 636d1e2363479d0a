# SPDX-License-Identifier: Apache-2.0
"""What people see of eviction, from the planner's own values."""

from collections.abc import Iterator, Sequence

from agent.model.nodes.use import NodeLook
from agent.model.pods.eviction_report import EvictionCandidate, EvictionReport, EvictionSignal
from agent.pods.plan.evict import EvictionRules, Seen, signal_lines
from agent.pods.plan.scarcity.victims import PossibleVictim, order_of_victims, resource_of

OFF = "kepd evicts no pod here: pods.eviction.mode is off, or it is auto and a kubelet runs on this node"
MOST_CANDIDATES = 50


def eviction_report(
    rules: EvictionRules | None,
    look: NodeLook | None,
    pods: Sequence[PossibleVictim],
    seen: Seen,
    conditions: Sequence[str],
    wall_minus_now_s: float,
) -> EvictionReport:
    if rules is None:
        return EvictionReport(is_on=False, message=OFF)
    lines = tuple(signal_lines(look, rules, seen))
    signals = [
        EvictionSignal(
            signal=one.threshold.signal,
            kind=one.threshold.kind,
            available=one.amount.available if one.amount is not None else 0,
            capacity=one.amount.capacity if one.amount is not None else 0,
            line=one.line,
            met_since_s=one.met_since_s + wall_minus_now_s if one.met_since_s is not None else 0.0,
            grace_s=one.threshold.grace_s,
            message="" if one.amount is not None else "cannot be seen from here, so it decides nothing",
        )
        for one in lines
    ]
    shown = dict.fromkeys(one.threshold.signal for one in lines if one.amount is not None)
    candidates = [row for signal in shown for row in _candidates(signal, pods)]
    return EvictionReport(
        is_on=True, conditions=tuple(conditions), signals=tuple(signals), candidates=tuple(candidates)
    )


def _candidates(signal: str, pods: Sequence[PossibleVictim]) -> Iterator[EvictionCandidate]:
    ordered = order_of_victims(signal, pods)[:MOST_CANDIDATES]
    for rank, one in enumerate(ordered, 1):
        yield _row(signal, one, rank, "")
    chosen = {one.uid for one in ordered}
    for one in sorted((one for one in pods if one.uid not in chosen), key=lambda one: one.key)[:MOST_CANDIDATES]:
        yield _row(signal, one, 0, _why_not(signal, one))


def _why_not(signal: str, one: PossibleVictim) -> str:
    if one.is_critical:
        return "critical pods stay"
    if one.is_ending:
        return "it ends already"
    return "it uses nothing of what is short" if signal in one.used else "what it uses is not known"


def _row(signal: str, one: PossibleVictim, rank: int, why: str) -> EvictionCandidate:
    namespace, _, name = one.key.partition("/")
    return EvictionCandidate(
        signal=signal,
        namespace=namespace,
        name=name,
        rank=rank,
        used=one.used.get(signal, 0),
        requested=one.requested.get(resource_of(signal), 0),
        priority=one.priority,
        why=why,
    )
