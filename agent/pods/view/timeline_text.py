# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of a pod in a terminal."""

from agent.pods.view.timeline import Picture, PictureRow

SIGNS = {"running": "─", "pull": "▒", "postStart": "+", "preStop": "░", "stopping": "▓"}
MARK_SIGNS = {
    "signal": "S", "SIGKILL": "K", "exit": "x", "restart": "R", "ready": "r", "unready": "u", "probe failed": "!",
    "sandbox": "[", "sandbox stopped": "]", "end begins": "|", "all started": "*", "grace shortened": "<",
    "created": "c", "started": "s",
}  # fmt: skip
LEGEND = (
    "─ running  ▒ pull  + postStart  ░ preStop  ▓ after the signal   S signal  K SIGKILL  x exit  R restart  r ready"
)
SHORTEST_WIDTH = 20


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


def _row_line(row: PictureRow, inner: int, scale: float) -> str:
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
