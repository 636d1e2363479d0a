# SPDX-License-Identifier: Apache-2.0
"""`kepctl top -w` as lines of a terminal: bars against limits, what gives way on a narrow one, and what keys do.

Pure: an answer, a view and a size in, lines out. Numbers stand beside all bars, so without colour nothing is lost.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from agent.cli.texts.usage import (
    ContainerRow,
    container_rows,
    cores_text,
    cpu_share,
    memory_share,
    memory_text,
    ordered_pods,
    ordered_rows,
    percent,
    stalls_text,
    worst_stall,
)
from agent.kinds.ages import age
from agent.wire.kepd.v1 import node_pb2 as pb
from kepd_ui.cells import Line, Span, cut_line, fit, span
from kepd_ui.screen import Size

EIGHTHS, ASCII = "▏▎▍▌▋▊▉█", "#"
WIDE_BAR, NARROW_BAR = 10, 5
ORDER_KEYS = {"c": "cpu", "m": "memory", "p": "psi", "r": "restarts", "o": "oom", "n": "name"}
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
HELP = "q quit  c m p r o n order by cpu, memory, pressure, restarts, kills, name  space hold  arrows move"
YELLOW_FROM, RED_FROM = 0.7, 0.9
HEAD, FOOT = 2, 1


class TopView(msgspec.Struct, frozen=True):
    """`is_held`: what is shown stays. `note` is said in place of the help."""

    order: str = "cpu"
    top: int = 0
    is_held: bool = False
    is_over: bool = False
    note: str = ""


def press(view: TopView, key: str, rows: int, size: Size) -> TopView:
    room = max(size.height - HEAD - FOOT, 1)
    if key in ("q", "interrupt", "escape"):
        return replace(view, is_over=True)
    if key == " ":
        return replace(view, is_held=not view.is_held)
    if key in ORDER_KEYS:
        return replace(view, order=ORDER_KEYS[key], top=0)
    step = MOVES.get(key, {"page-down": room, "page-up": -room}.get(key, 0))
    return replace(view, top=max(min(view.top + step, rows - room), 0))


class Cell(msgspec.Struct, frozen=True):
    """`gives_way` is the order in which columns leave a screen that is too narrow; 0 stays."""

    title: str
    width: int
    show: Callable[[ContainerRow], Sequence[Span]]
    gives_way: int = 0


def bar(share: float | None, width: int, *, is_ascii: bool) -> Span:
    """Against a limit."""
    if share is None:
        return Span(" " * width)
    style = "red" if share >= RED_FROM else "yellow" if share >= YELLOW_FROM else "green"
    filled = min(max(share, 0.0), 1.0) * width
    whole = int(filled)
    if is_ascii:
        return Span((ASCII * round(filled)).ljust(width, "."), style)
    part = int((filled - whole) * len(EIGHTHS))
    text = EIGHTHS[-1] * whole + (EIGHTHS[part - 1] if part and whole < width else "")
    return Span(text.ljust(width), style)


def _cells(of: str, bar_width: int, *, is_ascii: bool) -> list[Cell]:
    def usage(row: ContainerRow) -> pb.Usage:
        return row.container.usage if of == "containers" else row.pod.usage

    def share(row: ContainerRow, read: Callable[[pb.Usage], float | None], text: str) -> Sequence[Span]:
        found = read(usage(row))
        return (Span(f"{text:>7} "), bar(found, bar_width, is_ascii=is_ascii), Span(f" {percent(found):>5}"))

    def whole(text: Callable[[ContainerRow], str], width: int) -> Callable[[ContainerRow], Sequence[Span]]:
        return lambda row: (span(fit(text(row), width)),)

    def counted(row: ContainerRow) -> pb.ContainerUsage | pb.PodUsage:
        return row.container if of == "containers" else row.pod

    def begun(row: ContainerRow) -> str:
        return age(row.container.started_at if of == "containers" else row.pod.created_at)

    name = Cell("CONTAINER", 16, whole(lambda row: row.container.name, 16))
    throttled = Cell("THROTTLED", 9, whole(lambda row: _throttled(usage(row)), 9), 2)
    return [
        Cell("POD", 32, whole(lambda row: f"{row.pod.namespace}/{row.pod.name}", 32)),
        *([name] if of == "containers" else []),
        Cell("CPU", 14 + bar_width, lambda row: share(row, cpu_share, cores_text(usage(row)))),
        Cell("MEMORY", 14 + bar_width, lambda row: share(row, memory_share, memory_text(usage(row)))),
        *([throttled] if of == "containers" else []),
        Cell("PRESSURE", 18, whole(lambda row: stalls_text(usage(row)), 18), 4),
        Cell("RESTARTS", 8, whole(lambda row: str(counted(row).restarts), 8)),
        Cell("OOM", 4, whole(lambda row: str(counted(row).ooms), 4), 3),
        Cell("AGE", 6, whole(begun, 6), 1),
    ]


def _throttled(usage: pb.Usage) -> str:
    return percent(usage.throttled if usage.HasField("throttled") else None)


def fitting_cells(of: str, width: int, *, is_ascii: bool) -> list[Cell]:
    """Bars shrink first, then columns go; of pressure the worst stays."""
    cells = _cells(of, WIDE_BAR, is_ascii=is_ascii)
    if _width(cells) > width:
        cells = _cells(of, NARROW_BAR, is_ascii=is_ascii)
    for turn in (1, 2, 3):
        if _width(cells) > width:
            cells = [one for one in cells if one.gives_way != turn]
    if _width(cells) > width:
        cells = [_worst(one, of) if one.title == "PRESSURE" else one for one in cells]
    return cells


def _worst(cell: Cell, of: str) -> Cell:
    def show(row: ContainerRow) -> Sequence[Span]:
        usage = row.container.usage if of == "containers" else row.pod.usage
        return (span(fit(worst_stall(usage), 8)),)

    return Cell(cell.title, 8, show)


def _width(cells: Sequence[Cell]) -> int:
    return sum(one.width + 2 for one in cells) - 2


def rows_of(answer: pb.ListStatsResponse, of: str, order: str) -> list[ContainerRow]:
    """For pods one row each, whatever runs in them."""
    if of == "containers":
        return ordered_rows(container_rows(answer.pods), order)
    return [ContainerRow(pod, pb.ContainerUsage()) for pod in ordered_pods(answer.pods, order)]


def draw_top(answer: pb.ListStatsResponse, of: str, view: TopView, size: Size, *, is_ascii: bool) -> list[Line]:
    node, rows = answer.node, rows_of(answer, of, view.order)
    cells = fitting_cells(of, size.width, is_ascii=is_ascii)
    room = max(size.height - HEAD - FOOT, 1)
    shown = rows[view.top : view.top + room]
    more = len(rows) - view.top - len(shown)
    held = "  held" if view.is_held else ""
    head = (
        f"{node.name}  cpu {cores_text(node.usage)} {percent(cpu_share(node.usage))}  memory "
        f"{memory_text(node.usage)} {percent(memory_share(node.usage))}  pressure {stalls_text(node.usage)}  "
        f"{node.pods} pods  by {view.order}{held}"
    )
    foot = view.note or (f"… {more} more   {HELP}" if more > 0 else HELP)
    titles = "  ".join(fit(one.title, one.width) for one in cells)
    lines: list[Line] = [(span(head, "bold"),), (span(titles, "dim"),)]
    lines += [_line(row, cells) for row in shown]
    lines += [()] * (room - len(shown))
    lines.append((span(foot, "yellow" if view.note else "dim"),))
    return [cut_line(line, size.width) for line in lines]


def _line(row: ContainerRow, cells: Sequence[Cell]) -> Line:
    spans: list[Span] = []
    for place, one in enumerate(cells):
        spans += [*([Span("  ")] if place else []), *one.show(row)]
    return tuple(spans)
