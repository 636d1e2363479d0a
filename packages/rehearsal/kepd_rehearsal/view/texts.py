# SPDX-License-Identifier: Apache-2.0
"""A rehearsal in words and tables, and what of it a pipeline may fail on."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agent.kinds.table import Grid, Paragraph
from kepd_rehearsal.plan.advice import Advice
from kepd_rehearsal.plan.changes import BadChange
from kepd_rehearsal.plan.rehearse import Rehearsal, ServiceRehearsal
from kepd_rehearsal.plan.serving import Serving

Block = Paragraph | Grid
SERVICE_TITLES = ["SERVICE", "WHEN", "READY", "HINTS", "WHY", "OVERLOAD", "CROSSING", "DARK"]
MOST_NAMES = 5
OVERLOAD = re.compile(r"overload>(\d{1,4})%\Z")
FAULTS = "dark, pending, budget, grace, overload>PERCENT%, pull>DURATION"


def rehearsal_text(rehearsal: Rehearsal, *, shows_all: bool = False, more: Iterable[Block] = ()) -> Iterator[Block]:
    """`more`: what others tell of it."""
    yield Paragraph(f"WHAT IF: {rehearsal.change}")
    shown = [one for one in rehearsal.services if shows_all or one.is_touched]
    if shown:
        yield Grid(SERVICE_TITLES, [row for one in shown for row in _rows(one)])
    quiet = len(rehearsal.services) - len(shown)
    if quiet:
        yield Paragraph(f"{quiet} Service{'s' if quiet > 1 else ''} would not notice")
    yield from _zones(shown)
    yield from _pods(rehearsal)
    yield from more
    yield Paragraph(f"not looked at: {', '.join(rehearsal.not_looked_at)}")


def _rows(one: ServiceRehearsal) -> Iterator[list[str]]:
    yield [one.before.service, "before", *_row(one.before)]
    if one.during not in (one.before, one.after):
        yield ["", "between", *_row(one.during)]
    yield ["", "after", *_row(one.after)]


def _row(one: Serving) -> list[str]:
    dark = "everywhere" if one.is_dead else _some(one.dark_nodes)
    return [str(one.ready), one.hints, one.why, f"{max(one.overload, 0):.0%}", f"{one.crossing:.0%}", dark or "-"]


def _zones(shown: Sequence[ServiceRehearsal]) -> Iterator[Block]:
    rows = []
    for one in shown:
        before = {each.zone: each for each in one.before.zones}
        after = {each.zone: each for each in one.after.zones}
        for zone in sorted(before.keys() | after.keys()):
            old, new = before.get(zone), after.get(zone)
            if old != new:
                rows.append(
                    [one.after.service, zone or "-", *_change(old, new, "endpoints"), *_change(old, new, "hinted")]
                )
    if rows:
        yield Grid(["SERVICE", "ZONE", "ENDPOINTS", "THEN", "HINTED", "THEN"], rows)


def _change(old: object, new: object, name: str) -> tuple[str, str]:
    return tuple("-" if one is None else str(getattr(one, name)) for one in (old, new))  # type: ignore[return-value]


def _pods(rehearsal: Rehearsal) -> Iterator[Block]:
    by_node = Counter(one.node for one in rehearsal.placed)
    if by_node:
        tied = sum(one.is_tied for one in rehearsal.placed)
        rest = f"; {tied} of them could as well go to another node that ranks alike" if tied else ""
        where = _some([f"{count} to {node}" for node, count in by_node.most_common()])
        yield Paragraph(f"pods that get a node, {len(rehearsal.placed)}: {where}{rest}")
    if rehearsal.pending:
        yield Paragraph(f"pods that wait, {len(rehearsal.pending)}:")
        reasons = Counter(one.why for one in rehearsal.pending)
        yield Grid(["PODS", "WHY"], [[str(count), why] for why, count in reasons.most_common()])
    if rehearsal.ending:
        longest = max(one.grace_s for one in rehearsal.ending)
        lost = [one.pod for one in rehearsal.ending if one.is_lost]
        yield Paragraph(f"pods that end, {len(rehearsal.ending)}; the slowest has {longest} s")
        if lost:
            yield Paragraph(f"nobody makes these anew: {_some(lost)}")
    for held in rehearsal.held:
        if held.allowed:
            text = f"lets {held.allowed} end at once, of {held.wanted}: the drain waits for the others"
        else:
            text = f"lets none of {held.wanted} end: the drain never does"
        yield Paragraph(f"budget {held.budget} {text}")


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def advice_text(advice: Iterable[Advice]) -> Iterator[Block]:
    for one in advice:
        if one.change is None:
            yield Paragraph(f"{one.service}: {one.goal} holds after none of {one.tried} changes that were tried")
            continue
        yield Paragraph(f"{one.service}: {one.goal} holds if you {one.change.text} (the {one.tried}. change tried)")
        if one.proof is not None:
            yield from rehearsal_text(one.proof)


def faults_of(rehearsals: Iterable[Rehearsal], wanted: Sequence[str]) -> list[str]:
    """What a pipeline was told to fail on, and is so after one of the changes."""
    found = []
    for rehearsal in rehearsals:
        for name in wanted:
            limit = OVERLOAD.match(name)
            if limit is None and name not in ("dark", "pending", "budget"):
                raise BadChange(f"{name!r} is nothing to fail on; expected {FAULTS}")
            found += [f"{rehearsal.change}: {text}" for text in _faults(rehearsal, name, limit)]
    return found


def _faults(rehearsal: Rehearsal, name: str, limit: re.Match[str] | None) -> Iterator[str]:
    waits = [one for one in rehearsal.pending if not one.has_waited]
    if name == "pending" and waits:
        yield f"{len(waits)} pods wait"
    if name == "budget":
        yield from (f"budget {one.budget} holds the drain" for one in rehearsal.held)
    for one in rehearsal.services:
        if name == "dark":
            yield from _darkening(one)
        if limit is not None and one.after.overload > max(int(limit[1]) / 100, one.before.overload):
            yield f"an endpoint of {one.after.service} gets {one.after.overload:.0%} more than the mean"


def _darkening(one: ServiceRehearsal) -> Iterator[str]:
    """Where clients found an endpoint before and find none then, for good or for a moment."""
    for state, how in ((one.after, "goes dark"), (one.during, "is dark for a moment")):
        new = [name for name in state.dark_nodes if name not in one.before.dark_nodes]
        if new or (state.is_dead and not one.before.is_dead):
            yield f"{state.service} {how} on {_some(new) or 'every node'}"
            return
