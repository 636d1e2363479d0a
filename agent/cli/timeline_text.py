# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of a pod in a terminal, and as SVG."""

from html import escape

from agent.pods.view.timeline import Bar, Picture, Row

SIGNS = {"running": "─", "pull": "▒", "postStart": "+", "preStop": "░", "stopping": "▓"}
MARK_SIGNS = {
    "signal": "S", "SIGKILL": "K", "exit": "x", "restart": "R", "ready": "r", "unready": "u", "probe failed": "!",
    "sandbox": "[", "sandbox stopped": "]", "end begins": "|", "all started": "*", "grace shortened": "<",
    "created": "c", "started": "s",
}  # fmt: skip
LEGEND = (
    "─ running  ▒ pull  + postStart  ░ preStop  ▓ after the signal   S signal  K SIGKILL  x exit  R restart  r ready"
)
COLOURS = {
    "running": "#7fb069", "pull": "#8ecae6", "postStart": "#c77dff", "preStop": "#f4a261", "stopping": "#e76f51",
}  # fmt: skip
SHORTEST_WIDTH = 20
FONT = 'font-family="sans-serif" font-size="12"'
SVG_WIDTH, ROW_HEIGHT, LEFT, RIGHT, TOP = 1000, 26, 140, 30, 40


def picture_as_text(picture: Picture, title: str, width: int) -> str:
    name_width = max(len("budget"), *(len(row.name) for row in picture.rows), 0) + 2
    inner = max(width - name_width - 2, SHORTEST_WIDTH)
    scale = inner / max(picture.end_s, 0.001)
    lines = [title, f"{'':{name_width}}{_scale_line(picture.end_s, inner)}"]
    lines += [f"{row.name or 'pod':{name_width}}{_row_line(row, inner, scale)}".rstrip() for row in picture.rows]
    for begin_s, end_s in picture.budgets:
        place, length = int(begin_s * scale), max(int((end_s - begin_s) * scale), 1)
        bar = " " * place + "├" + "╌" * max(min(length, inner - place) - 2, 0) + "┤"
        lines.append(f"{'budget':{name_width}}{bar} {end_s - begin_s:g} s")
    lines += ["", LEGEND, ""]
    lines += _list_lines(picture, name_width)
    return "\n".join(lines)


def _scale_line(end_s: float, inner: int) -> str:
    right = f"{end_s:.1f} s"
    middle = f"{end_s / 2:.1f}"
    gap = max(inner // 2 - 1 - len(middle) // 2, 1)
    line = "0" + " " * gap + middle
    return line + right.rjust(max(inner - len(line), len(right) + 1))


def _row_line(row: Row, inner: int, scale: float) -> str:
    cells = [" "] * (inner + 1)
    for bar in row.bars:
        for place in range(_place(bar.begin_s, scale, inner), _place(bar.end_s, scale, inner) + 1):
            cells[place] = SIGNS[bar.kind]
    for mark in row.marks:
        if mark.kind in MARK_SIGNS and mark.kind != "created":
            cells[_place(mark.at_s, scale, inner)] = MARK_SIGNS[mark.kind]
    return "".join(cells)


def _place(at_s: float, scale: float, inner: int) -> int:
    return max(min(int(at_s * scale), inner), 0)


def _list_lines(picture: Picture, name_width: int) -> list[str]:
    marks = sorted(
        ((mark.at_s, row.name or "pod", mark) for row in picture.rows for mark in row.marks), key=lambda one: one[0]
    )
    return [f"{at_s:9.2f} s  {name:{name_width}}{mark.kind} {mark.text}".rstrip() for at_s, name, mark in marks]


def picture_as_svg(picture: Picture, title: str) -> str:
    inner = SVG_WIDTH - LEFT - RIGHT
    scale = inner / max(picture.end_s, 0.001)
    height = TOP + ROW_HEIGHT * (len(picture.rows) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SVG_WIDTH}" height="{height}" {FONT}>',
        f'<rect width="{SVG_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for begin_s, end_s in picture.budgets:
        x, length = LEFT + begin_s * scale, min((end_s - begin_s) * scale, inner - begin_s * scale)
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP - 8}" width="{max(length, 1):.1f}" height="{height - TOP - ROW_HEIGHT}" '
            f'fill="#fff3b0" opacity="0.5"><title>budget {end_s - begin_s:g} s</title></rect>'
        )
    for place, row in enumerate(picture.rows):
        parts += _svg_row(row, TOP + place * ROW_HEIGHT, scale)
    parts += _svg_scale(picture.end_s, height - ROW_HEIGHT, scale)
    return "\n".join((*parts, "</svg>"))


def _svg_row(row: Row, y: int, scale: float) -> list[str]:
    parts = [f'<text x="10" y="{y + 13}">{escape(row.name or "pod")}</text>']
    for bar in row.bars:
        inset = 0 if bar.kind in ("running", "pull") else 4
        parts.append(_svg_bar(bar, y + inset, 18 - 2 * inset, scale))
    for mark in row.marks:
        x = LEFT + mark.at_s * scale
        colour = "#9d0208" if mark.kind in ("SIGKILL", "probe failed") else "#333333"
        label = escape(f"{mark.at_s:.2f} s {mark.kind} {mark.text}".strip())
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 18}" stroke="{colour}"><title>{label}</title></line>'
        )
    return parts


def _svg_bar(bar: Bar, y: float, height: float, scale: float) -> str:
    x, length = LEFT + bar.begin_s * scale, max((bar.end_s - bar.begin_s) * scale, 1)
    label = f"{bar.kind} {bar.end_s - bar.begin_s:.2f} s"
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{height}" rx="2" fill="{COLOURS[bar.kind]}">'
        f"<title>{label}</title></rect>"
    )


def _svg_scale(end_s: float, y: int, scale: float) -> list[str]:
    steps = 5
    times = [end_s * step / steps for step in range(steps + 1)]
    return [
        f'<text x="{LEFT + at_s * scale:.1f}" y="{y + 14}" text-anchor="middle">{at_s:.1f} s</text>' for at_s in times
    ]
