# SPDX-License-Identifier: Apache-2.0
"""What a terminal sends when keys are pressed, as names of keys."""

import re

NAMED = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\x1b[Z": "back-tab", "\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace",
    "\x1b": "escape", "\x03": "interrupt", "\x1a": "suspend", "\x0c": "redraw",
}  # fmt: skip
ONE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b|.", re.DOTALL)
UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?$")


def read_keys(text: str, *, is_all: bool = True) -> tuple[list[str], str]:
    """The keys, and what may be the beginning of another. `is_all`: no more comes, so what looks unfinished is whole.

    A sign is its own name; sequences that mean nothing here are left out."""
    rest = ""
    begun = UNFINISHED.search(text)
    if begun is not None and not is_all:
        text, rest = text[: begun.start()], begun.group()
    found = (NAMED.get(one, one) for one in ONE.findall(text))
    return [one for one in found if (len(one) == 1 and one.isprintable()) or one in KNOWN], rest


KNOWN = frozenset(NAMED.values())
