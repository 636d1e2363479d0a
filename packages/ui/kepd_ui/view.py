# SPDX-License-Identifier: Apache-2.0
"""Where the user is, and what a key changes about it.

    panels:  Tab and 1 to 4 choose, arrows or j and k move, / filters, d l e t open a page about the chosen object
    page:    arrows or j and k scroll, c shows the log of the next container, Escape or q goes back

Pure: a key makes a new view, and perhaps a wish that the shell carries out.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kepd_ui.board import PANELS, Board
from kepd_ui.rows import text_of

LONGEST_FILTER = 80
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
JUMPS = {"home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}
PAGES = {"d": "describe", "enter": "describe", "l": "logs", "e": "explain", "t": "timeline"}
ABOUT = {
    "pods": ("describe", "logs", "explain", "timeline"),
    "pulls": ("describe", "explain"),
    "services": ("describe", "explain"),
    "events": ("describe",),
}
"""Which pages there are about the objects of each panel."""


class Wish(msgspec.Struct, frozen=True):
    """What the shell shall do: open a page, close it, redraw, suspend or quit."""

    kind: str
    panel: str = ""
    key: str = ""
    step: int = 0
    """Of logs: the container, counted on from the first."""


class Cursor(msgspec.Struct, frozen=True):
    """The chosen object; when it goes, the one that takes its place."""

    key: str = ""
    place: int = 0


class View(msgspec.Struct, frozen=True):
    panel: str = "pods"
    cursors: tuple[Cursor, ...] = (Cursor(),) * len(PANELS)
    filter: str = ""
    is_typing: bool = False
    note: str = ""
    """Said once, until the next key."""
    page: Wish | None = None
    top: int = 0
    """The page's first line on the screen."""
    sticks: bool = False
    """The page shows its end, also when more comes."""

    @property
    def cursor(self) -> Cursor:
        return self.cursors[PANELS.index(self.panel)]


class Chosen:
    """The keys of a panel that the filter lets through. What it looked into is kept while the object is the same."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], tuple[Any, str]] = {}

    def keys(self, board: Board, panel: str, wanted: str) -> Sequence[str]:
        table = board.table(panel)
        if not wanted:
            self._texts.clear()
            return table.order()
        return [key for key in table.order() if wanted.lower() in self._text(panel, key, table.items[key])]

    def _text(self, panel: str, key: str, item: Any) -> str:  # noqa: ANN401  # a message of the panel
        known = self._texts.get((panel, key))
        if known is None or known[0] is not item:
            known = self._texts[panel, key] = (item, text_of(panel, item).lower())
        return known[1]


def place_of(keys: Sequence[str], cursor: Cursor) -> int:
    """Where the cursor is now."""
    if cursor.place < len(keys) and keys[cursor.place] == cursor.key:
        return cursor.place
    if cursor.key in keys:
        return keys.index(cursor.key)
    return max(min(cursor.place, len(keys) - 1), 0)


class ScreenSize(msgspec.Struct, frozen=True):
    """How much is seen at once, for steps of a page."""

    rows: int
    page_rows: int
    page_lines: int = 0


def on_key(view: View, key: str, keys: Sequence[str], room: ScreenSize) -> tuple[View, Wish | None]:
    """`keys`: the objects of the panel that the user is in."""
    view = replace(view, note="")
    if key == "interrupt":
        return view, Wish("quit")
    if key in ("suspend", "redraw"):
        return view, Wish(key)
    if view.is_typing:
        return _typed(view, key), None
    if view.page is not None:
        return _on_page(view, view.page, key, room)
    return _on_panels(view, key, keys, room)


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    text = view.filter + key if len(key) == 1 else view.filter
    return replace(view, filter=text[:LONGEST_FILTER])


def _on_panels(view: View, key: str, keys: Sequence[str], room: ScreenSize) -> tuple[View, Wish | None]:
    if key == "q":
        return view, Wish("quit")
    if key == "/":
        return replace(view, is_typing=True), None
    if key == "?":
        return _opened(view, Wish("help"))
    if key == "escape":
        return replace(view, filter=""), None
    if key in ("tab", "back-tab"):
        step = 1 if key == "tab" else -1
        return replace(view, panel=PANELS[(PANELS.index(view.panel) + step) % len(PANELS)]), None
    if key in ("1", "2", "3", "4"):
        return replace(view, panel=PANELS[int(key) - 1]), None
    if key in PAGES:
        return _asked(view, PAGES[key], keys)
    step = _step(key, room.rows)
    return (_moved(view, keys, step), None) if step else (view, None)


def _asked(view: View, kind: str, keys: Sequence[str]) -> tuple[View, Wish | None]:
    if kind not in ABOUT[view.panel]:
        return replace(view, note=f"there is no {kind} of {view.panel}"), None
    if not keys:
        return replace(view, note="nothing is chosen"), None
    return _opened(view, Wish(kind, view.panel, keys[place_of(keys, view.cursor)]))


def _opened(view: View, wish: Wish) -> tuple[View, Wish]:
    return replace(view, page=wish, top=0, sticks=wish.kind == "logs"), wish


def _moved(view: View, keys: Sequence[str], step: int) -> View:
    place = max(min(place_of(keys, view.cursor) + step, len(keys) - 1), 0)
    cursors = list(view.cursors)
    cursors[PANELS.index(view.panel)] = Cursor(keys[place] if keys else "", place)
    return replace(view, cursors=tuple(cursors))


def _on_page(view: View, page: Wish, key: str, room: ScreenSize) -> tuple[View, Wish | None]:
    if key in ("q", "escape"):
        return replace(view, page=None, top=0, sticks=False), Wish("close")
    if key == "c" and page.kind == "logs":
        return _opened(view, replace(page, step=page.step + 1))
    if key in PAGES and page.panel and PAGES[key] in ABOUT[page.panel] and key != "enter":
        return _opened(view, Wish(PAGES[key], page.panel, page.key))
    last = max(room.page_lines - room.page_rows, 0)
    step = _step(key, room.page_rows)
    if not step:
        return view, None
    top = max(min((last if view.sticks else view.top) + step, last), 0)
    return replace(view, top=top, sticks=top == last and page.kind == "logs"), None


def _step(key: str, rows: int) -> int:
    if key in ("page-up", "page-down", " "):
        return -max(rows - 1, 1) if key == "page-up" else max(rows - 1, 1)
    return MOVES.get(key, 0) or JUMPS.get(key, 0)
