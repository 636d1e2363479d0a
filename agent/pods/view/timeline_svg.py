# SPDX-License-Identifier: Apache-2.0
"""The picture of a pod as SVG, and as a page with one picture for each pod and the moments as a table.

A file of its own: no script, font or style from elsewhere, light or dark as the reader's browser is. Names are escaped,
and signs that no XML may have are replaced.
"""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

import msgspec

from agent.model.finding import printable
from agent.pods.view.timeline import Bar, Mark, Picture, PictureRow

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 1000, 170, 120, 74, 34, 16
SIGN_WIDTH = 6.4
"""Of a sign of 12 px, about: browsers lay text out, so there is room to spare."""
LONGEST_NAME = 22
MOST_TICKS = 9
STEPS = (
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    86400.0,
)
LEGEND = (
    ("queued", "waits in the queue"), ("pull", "image pull"),
    ("running", "runs"), ("ready", "ready"), ("postStart", "postStart"),
    ("preStop", "preStop"), ("stopping", "signal to exit"), ("budget", "grace"),
)  # fmt: skip
MARKS = {
    "sandbox": "sandbox made", "exit": "exit", "signal": "stop signal", "SIGKILL": "SIGKILL", "restart": "restart",
    "probe failed": "probe failed",
}  # fmt: skip
LAYERS = {"ready": 1, "stopping": 2, "postStart": 3, "preStop": 3}
"""What is drawn over what."""
STYLE = """
svg{--ground:#ffffff;--ink:#1f2328;--faint:#656d76;--line:#d8dee4;--queued:#d8dee4;--pull:#54aeff;--running:#b7dfb9;--ready:#4aa557;
--postStart:#a475f9;--preStop:#f0a04b;--stopping:#e5534b;--budget:#fff1c2;--bad:#b3141d;
font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12px}
@media(prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#30363d;--queued:#3d444d;--pull:#388bfd;
--running:#265c33;--ready:#3fb950;--postStart:#8957e5;--preStop:#db8c32;--stopping:#f2605a;--budget:#3a300e;--bad:#ff8182}}
text{fill:var(--ink)}.faint{fill:var(--faint)}.title{font-size:15px;font-weight:600}.end{text-anchor:end}
.middle{text-anchor:middle}.grid{stroke:var(--line)}.mark{stroke:var(--ink);stroke-width:1.5}
.bad{stroke:var(--bad);stroke-width:2}
"""
PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:2em auto;max-width:1040px;padding:0 1em;font:15px/1.5 system-ui,"DejaVu Sans",sans-serif}
svg{max-width:100%;height:auto}table{border-collapse:collapse;font-size:13px}
td,th{padding:.15em 1.2em .15em 0;text-align:left;vertical-align:top}td:first-child{text-align:right;white-space:nowrap}
"""
NO_SOURCES = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"


class Scale(msgspec.Struct, frozen=True):
    end_s: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s, 0.0) / max(self.end_s, 0.001), 1.0)


def picture_as_svg(picture: Picture, title: str) -> str:
    scale = Scale(picture.end_s)
    bottom = TOP + ROW * max(len(picture.rows), 1)
    height = bottom + 62
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_text(title)}">',
        f"<title>{_text(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="var(--ground)"/>',
        f'<text class="title" x="12" y="26">{_text(title)}</text>',
        f'<text class="faint end" x="{WIDTH - 12}" y="26">{_seconds(picture.end_s)}</text>',
        *_budgets(picture, scale, bottom),
        *_grid(picture.end_s, scale, bottom),
    ]
    places = _places(picture)
    for number, row in enumerate(picture.rows):
        parts += _row(row, TOP + number * ROW, scale, places.get(row.name, ""))
    return "\n".join((*parts, *_legend(picture, bottom + 30), "</svg>"))


def pictures_as_page(pictures: Sequence[tuple[str, Picture]]) -> str:
    """`pictures`: titles and pictures of pods."""
    title = pictures[0][0] if len(pictures) == 1 else f"{len(pictures)} pods"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8">{NO_SOURCES}',
        f"<title>{_text(title)}</title><style>{PAGE_STYLE}</style></head><body>",
    ]
    for name, picture in pictures:
        parts += [f"<section>{picture_as_svg(picture, name)}", *_table(picture), "</section>"]
    return "\n".join((*parts, "</body></html>"))


def _table(picture: Picture) -> Iterable[str]:
    moments = sorted(
        ((mark.at_s, row.name or "pod", mark) for row in picture.rows for mark in row.marks), key=lambda one: one[0]
    )
    yield "<details><summary>all moments</summary><table><tr><th>second</th><th>of</th><th>what</th></tr>"
    for at_s, name, mark in moments:
        what = _text(f"{mark.kind} {mark.text}".strip())
        yield f"<tr><td>{at_s:.2f}</td><td>{_text(name)}</td><td>{what}</td></tr>"
    yield "</table></details>"


def _text(text: str) -> str:
    return escape(printable(text))


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def _ticks(end_s: float) -> list[float]:
    """At even times, few enough to be read."""
    step = next((one for one in STEPS if end_s / one <= MOST_TICKS), end_s / MOST_TICKS)
    return [number * step for number in range(int(end_s / step + 1e-9) + 1)] if step > 0 else [0.0]


def _grid(end_s: float, scale: Scale, bottom: int) -> Iterable[str]:
    for at_s in _ticks(end_s):
        x = scale.x(at_s)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
        yield f'<text class="faint middle" x="{x:.1f}" y="{TOP - 14}">{at_s:g} s</text>'


def _budgets(picture: Picture, scale: Scale, bottom: int) -> Iterable[str]:
    for begin_s, end_s in picture.budgets:
        x = scale.x(begin_s)
        yield (
            f'<rect class="budget" x="{x:.1f}" y="{TOP - 8}" width="{max(scale.x(end_s) - x, 1):.1f}" '
            f'height="{bottom - TOP + 8}" fill="var(--budget)"><title>grace {_seconds(end_s - begin_s)}</title></rect>'
        )


def _row(row: PictureRow, y: int, scale: Scale, places: str) -> Iterable[str]:
    name = row.name or "pod"
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    yield f'<g><text class="end" x="{LEFT - 12}" y="{y + BAR - 3}">{_text(short)}<title>{_text(name)}</title></text>'
    for bar in sorted((*row.bars, *_ready(row)), key=lambda one: LAYERS.get(one.kind, 0)):
        thin = 4 if bar.kind in ("postStart", "preStop") else 0
        yield _bar(bar, y + thin, BAR - 2 * thin, scale)
    for mark in row.marks:
        yield _mark(mark, y, scale)
    if not row.name:
        yield from _mark_names(row, y, scale)
    yield f'<text class="faint" x="{WIDTH - RIGHT + 14}" y="{y + BAR - 3}">{places}</text></g>'


def _bar(bar: Bar, y: float, height: float, scale: Scale) -> str:
    x = scale.x(bar.begin_s)
    title = f"{bar.kind} {_seconds(bar.end_s - bar.begin_s)}{' so far' if bar.is_open else ''}"
    return (
        f'<rect class="{_text(bar.kind)}" x="{x:.1f}" y="{y:g}" width="{max(scale.x(bar.end_s) - x, 1.5):.1f}" '
        f'height="{height:g}" rx="3" fill="var(--{_text(bar.kind)})"><title>{_text(title)}</title></rect>'
    )


def _ready(row: PictureRow) -> list[Bar]:
    """While its probes say so, and until its signal or end."""
    ends = ("unready", "signal", "SIGKILL", "exit")
    begun: float | None = None
    found = []
    for mark in sorted(row.marks, key=lambda one: one.at_s):
        if mark.kind == "ready" and begun is None:
            begun = mark.at_s
        elif mark.kind in ends and begun is not None:
            found.append(Bar(kind="ready", begin_s=begun, end_s=mark.at_s))
            begun = None
    if begun is not None:
        last_s = max((bar.end_s for bar in row.bars), default=begun)
        found.append(Bar(kind="ready", begin_s=begun, end_s=last_s, is_open=True))
    return found


def _mark(mark: Mark, y: int, scale: Scale) -> str:
    x = scale.x(mark.at_s)
    is_bad = mark.kind in ("SIGKILL", "probe failed") or (mark.kind == "exit" and mark.text.strip() not in ("", "0"))
    label = _text(f"{mark.at_s:.2f} s {mark.kind} {mark.text}".strip())
    return (
        f'<line class="{"bad" if is_bad else "mark"}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + BAR + 3}">'
        f"<title>{label}</title></line>"
    )


def _mark_names(row: PictureRow, y: int, scale: Scale) -> Iterable[str]:
    """Beside the lines of the pod itself, as far as they do not run into the next."""
    marks = sorted(row.marks, key=lambda one: one.at_s)
    for place, mark in enumerate(marks):
        right = scale.x(marks[place + 1].at_s) if place + 1 < len(marks) else WIDTH - RIGHT
        x = scale.x(mark.at_s) + 5
        if x + len(mark.kind) * SIGN_WIDTH <= right:
            yield f'<text class="faint" x="{x:.1f}" y="{y + BAR - 3}">{_text(mark.kind)}</text>'


def _places(picture: Picture) -> dict[str, str]:
    """Which of the containers starts first and which ends first: what sidecars are about."""
    begun = sorted((min(bar.begin_s for bar in runs), row.name) for row in picture.rows if (runs := _runs(row)))
    ended = sorted((max(bar.end_s for bar in runs), row.name) for row in picture.rows if (runs := _ended(row)))
    starts, ends = _numbered(begun), _numbered(ended)
    return {
        name: f"start {number}" + (f" · end {ends[name]}" if name in ends else "") for name, number in starts.items()
    }


def _runs(row: PictureRow) -> list[Bar]:
    return [bar for bar in row.bars if bar.kind == "running" and row.name]


def _ended(row: PictureRow) -> list[Bar]:
    runs = _runs(row)
    return [] if any(bar.is_open for bar in runs) else runs


def _numbered(moments: Sequence[tuple[float, str]]) -> dict[str, int]:
    """From 1; what happens at the same time has the same number."""
    numbers: dict[str, int] = {}
    number = 0
    for before, (at_s, name) in pairwise([(-1.0, ""), *moments]):
        number += at_s != before[0]
        numbers[name] = number
    return numbers


def _legend(picture: Picture, y: int) -> Iterable[str]:
    """Of what is in the picture alone."""
    bars = {bar.kind for row in picture.rows for bar in (*row.bars, *_ready(row))}
    bars |= {"budget"} if picture.budgets else set()
    x = float(LEFT)
    for kind, words in LEGEND:
        if kind in bars:
            yield f'<rect x="{x:.0f}" y="{y - 10}" width="22" height="11" rx="3" fill="var(--{kind})"/>'
            yield f'<text x="{x + 28:.0f}" y="{y}">{words}</text>'
            x += 28 + len(words) * SIGN_WIDTH + 22
    kinds = [MARKS[kind] for kind in MARKS if any(mark.kind == kind for row in picture.rows for mark in row.marks)]
    if kinds:
        yield f'<line class="mark" x1="{LEFT + 11}" x2="{LEFT + 11}" y1="{y + 8}" y2="{y + 22}"/>'
        yield f'<text class="faint" x="{LEFT + 28}" y="{y + 20}">{", ".join(kinds)}; point at a line to read it</text>'
