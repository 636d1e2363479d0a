# SPDX-License-Identifier: Apache-2.0
"""Which single change would let a pod that fits nowhere be placed.

Each was tried on the same functions that said no, or follows from their numbers; none is a guess.
Never: suggests two changes at once, and never proposes anything while a candidate is left.
Source of behaviour: ours.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.topology.spread.filter import (
    ConstraintCounts,
    NodeVerdict,
    SpreadQuestion,
    SpreadResult,
    WhatIf,
    evaluate_spread,
)

# Dropping nodes is tried one by one; each try evaluates everything again.
MOST_DROPS_TRIED = 8
MOST_NODES_NAMED = 5


class SpreadChange(msgspec.Struct, frozen=True, gc=False):
    """What to change, and the nodes that would then take the pod."""

    text: str
    admits: tuple[str, ...]


def suggest_changes(question: SpreadQuestion, what_if: WhatIf, result: SpreadResult) -> tuple[SpreadChange, ...]:
    """The single changes that help, the mildest first. Nothing if a node is left or nothing could be evaluated."""
    if result.candidates or result.prefilter == "Error":
        return ()
    changes = [
        *_honor_taints(question, what_if, result),
        *_raise_max_skew(result),
        *_lower_min_domains(question, what_if, result),
        *_open_nodes(result),
        *_drop_nodes(question, what_if, result),
        *_add_node(result),
    ]
    return tuple(changes)


def _honor_taints(question: SpreadQuestion, what_if: WhatIf, result: SpreadResult) -> Iterator[SpreadChange]:
    if all(counts.constraint.taints_policy == "Honor" for counts in result.constraints):
        return
    admits = _tried(question, msgspec.structs.replace(what_if, honors_taints=True))
    if admits:
        yield SpreadChange("nodeTaintsPolicy: Honor, so that nodes the pod does not tolerate are not counted", admits)


def _raise_max_skew(result: SpreadResult) -> Iterator[SpreadChange]:
    """Helps nodes that fail one constraint only, and only because of its skew."""
    for position, counts in enumerate(result.constraints):
        needed = {
            verdict.name: skew
            for verdict in result.nodes
            if verdict.excluded_by == "skew" and _failing(verdict, result.constraints) == [position]
            for skew in (verdict.skew[position],)
            if skew is not None
        }
        if not needed:
            continue
        least = min(needed.values())
        key = counts.constraint.topology_key
        text = f"maxSkew: {least} on constraint {position} ({key}), now {counts.constraint.max_skew}"
        yield SpreadChange(text, tuple(name for name, skew in needed.items() if skew == least))


def _failing(verdict: NodeVerdict, constraints: Iterable[ConstraintCounts]) -> list[int]:
    return [
        position
        for position, (counts, skew) in enumerate(zip(constraints, verdict.skew, strict=True))
        if skew is None or skew > counts.constraint.max_skew
    ]


def _lower_min_domains(question: SpreadQuestion, what_if: WhatIf, result: SpreadResult) -> Iterator[SpreadChange]:
    zeroed = [counts for counts in result.constraints if counts.is_zeroed_by_min_domains and counts.domains]
    if not zeroed:
        return
    domains = min(len(counts.domains) for counts in zeroed)
    admits = _tried(question, msgspec.structs.replace(what_if, min_domains=domains))
    if admits:
        yield SpreadChange(f"minDomains: {domains}, the number of domains there are", admits)


def _open_nodes(result: SpreadResult) -> Iterator[SpreadChange]:
    """Nodes that spread would allow and something else excludes."""
    texts = {
        "unschedulable": "uncordon one of these nodes",
        "taint": "tolerate or remove the taint of one of these nodes",
        "affinity": "let nodeSelector or node affinity match one of these nodes",
    }
    for cause, text in texts.items():
        names = tuple(
            verdict.name
            for verdict in result.nodes
            if verdict.excluded_by == cause and verdict.spread == "ok" and _obstacles(verdict) == 1
        )
        if names:
            yield SpreadChange(text, names[:MOST_NODES_NAMED])


def _obstacles(verdict: NodeVerdict) -> int:
    standing = verdict.standing
    return standing.is_cordoned + (standing.taint is not None) + (not standing.matches_affinity)


def _drop_nodes(question: SpreadQuestion, what_if: WhatIf, result: SpreadResult) -> Iterator[SpreadChange]:
    """Taking a node away helps if it alone holds a domain that nobody can use."""
    unusable = [verdict.name for verdict in result.nodes if _obstacles(verdict)]
    for name in unusable[:MOST_DROPS_TRIED]:
        without = what_if.dropped_nodes | {name}
        admits = _tried(question, msgspec.structs.replace(what_if, dropped_nodes=without))
        if admits:
            yield SpreadChange(f"remove node {name}, whose domain counts though the pod cannot go there", admits)


def _add_node(result: SpreadResult) -> Iterator[SpreadChange]:
    """An empty new domain makes the minimum 0, so its skew is at most 1, which every maxSkew allows."""
    if result.prepared.hard:
        keys = " and ".join(dict.fromkeys(constraint.topology_key for constraint in result.prepared.hard))
        yield SpreadChange(f"add a node that the pod may use, with a new value of {keys}", ())
    else:
        yield SpreadChange("add a node that the pod may use", ())


def _tried(question: SpreadQuestion, what_if: WhatIf) -> tuple[str, ...]:
    return evaluate_spread(question, what_if).candidates[:MOST_NODES_NAMED]
