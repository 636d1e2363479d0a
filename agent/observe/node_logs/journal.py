# SPDX-License-Identifier: Apache-2.0
"""How journalctl is asked, and what it means by what it prints."""

import re
from collections.abc import Sequence

from agent.model.nodes.log import LogRequest
from agent.observe.node_logs.checking import KERNEL, lines_from_end, unit_name

MICROS = 1_000_000
CURSOR = re.compile(rb'"__CURSOR"\s*:\s*"([^"\\]{1,512})"')
STAMP = re.compile(rb'"__REALTIME_TIMESTAMP"\s*:\s*"(\d{1,18})"')
NO_FILES, NEWER, CLOSED = "No journal files were found", "unsupported feature", "insufficient permissions"


def journal_arguments(request: LogRequest, directory: str, cursor: str = "") -> tuple[str, ...]:
    """Without the program. A cursor is that of the first line; with it the number of lines says nothing."""
    tail = None if cursor else lines_from_end(request)
    output = request.output or "short-iso-precise"
    return (
        *_place(directory),
        f"--output={output}",
        # In JSON a field that is too long is null, for a cut one would be no JSON.
        *(() if output == "json" else ("--all",)),
        f"--lines={'all' if tail is None else tail}",
        *(("--follow",) if request.follow else ()),
        *((f"--cursor={cursor}",) if cursor else ()),
        *_chosen(request, since_us=None if cursor else request.since_us),
    )


def search_arguments(request: LogRequest, directory: str) -> tuple[str, ...]:
    """The last lines with a pattern come newest first, so their number is asked for in a first look, and the place of
    the oldest is where a second one begins."""
    wanted = lines_from_end(request)
    return (
        *_place(directory),
        "--output=json",
        "--output-fields=__CURSOR",
        "--reverse",
        f"--lines={wanted}",
        *_chosen(request, since_us=request.since_us),
    )


def needs_search(request: LogRequest) -> bool:
    return bool(request.grep) and bool(lines_from_end(request))


def check_arguments(directory: str) -> tuple[str, ...]:
    """Not quiet, as `cat` would be too: says whether there is a journal at all."""
    place = tuple(one for one in _place(directory) if one != "--quiet")
    return (*place, "--lines=1")


def units_arguments(directory: str) -> tuple[str, ...]:
    return (*_place(directory), "--field=_SYSTEMD_UNIT")


def last_arguments(directory: str, unit: str) -> tuple[str, ...]:
    """The last entry of a unit."""
    return (
        *_place(directory), "--output=json", "--output-fields=MESSAGE_ID", "--lines=1", *_of_units((unit,)),
    )  # fmt: skip


def no_journal(told: str) -> str:
    """Why there is no journal, by what journalctl said; empty if it did not say so."""
    if NEWER in told:
        return "written by a newer systemd than the journalctl that is here"
    if CLOSED in told:
        return "the user that kepd runs as may not read it"
    return "no journal files were found" if NO_FILES in told else ""


def last_cursor(chunk: bytes) -> str:
    found = CURSOR.findall(chunk)
    return found[-1].decode("ascii", "replace") if found else ""


def entry_s(told: bytes) -> float | None:
    """When an entry was written, of its JSON."""
    found = STAMP.search(told)
    return int(found[1]) / MICROS if found is not None else None


def _place(directory: str) -> tuple[str, ...]:
    return ("--no-pager", "--quiet", *((f"--directory={directory}",) if directory else ()))


def _chosen(request: LogRequest, since_us: int | None) -> tuple[str, ...]:
    return (
        *((f"--since={_stamp(since_us)}",) if since_us is not None else ()),
        *((f"--until={_stamp(request.until_us)}",) if request.until_us is not None else ()),
        *((f"--boot={request.boot}",) if request.boot else ()),
        *((f"--priority={request.priority}",) if request.priority is not None else ()),
        *(
            (f"--grep={request.grep}", f"--case-sensitive={'no' if request.ignore_case else 'yes'}")
            if request.grep
            else ()
        ),
        *_of_units(request.units),
    )


def _stamp(time_us: int) -> str:
    """A time that has no zone to lose."""
    return f"@{time_us // MICROS}.{time_us % MICROS:06d}"


def _of_units(units: Sequence[str]) -> tuple[str, ...]:
    """The kernel is no unit. Beside it, units are asked for by the fields that `--unit` stands for."""
    if KERNEL not in units:
        return tuple(f"--unit={unit_name(one)}" for one in units)
    terms: list[str] = []
    for one in units:
        name = unit_name(one)
        if one == KERNEL:
            terms += ["_TRANSPORT=kernel", "+"]
        else:
            terms += [f"_SYSTEMD_UNIT={name}", "+", f"UNIT={name}", "_PID=1", "+"]
            terms += [f"OBJECT_SYSTEMD_UNIT={name}", "_UID=0", "+"]
    return tuple(terms[:-1])
