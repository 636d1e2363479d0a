# SPDX-License-Identifier: Apache-2.0
"""Explanations of topology in words and tables."""

from collections.abc import Iterator, Sequence

from agent.kinds.table import Grid, Paragraph
from agent.topology.explain.hints import FamilyExplanation, HintsExplanation, ZoneExplanation
from agent.topology.explain.spread import ConstraintExplanation, NodeExplanation, SpreadExplanation
from agent.topology.hints.zones import ZonePlan

Block = Paragraph | Grid
CHART_STEP = 10
ZONE_TITLES = tuple("ZONE MILLICPU SHARE WANT MIN DESIRED MAX HAVE GIVE RECEIVE FINAL LOAD".split())  # noqa: SIM905


def hints_text(explanation: HintsExplanation) -> Iterator[Block]:
    choice = explanation.choice
    yield Paragraph(f"SERVICE {explanation.service}  mode {choice.mode} ({choice.why})")
    if not explanation.families:
        yield Paragraph("no EndpointSlice belongs to this Service; their label kubernetes.io/service-name names it")
    for family in explanation.families:
        yield from _family(family)


def _family(family: FamilyExplanation) -> Iterator[Block]:
    word = "active" if family.is_active else f"refused {family.reason}" if family.reason else str(family.status)
    yield Paragraph(f"{family.family}  {word}: {family.cause}")
    if family.zones:
        yield Grid(ZONE_TITLES, [_zone(zone) for zone in family.zones])
    for zone in family.zones:
        if family.is_active and not zone.uses_hints:
            yield Paragraph(f"proxies in zone {zone.zone} use all endpoints: no hint names it")
    if family.activating is not None:
        lower, higher = family.nearest_lower, family.nearest_higher
        nearest = " or ".join(str(count) for count in (lower, higher) if count is not None)
        tail = f"; nearest: {nearest}" if nearest and not family.is_active else ""
        yield Paragraph(f"activates at {family.activating}{tail}")
    yield from _listed("left out", [f"node {node.name} ({node.detail})" for node in family.left_out])
    yield from _listed("spoils node information", [f"node {node.name} ({node.detail})" for node in family.broken])
    yield from _listed("ready without a zone", family.without_zone)
    yield from _listed("not ready", family.unready)
    for advice in family.advice:
        yield Paragraph(f"to change it: {advice.text}")
    for note in family.notes:
        yield Paragraph(f"note: {note}")


def _zone(zone: ZoneExplanation) -> list[str]:
    load = "" if zone.load is None else f"{zone.load:.2f}{' !' if zone.is_overloaded else ''}"
    share = "" if zone.share is None else f"{zone.share * 100:.1f} %"
    steps = (zone.want, zone.least, zone.desired, zone.most, zone.have, zone.give, zone.receive, zone.final)
    return [zone.zone, _number(zone.milli_cpu), share, *map(_number, steps), load]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _listed(title: str, names: Sequence[str]) -> Iterator[Block]:
    if names:
        yield Paragraph(f"{title}: {', '.join(names)}")


def spread_text(explanation: SpreadExplanation) -> Iterator[Block]:
    yield Paragraph(f"POD {explanation.pod}  constraints from {explanation.source}")
    if explanation.error is not None:
        yield Paragraph(f"scheduling error: {explanation.error}")
        return
    if not explanation.constraints:
        yield Paragraph("no hard constraint: this check lets every node pass")
    for constraint in explanation.constraints:
        yield from _constraint(constraint)
    yield Grid(["NODE", "VERDICT", "SKEW", "PREEMPTION", "WHY"], [_node_row(node) for node in explanation.nodes])
    yield from _scores(explanation)
    for change in explanation.changes:
        admits = f": admits {', '.join(change.admits)}" if change.admits else ""
        yield Paragraph(f"to change it: {change.text}{admits}")
    yield from _listed("not checked here", explanation.not_checked)
    for note in explanation.notes:
        yield Paragraph(f"note: {note}")


def _constraint(one: ConstraintExplanation) -> Iterator[Block]:
    zeroed = f", held at 0 because {one.domain_count} domains are fewer than minDomains" * one.is_zeroed_by_min_domains
    yield Paragraph(
        f"constraint {one.index}: {one.topology_key} maxSkew {one.max_skew} DoNotSchedule, minDomains "
        f"{one.min_domains}, affinity {one.affinity_policy}, taints {one.taints_policy}, selector {one.selector}"
    )
    yield Paragraph(
        f"  least filled domain: {one.global_min}{zeroed}; this pod counts {one.self_match}; "
        f"a domain may have at most {one.most_allowed} now"
    )
    rows = [
        [domain.value or '""', str(domain.pods), str(domain.skew_if_placed), ", ".join(domain.nodes), domain.remark]
        for domain in one.domains
    ]
    yield Grid(["DOMAIN", "PODS", "SKEW IF PLACED", "NODES", "REMARK"], rows)


def _node_row(node: NodeExplanation) -> list[str]:
    skew = " ".join("-" if value is None else str(value) for value in node.skew)
    verdict = "candidate" if node.excluded_by == "ok" else str(node.excluded_by)
    if node.failed_constraint is not None:
        verdict += f" (constraint {node.failed_constraint})"
    return [node.name, verdict, skew, "may help" if node.is_preemptible else "", node.detail]


def _scores(explanation: SpreadExplanation) -> Iterator[Block]:
    if explanation.score_error is not None:
        yield Paragraph(f"scoring error: {explanation.score_error}")
    if explanation.scores:
        rows = [
            [score.node, str(score.raw), str(score.normalized), str(score.weighted), "ignored" * score.is_ignored]
            for score in explanation.scores
        ]
        yield Grid(["NODE", "RAW", "SCORE", "WEIGHTED", ""], rows)


def plan_text(plan: ZonePlan) -> Iterator[Block]:
    for remark in plan.remarks:
        yield Paragraph(f"note: {remark}")
    zones = sorted({*plan.placement, *(zone for row in plan.rows for zone in row.per_zone or ())})
    rows = []
    for row in plan.rows:
        final = [str(row.per_zone.get(zone, 0)) if row.per_zone is not None else "" for zone in zones]
        placed = " ".join(str(row.placed.get(zone, 0)) for zone in zones)
        state = "active" if row.refusal is None else str(row.refusal)
        total = "-" if row.least_total is None else str(row.least_total)
        rows.append([str(row.n), state, total, placed, *final, str(row.donated or "")])
    yield Grid(["REPLICAS", "HINTS", "MIN", "PLACED", *zones, "MOVED"], rows)
    yield Paragraph(_chart(plan))
    yield Paragraph(f"activates at {plan.activating}")


def _chart(plan: ZonePlan) -> str:
    first = plan.rows[0].n if plan.rows else 1
    ruler = ""
    for row in plan.rows:
        if row.n == first or row.n % CHART_STEP == 0:
            ruler = ruler.ljust(row.n - first) + str(row.n)
    signs = "".join("█" if row.refusal is None else "·" for row in plan.rows)
    return f"{ruler}\n{signs}   █ active   · all endpoints everywhere"
