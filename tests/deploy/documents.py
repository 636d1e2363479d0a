# SPDX-License-Identifier: Apache-2.0
"""Command blocks of a page: what they say, and what a test is to do with them.

In the page an invisible line stands before each: `<!-- run -->`, `<!-- run: shows WORDS -->` or
`<!-- syntax: REASON -->`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks", "languages"]

FENCE = re.compile(r"(?ms)(?:^<!-- ([^\n]*?) -->\n)?^```([a-z]*)\n(.*?)^```$")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of commands."""

    page: str
    line: int
    mark: str
    text: str

    @property
    def is_run(self) -> bool:
        """Or read only."""
        return self.mark.partition(":")[0] == "run"

    @property
    def shows(self) -> str:
        """What the output is to have, sooner or later."""
        return self.mark.partition(": shows ")[2]

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return self.mark.partition("syntax: ")[2]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """In their order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found[2] == "sh":
            yield Block(page.name, text.count("\n", 0, found.start(3)), found[1] or "", found[3])


def languages(page: Path) -> set[str]:
    """Of all blocks; one without a language could be commands that nobody runs."""
    return {found[2] for found in FENCE.finditer(page.read_text())}
