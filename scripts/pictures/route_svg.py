# SPDX-License-Identifier: Apache-2.0
"""The way of packets through the rules to endpoints, from `kepctl trace` and `kepctl explain route` as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Object = Mapping[str, Any]

WIDTH, TOP = 1000, 56
STEP_WIDTH, STEP_HEIGHT, GAP = 118, 66, 14
LANE = 170
ENDS, END_WIDTH, END_HEIGHT = 724, 264, 58
SIGN_WIDTH = 5.9
STYLE = """
svg{--ground:#ffffff;--ink:#1f2328;--faint:#656d76;--line:#8c959f;--box:#f6f8fa;--used:#4aa557;--from:#ddf4ff;
font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12px}
@media(prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#6e7681;--box:#161b22;
--used:#3fb950;--from:#12283d}}
text{fill:var(--ink)}.faint{fill:var(--faint);font-size:11px}.title{font-size:15px;font-weight:600}.name{font-weight:600}
rect.box{fill:var(--box);stroke:var(--line)}rect.from{fill:var(--from)}rect.used{stroke:var(--used);stroke-width:2}
rect.unused{stroke-dasharray:4 3}path{fill:none;stroke:var(--line);stroke-width:1.5}path.used{stroke:var(--used)}
"""


def route_as_svg(told: Object) -> str:
    """One lane for each packet, and all endpoints at their end: also those that get none, with the reason."""
    traces, endpoints = told["traces"], sorted(told["route"]["endpoints"], key=lambda one: not one.get("isUsed"))
    height = TOP + max(LANE * len(traces), (END_HEIGHT + GAP) * len(endpoints)) + 8
    title = "The route of a packet: " + " and ".join(f"{one['from']} to {one['to']}" for one in traces)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="var(--ground)"/>',
        f'<text class="title" x="12" y="26">{escape(title)}</text>',
    ]
    places = {one["endpoint"]: TOP + number * (END_HEIGHT + GAP) for number, one in enumerate(endpoints)}
    for number, trace in enumerate(traces):
        parts += _lane(trace, TOP + number * LANE, places)
    for one in endpoints:
        parts += _endpoint(one, places[one["endpoint"]])
    return "\n".join((*parts, "</svg>\n"))


def _lane(trace: Object, y: int, places: Mapping[str, int]) -> Iterable[str]:
    said = "its source address becomes the node's" if trace["masquerade"] == "yes" else "its source address stays"
    words = [trace["from"], f"to {trace['to']}", said]
    boxes = [("from", words), *(("", [one["place"], one["found"]]) for one in trace["steps"])]
    for number, (kind, lines) in enumerate(boxes):
        x = 12 + number * (STEP_WIDTH + GAP)
        yield from _box(x, y, STEP_WIDTH, STEP_HEIGHT + 34, kind, lines)
        if number:
            yield f'<path d="M{x - GAP} {y + 34}H{x}"/>'
    start, middle = 12 + len(boxes) * (STEP_WIDTH + GAP) - GAP, y + 34
    for target in dict.fromkeys(trace["targets"]):
        end = places[target] + END_HEIGHT // 2
        yield f'<path class="used" d="M{start} {middle}C{start + 30} {middle} {ENDS - 30} {end} {ENDS} {end}"/>'


def _endpoint(one: Object, y: int) -> Iterable[str]:
    kind = "used" if one.get("isUsed") else "unused"
    zones = ", ".join(one.get("zones", ()))
    where = f"node {one['node']}, hint for zone {zones}, {one['state']}"
    yield from _box(ENDS, y, END_WIDTH, END_HEIGHT, kind, [one["endpoint"], where, one["reason"]])


def _box(x: int, y: int, width: int, height: int, kind: str, lines: Sequence[str]) -> Iterable[str]:
    yield f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    first, *rest = lines
    at = y + 18
    yield f'<text class="name" x="{x + 8}" y="{at}">{escape(first)}</text>'
    for line in rest:
        for part in _wrapped(line, int((width - 12) / SIGN_WIDTH)):
            at += 15
            yield f'<text class="faint" x="{x + 8}" y="{at}">{escape(part)}</text>'


def _wrapped(text: str, signs: int) -> Iterable[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > signs:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line
