# SPDX-License-Identifier: Apache-2.0
"""How the scheduler ranks the nodes that are left, by the soft constraints. Low raw is good, high normalised is good.

Source of behaviour: scheduler plugin podtopologyspread (scoring.go).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.nodes.node import HOSTNAME_LABEL
from agent.model.selector import Matcher
from agent.topology.spread.constraints import PreparedConstraint, PreparedConstraints, has_all_keys, includes
from agent.topology.spread.placement import NodeStanding

PLUGIN_WEIGHT = 2
BEST = 100


class SoftCounts(msgspec.Struct, frozen=True, gc=False):
    """A soft constraint: its weight and tracked counts, none for the hostname since nodes are asked one by one."""

    constraint: PreparedConstraint
    weight: float
    counts: dict[str, int]


class Score(msgspec.Struct, frozen=True, gc=False):
    """`skipped`: there is nothing to score by. `error`: a soft selector cannot be used, which stops scheduling here."""

    outcome: Literal["scored", "skipped", "error"]
    error: str | None = None
    ignored: tuple[str, ...] = ()
    constraints: tuple[SoftCounts, ...] = ()
    raw: dict[str, int] = {}
    normalized: dict[str, int] = {}


def score_nodes(
    prepared: PreparedConstraints,
    standings: Sequence[NodeStanding],
    candidates: Sequence[NodeStanding],
    pods_by_node: Mapping[Matcher, Mapping[str, int]],
) -> Score | None:
    """Scores of the candidates; None if there are none."""
    if not candidates:
        return None
    if prepared.soft_error is not None:
        return Score("error", error=prepared.soft_error)
    if not prepared.soft:
        return Score("skipped")
    scored = [one for one in candidates if not _is_ignored(one, prepared)]
    ignored = sorted({one.node.name for one in candidates} - {one.node.name for one in scored})
    soft = tuple(_soft_counts(constraint, prepared, standings, scored, pods_by_node) for constraint in prepared.soft)
    raw = _raw(scored, soft, pods_by_node)
    normalized = _normalized(raw) | dict.fromkeys(ignored, 0)
    return Score(
        outcome="scored",
        ignored=tuple(ignored),
        constraints=soft,
        raw=raw | dict.fromkeys(ignored, 0),
        normalized=normalized,
    )


def _is_ignored(standing: NodeStanding, prepared: PreparedConstraints) -> bool:
    return prepared.requires_all_keys and not has_all_keys(standing.node.labels, prepared.soft)


def _soft_counts(
    constraint: PreparedConstraint,
    prepared: PreparedConstraints,
    standings: Sequence[NodeStanding],
    scored: Sequence[NodeStanding],
    pods_by_node: Mapping[Matcher, Mapping[str, int]],
) -> SoftCounts:
    key = constraint.topology_key
    if key == HOSTNAME_LABEL:
        return SoftCounts(constraint, _weight(len(scored)), {})
    # A missing label reads as an empty value, which only System defaults let get this far.
    counts = {one.node.labels.get(key, ""): 0 for one in scored}
    by_node = pods_by_node[constraint.matcher]
    for standing in standings:
        # Most nodes have none of these pods.
        found = by_node.get(standing.node.name)
        if not found:
            continue
        value = standing.node.labels.get(key, "")
        if value in counts and not _is_ignored(standing, prepared) and includes(constraint, standing):
            counts[value] += found
    return SoftCounts(constraint, _weight(len(counts)), counts)


def _weight(size: int) -> float:
    return math.log(size + 2)


def _raw(
    scored: Sequence[NodeStanding], soft: Sequence[SoftCounts], pods_by_node: Mapping[Matcher, Mapping[str, int]]
) -> dict[str, int]:
    nodes = [one.node for one in scored]
    totals = [0.0] * len(nodes)
    for one in soft:
        key, more = one.constraint.topology_key, float(one.constraint.max_skew - 1)
        if key == HOSTNAME_LABEL:
            by_node = pods_by_node[one.constraint.matcher]
            for place, node in enumerate(nodes):
                if key in node.labels:
                    totals[place] += by_node.get(node.name, 0) * one.weight + more
            continue
        shares = {value: count * one.weight + more for value, count in one.counts.items()}
        for place, node in enumerate(nodes):
            if key in node.labels:
                totals[place] += shares[node.labels[key]]
    rounded = {total: _rounded(total) for total in set(totals)}
    return {node.name: rounded[total] for node, total in zip(nodes, totals, strict=True)}


def _rounded(value: float) -> int:
    """Halves go away from zero; Python's own round would take them to the even neighbour."""
    whole = math.trunc(value)
    return whole + int(math.copysign(1, value)) if abs(value - whole) >= 0.5 else whole


def _normalized(raw: Mapping[str, int]) -> dict[str, int]:
    least, most = min(raw.values(), default=0), max(raw.values(), default=0)
    if most == 0:
        return dict.fromkeys(raw, BEST)
    found = {value: _truncated(BEST * (most + least - value), most) for value in set(raw.values())}
    return {name: found[value] for name, value in raw.items()}


def _truncated(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient
