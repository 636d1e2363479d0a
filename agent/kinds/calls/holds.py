# SPDX-License-Identifier: Apache-2.0
"""Everything that waits because kepd makes it wait: calls of a kubelet, and pulls from a registry that asked for a
pause."""

from collections.abc import Sequence

from agent.kinds.kind import Kind
from agent.kinds.shown import Shown
from agent.kinds.table import Column, Columns, Object

KIND = Kind("holds", "hold", has_namespace=False, is_of_each_daemon=True)

WHY_SIGNS = 80


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _ends(hold: Object) -> str:
    seconds = hold["status"].get("endsInSeconds")
    return "with an event" if seconds is None else seconds_text(seconds)


def _what(hold: Object) -> str:
    return " ".join(filter(None, (hold["status"][name] for name in ("method", "pod", "container"))))


def _why(hold: Object) -> str:
    why: str = hold["status"]["why"]
    return why if len(why) <= WHY_SIGNS else f"{why[:WHY_SIGNS]}…"


COLUMNS: Columns[Object] = (
    Column("ID", lambda hold: hold["metadata"]["name"]),
    Column("REASON", lambda hold: hold["status"]["reason"]),
    Column("HELD", lambda hold: seconds_text(hold["status"]["heldSeconds"])),
    Column("ENDS IN", _ends),
    Column("WHAT", _what),
    Column("WAITS FOR", lambda hold: ", ".join(hold["status"]["waitsFor"])),
    Column("WHY", _why),
)


def _note(holds: Sequence[Object]) -> Sequence[str]:
    return ["kepctl release hold ID lets one go on"] if holds else []


SHOWN = Shown(
    # A node may have only one of the two planes.
    ("kepd.v1.CriProxyService", "kepd.v1.ImageService"),
    COLUMNS,
    kind="Hold",
    empty="nothing is held",
    note=_note,
    has_labels=False,
    is_kubernetes=False,
)
