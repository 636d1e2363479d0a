# SPDX-License-Identifier: Apache-2.0
"""One thing that is wrong with something a user wrote, or that should be changed on this node.

Every complaint about configuration and manifests has this shape: `where: path: what is wrong; what would be right`.
"""

from collections.abc import Iterable

import msgspec

LONGEST_VALUE_SHOWN = 80
MOST_FAULTS = 3
# Fields as older versions or proposals of Kubernetes call them, and what serves in their place.
FORMER_FIELDS = {
    "topologyKeys": "annotation kepd.dev/topology-keys does the same",
    "fileEnvSource": "fileKeyRef is its name",
}


class Finding(msgspec.Struct, frozen=True, order=True):
    """A complaint with its place. `where` is `file:line`, an environment variable or a flag."""

    where: str
    path: str
    text: str

    def __str__(self) -> str:
        return printable(": ".join(part for part in (self.where, self.path, self.text) if part))


def gathered(findings: Iterable[Finding]) -> list[Finding]:
    """What is said of many places alike, once: it stands at the first and says how many more there are."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        places.setdefault((one.path, one.text), []).append(one.where)
    return [
        Finding(f"{where[0]} and {len(where) - 1} more" if len(where) > 1 else where[0], path, text)
        for (path, text), where in places.items()
    ]


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for a slip of the pen, what serves instead of a name of former times, else nothing."""
    if word in FORMER_FIELDS:
        return f"; {FORMER_FIELDS[word]}"
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f'; did you mean "{by_lower[close[0]]}"?' if close else ""


def printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def shown(value: object) -> str:
    """A value as a message may carry it: one line, printable, short."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = printable(text)
    return text if len(text) <= LONGEST_VALUE_SHOWN else text[: LONGEST_VALUE_SHOWN - 1] + "…"


def told_faults(findings: Iterable[Finding], name: str) -> str:
    """Of manifests that are not carried out, where something is not there: it may be meant to be in one of them."""
    texts = [str(one) for one in findings]
    texts = [text for text in texts if name in text] or texts
    more = f", and {len(texts) - MOST_FAULTS} more" if len(texts) > MOST_FAULTS else ""
    return f"; manifests with faults: {', '.join(texts[:MOST_FAULTS])}{more}" if texts else ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """`text` says what goes wrong as it is, `mend` what a person would run or do. A note is only to be known: nothing
    has to change."""

    subject: str
    found: str
    wanted: str
    text: str
    is_note: bool = False
    mend: str = ""
