# SPDX-License-Identifier: Apache-2.0
"""What kepctl may write to a terminal: printable signs, line ends and tabs.

Names, messages and images come from tenants, registries and runtimes, and a terminal obeys what it is sent: an escape
sequence in an event could move the cursor, set the title or answer as if typed. So the text streams of the process
themselves are what cleans; no command has to think of it.

What goes around them is meant to: `logs`, `exec` and `attach` write the bytes of a container to the descriptor, as
kubectl does, and rich writes its own colours to `unfiltered`, with cells that were cleaned before.
"""

import sys
from typing import Any, TextIO

KEPT = "\n\t"


def clean(text: str) -> str:
    """Without signs that a terminal obeys, or that change the order in which others are read."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in KEPT else "?" for sign in text)


class CleanText:
    """A text stream whose writes are cleaned. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        self.unfiltered.write(clean(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def encoding(self) -> str:
        """click makes a stream of its own, around this one, where it does not like the encoding."""
        return "utf-8"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the stream has
        return getattr(self.unfiltered, name)


def clean_streams() -> None:
    """Once, before anything is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanText):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, CleanText(stream))


def unfiltered() -> TextIO:
    """Standard output for what kepctl made itself of cleaned texts."""
    stream: TextIO = sys.stdout
    return stream.unfiltered if isinstance(stream, CleanText) else stream
