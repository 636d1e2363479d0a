# SPDX-License-Identifier: Apache-2.0
"""Command blocks of a page: what they say, and what a test is to do with them.

In the page an invisible line stands before each: `<!-- run -->`, `<!-- run: shows WORDS -->`, `<!-- machine -->` (with
WORDS or not) for what needs a whole machine, in tests/vm, or `<!-- syntax: REASON -->`.

A `console` block has commands behind `# `, and below each what it prints, in which `…` is anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

__all__ = ["COMMANDS", "Block", "blocks", "languages"]

FENCE = re.compile(r"(?ms)(?:^ *<!-- ([^\n]*?) -->\n)?^( *)```([a-z]*)\n(.*?)^ *```$")
COMMANDS = frozenset({"sh", "console", "python"})
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of commands, or of a program in Python."""

    page: str
    line: int
    mark: str
    text: str
    language: str = "sh"

    @property
    def is_run(self) -> bool:
        """On whichever machine has containers."""
        return self.mark.partition(":")[0] == "run"

    @property
    def is_run_in_a_machine(self) -> bool:
        """There all are that are not only read."""
        return self.mark.partition(":")[0] in ("run", "machine")

    @property
    def shows(self) -> str:
        """What the output is to have, sooner or later."""
        return self.mark.partition(": shows ")[2]

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return self.mark.partition("syntax: ")[2]

    @property
    def transcript(self) -> Iterator[tuple[str, list[str]]]:
        """Of a console: each command, and the lines that it prints."""
        for part in re.split(r"(?m)^# ", self.text)[1:]:
            command, *printed = part.splitlines()
            yield command, printed

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *, language: str = "sh") -> Iterator[Block]:
    """In their order."""
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    for found in FENCE.finditer(text):
        if found[3] == language:
            yield Block(name, text.count("\n", 0, found.start(4)), found[1] or "", dedent(found[4]), language)


def languages(page: Path) -> set[str]:
    """Of all blocks; one without a language could be commands that nobody runs."""
    return {found[3] for found in FENCE.finditer(page.read_text())}
