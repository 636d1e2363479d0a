# SPDX-License-Identifier: Apache-2.0
"""The screen as lines: a head, four panels or one page, and what the keys do. Pure: board and view in, lines out."""

from collections.abc import Mapping, Sequence

import msgspec

from kepd_ui.board import PANELS, Board
from kepd_ui.cells import Line, Span, cut, cut_line, line_width, span
from kepd_ui.rows import ORDER_LEGEND, Look, row_of, titles_of
from kepd_ui.view import ABOUT, Chosen, ScreenSize, View, place_of

HEAD, FOOT = 1, 1
FRAME = 2
"""Lines of a panel around its rows: its name and its titles."""
FEW = 5
"""Rows that a panel has which the user is not in, if there is room."""
NAMES = {"pods": "Pods", "pulls": "Pulls", "services": "Services", "events": "Events"}
PLANE_STYLES = {"ready": "green", "off": "dim", "degraded": "yellow", "starting": "yellow"}
HELP = (
    "Keys",
    "",
    "  Tab, 1 to 4        choose a panel: pods, pulls, Services, events",
    "  arrows, j, k       move by one; PgUp, PgDn, Space by a page; Home, End, g, G to an end",
    "  /                  show only what contains a text; Enter keeps it, Escape clears it",
    "  Enter, d           describe the chosen object",
    "  l                  logs of the chosen pod, as they come; c for its next container",
    "  e                  explain why the object is as it is",
    "  t                  what happened to the chosen pod, as bars",
    "  Ctrl-L             draw everything anew",
    "  Ctrl-Z             suspend",
    "  q, Ctrl-C          quit; on a page q and Escape go back",
    "",
    f"Containers of a pod, in the order in which they start:  {ORDER_LEGEND}",
    "CONN/S is the number of new connections a second, as the kernel counts them.",
)


class Size(msgspec.Struct, frozen=True):
    width: int
    height: int


class Page(msgspec.Struct):
    """What the shell reads for a page; `trouble` ends it."""

    title: str
    lines: Sequence[str] = ()
    is_reading: bool = True
    trouble: str = ""


def panel_rows(view: View, counts: Mapping[str, int], height: int) -> dict[str, int]:
    """How many rows each panel has; 0 = it is not shown. The user's panel takes what the others leave.

    A terminal too low for all shows the user's alone."""
    room = height - HEAD - FOOT
    others = [panel for panel in PANELS if panel != view.panel]
    wanted = {panel: max(min(counts[panel], FEW), 1) for panel in others}
    rest = room - FRAME - sum(rows + FRAME for rows in wanted.values())
    if rest < FEW:
        wanted = dict.fromkeys(others, 1)
        rest = room - FRAME - sum(rows + FRAME for rows in wanted.values())
    if rest < FEW:
        return {**dict.fromkeys(others, 0), view.panel: max(room - FRAME, 1)}
    mine = min(rest, max(counts[view.panel], FEW))
    # What the user's panel does not need goes to the events, which are never all seen.
    spare = "events" if view.panel != "events" else "pods"
    return {**wanted, view.panel: mine, spare: wanted[spare] + rest - mine}


def room_of(view: View, board: Board, size: Size, page: Page | None) -> ScreenSize:
    counts = {panel: len(board.table(panel).items) for panel in PANELS}
    rows = panel_rows(view, counts, size.height)[view.panel]
    return ScreenSize(rows, max(size.height - HEAD - FOOT - 1, 1), len(page.lines) if page is not None else 0)


def draw(board: Board, view: View, page: Page | None, chosen: Chosen, size: Size, now_s: float) -> list[Line]:
    """Exactly as many lines as the terminal has."""
    lines = [_head(board, size.width)]
    if page is not None:
        lines += _page_lines(page, view, size)
    else:
        counts = {panel: len(board.table(panel).items) for panel in PANELS}
        rows = panel_rows(view, counts, size.height)
        look = Look(now_s, board.rates)
        for panel in PANELS:
            if rows[panel]:
                lines += _panel(board, view, panel, chosen, Size(size.width, rows[panel]), look)
    lines = lines[: size.height - FOOT]
    lines += [()] * (size.height - FOOT - len(lines))
    return [*lines, _foot(view, size.width)]


def _head(board: Board, width: int) -> Line:
    node = board.node
    parts = [Span(" kepd ", "reverse"), span(f" {node.name or '…'}", "bold"), span(f"  {node.kepd_version}", "dim")]
    runtime = f"{node.runtime.name} {node.runtime.version}" if node.runtime.is_connected else "no runtime"
    parts.append(span(f"  {runtime}", "" if node.runtime.is_connected else "red"))
    for plane in board.planes:
        word = plane["status"]["state"]
        parts += [Span("  "), span(plane["metadata"]["name"]), Span(" "), span(word, PLANE_STYLES.get(word, "red"))]
    if node.HasField("drain"):
        parts += [Span("  "), span(f"drained by {node.drain.by}", "yellow")]
    return cut_line(parts, width)


def _panel(board: Board, view: View, panel: str, chosen: Chosen, size: Size, look: Look) -> list[Line]:
    keys = chosen.keys(board, panel, view.filter)
    table = board.table(panel)
    is_mine = panel == view.panel
    place = place_of(keys, view.cursors[PANELS.index(panel)])
    first = max(min(place - size.height // 2, len(keys) - size.height), 0)
    count = f"{len(keys)} of {len(table.items)}" if view.filter else str(len(table.items))
    title = [Span("▌" if is_mine else " ", "green"), Span(NAMES[panel], "bold" if is_mine else ""), span(f" {count}")]
    if len(keys) > size.height:
        title.append(span(f"  {first + 1} to {first + size.height}", "dim"))
    if table.trouble:
        title += [Span("  "), span(table.trouble, "yellow")]
    lines = [cut_line(title, size.width), cut_line((Span("  "), *titles_of(panel, size.width)), size.width)]
    shown = keys[first : first + size.height]
    for number, key in enumerate(shown, start=first):
        row = cut_line((Span("  "), *row_of(panel, table.items[key], look, size.width - 2)), size.width)
        lines.append(_marked(row, size.width) if is_mine and number == place else row)
    if not shown:
        empty = "" if table.trouble else "nothing" if table.is_complete else "…"
        lines.append((Span("  "), Span(empty, "dim")))
    return lines + [()] * (size.height + FRAME - len(lines))


def _marked(row: Line, width: int) -> Line:
    text = "".join(one.text for one in row)
    return (Span(text + " " * (width - line_width(row)), "reverse"),)


def _page_lines(page: Page, view: View, size: Size) -> list[Line]:
    rows = size.height - HEAD - FOOT - 1
    last = max(len(page.lines) - rows, 0)
    top = last if view.sticks else min(view.top, last)
    seen = f"  {top + 1} to {min(top + rows, len(page.lines))} of {len(page.lines)}" if last else ""
    title = (Span("▌", "green"), span(page.title, "bold"), Span(seen, "dim"))
    lines: list[Line] = [cut_line(title, size.width)]
    lines += [(span(cut(text, size.width)),) for text in list(page.lines)[top : top + rows]]
    if page.trouble:
        lines.append((span(cut(page.trouble, size.width), "red"),))
    elif page.is_reading and not page.lines:
        lines.append((Span("…", "dim"),))
    return lines


def _foot(view: View, width: int) -> Line:
    if view.is_typing:
        return cut_line((Span(" / ", "reverse"), span(f" {view.filter}"), Span("▏")), width)
    if view.note:
        return cut_line((span(f" {view.note}", "yellow"),), width)
    if view.page is not None:
        more = "  c next container" if view.page.kind == "logs" else ""
        return cut_line((Span(f" Esc back  ↑↓ scroll{more}", "dim"),), width)
    letters = {"describe": "d", "logs": "l", "explain": "e", "timeline": "t"}
    about = "  ".join(f"{letters[kind]} {kind}" for kind in ABOUT[view.panel])
    kept = f"  showing only /{view.filter}" if view.filter else ""
    return cut_line((span(f" Tab panel  ↑↓ move  / filter  {about}  ? help  q quit{kept}", "dim"),), width)
