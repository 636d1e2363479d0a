# SPDX-License-Identifier: Apache-2.0
"""Teapots."""

from collections.abc import Iterator

from agent.kinds.kind import Kind
from agent.kinds.parts import part
from agent.kinds.table import Column
from agent.kinds.written import AGE, NAMES, shown_objects


def _faults(made: dict[str, object]) -> Iterator[tuple[str, str]]:
    size = part(made, "spec").get("cups")
    if not isinstance(size, int) or size < 1:
        yield "spec.cups", f"{size!r} is no number of cups; expected one from 1 on"


KIND = Kind("teapots", "teapot", ("tp",), "Teapot", group="tea.example.com", faults=_faults)
SHOWN = shown_objects((*NAMES, Column("CUPS", lambda made: str(part(made, "spec").get("cups"))), AGE))
