# SPDX-License-Identifier: Apache-2.0
"""Why something is not as its manifest wants it: one shape for every plane and for all who show it."""

import msgspec

from agent.model.finding import printable

LONGEST_WORDS = 400


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """`words` are the object's own, such as the last line of its log; `next` is what kepd does and when; `command` is
    the one that helps. `container` is whose log has more to say, `image` the one whose pull does."""

    cause: str
    words: str = ""
    next: str = ""
    command: str = ""
    container: str = ""
    image: str = ""

    @property
    def line(self) -> str:
        """Cause and words, as they fit into a row."""
        return f"{self.cause}: {self.words}" if self.words else self.cause


def quoted(text: str) -> str:
    """On one line, and its end where it is long: there a program says why it gives up."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST_WORDS else f"…{line[-LONGEST_WORDS:]}"
