# SPDX-License-Identifier: Apache-2.0
"""A rehearsal as SVG, and as a page: for each Service that notices the zones with their endpoints before, between and
after. The darker an endpoint, the more above the mean it gets; an arrow has the share of requests that leaves its zone.

A file of its own: no script, font or style from elsewhere. Names are escaped.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from agent.model.finding import printable
from kepd_rehearsal.plan.rehearse import Rehearsal, ServiceRehearsal
from kepd_rehearsal.plan.serving import Serving, ZoneServing

LEFT, ZONE, GAP, ROW, SQUARE, HEAD = 176, 250, 14, 58, 13, 30
PER_LINE, MOST_SQUARES, MOST_SERVICES = 16, 32, 40
STYLE = """
svg{--ground:#ffffff;--ink:#1f2328;--faint:#656d76;--line:#d8dee4;--good:#4aa557;--warm:#f0a04b;--hot:#e5534b;
font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12px}
@media(prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#30363d;--good:#3fb950;--warm:#db8c32;
--hot:#f2605a}}
text{fill:var(--ink)}.faint{fill:var(--faint)}.title{font-size:15px;font-weight:600}.zone{fill:none;stroke:var(--line)}
.good{fill:var(--good)}.warm{fill:var(--warm)}.hot{fill:var(--hot)}.way{stroke:var(--faint);fill:none}"""


def rehearsals_svg(rehearsals: Sequence[Rehearsal]) -> str:
    parts, top, width = [], 8, 0
    for rehearsal in rehearsals:
        shown = [one for one in rehearsal.services if one.is_touched][:MOST_SERVICES]
        parts.append(_text(8, top + 18, f"What if: {rehearsal.change}", "title"))
        top += HEAD
        for service in shown:
            zones = sorted({zone.zone for state in _states(service) for zone in state[1].zones})
            width = max(width, LEFT + len(zones) * (ZONE + GAP))
            parts.append(_text(8, top + 16, service.after.service))
            parts += [
                _text(LEFT + place * (ZONE + GAP), top + 16, zone or "no zone", "faint")
                for place, zone in enumerate(zones)
            ]
            top += 22
            for name, state in _states(service):
                parts += _row(top, name, state, zones)
                top += ROW
            top += GAP
    width = max(width, 640)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" style="fill:var(--ground)"/>{"".join(parts)}</svg>\n'
    )


def rehearsals_page(rehearsals: Sequence[Rehearsal], tables: str = "") -> str:
    """`tables` is markup that stands below the pictures."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>What if</title>'
        f'<body style="margin:0;background:Canvas">{rehearsals_svg(rehearsals)}{tables}</body></html>\n'
    )


def _states(one: ServiceRehearsal) -> Iterator[tuple[str, Serving]]:
    yield "before", one.before
    if one.during not in (one.before, one.after):
        yield "between", one.during
    yield "after", one.after


def _row(top: int, name: str, state: Serving, zones: Sequence[str]) -> Iterator[str]:
    yield _text(8, top + 20, name)
    yield _text(8, top + 36, "nothing answers" if state.is_dead else state.hints, "faint")
    known = {one.zone: one for one in state.zones}
    for place, zone in enumerate(zones):
        if zone in known:
            yield from _zone(LEFT + place * (ZONE + GAP), top, known[zone], state)


def _zone(left: int, top: int, zone: ZoneServing, state: Serving) -> Iterable[str]:
    yield f'<rect class="zone" x="{left}" y="{top}" width="{ZONE}" height="{ROW - 8}" rx="4"/>'
    own = [one for one in state.endpoints if one.zone == zone.zone]
    for number, one in enumerate(own[:MOST_SQUARES]):
        x, y = left + 6 + number % PER_LINE * (SQUARE + 2), top + 6 + number // PER_LINE * (SQUARE + 2)
        heat = "hot" if one.over > 0.5 else "warm" if one.over > 0.2 else "good"
        told = escape(printable(f"{one.pod} on {one.node}: {one.load:.1%} of all, {one.over:+.0%}"))
        place = f'x="{x}" y="{y}" width="{SQUARE}" height="{SQUARE}" rx="2"'
        yield f'<rect class="{heat}" {place}><title>{told}</title></rect>'
    if len(own) > MOST_SQUARES:
        yield _text(left + ZONE - 36, top + 18, f"+{len(own) - MOST_SQUARES}", "faint")
    if zone.crossing > 0:
        y = top + ROW - 16
        yield f'<path class="way" d="M{left + 8} {y}h{ZONE - 88}m-5 -4l5 4l-5 4"/>'
        yield _text(left + ZONE - 72, y + 4, f"{zone.crossing:.0%} away", "faint")


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{styled}>{escape(printable(text))}</text>'
