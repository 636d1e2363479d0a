# SPDX-License-Identifier: Apache-2.0
"""What a terminal is sent so that it shows other lines: only those that changed (ANSI, as every terminal has it).

Lines are cleaned before they come here; the only control sequences are the ones below.
"""

from collections.abc import Sequence

from kepd_ui.cells import Line

STYLES = {"bold": "1", "dim": "2", "reverse": "7", "red": "31", "green": "32", "yellow": "33"}
COLOURS = frozenset(("red", "green", "yellow"))
# Another screen, so that the shell's comes back as it was; no cursor; long lines do not run over.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[0m\x1b[2J"


def painted(before: Sequence[Line], after: Sequence[Line], *, has_colour: bool) -> str:
    """`before`: what the terminal shows; empty = nothing is known of it."""
    parts: list[str] = [] if before else [CLEAR]
    for place, line in enumerate(after):
        if place >= len(before) or before[place] != line:
            parts.append(f"\x1b[{place + 1};1H{_text(line, has_colour=has_colour)}\x1b[K")
    return "".join(parts)


def _text(line: Line, *, has_colour: bool) -> str:
    parts = []
    for one in line:
        style = STYLES.get(one.style, "") if has_colour or one.style not in COLOURS else ""
        parts.append(f"\x1b[{style}m{one.text}\x1b[0m" if style else one.text)
    return "".join(parts)
