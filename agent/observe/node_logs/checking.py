# SPDX-License-Identifier: Apache-2.0
"""Whether a request for logs of the node makes sense, and whose units a reader may see."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from agent.model.finding import Finding, shown
from agent.model.nodes.log import LogRequest

MOST_UNITS = 4
MOST_LINES, USUAL_LINES = 100_000, 500
MOST_PATTERN_BYTES = 1024
LEAST_URGENT = 7
OUTPUTS = ("short-iso-precise", "short", "cat", "json")
KERNEL, PACKED = "kernel", ".gz"
# No sign that journalctl expands.
UNIT = re.compile(r"(?!-)[A-Za-z0-9:_.@\\-]{1,256}\Z")
BOOT = re.compile(r"(?:0|-[1-9]\d{0,4}|[0-9a-f]{32})\Z")
# Without one of these, systemd means a service.
TYPES = (
    "service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope",
)  # fmt: skip


def unit_name(given: str) -> str:
    """As the journal has it."""
    return given if given == KERNEL or given.rpartition(".")[2] in TYPES else f"{given}.service"


def matches(unit: str, patterns: Sequence[str]) -> bool:
    """Patterns without a type are of services; `kepd*` also takes other types."""
    name = unit_name(unit)
    return any(fnmatchcase(name, one) or fnmatchcase(name, unit_name(one)) for one in patterns)


def lines_from_end(request: LogRequest) -> int | None:
    """None = all that there are."""
    has_limit = request.since_us is not None or request.until_us is not None or request.boot
    return request.tail if request.tail is not None else None if has_limit else USUAL_LINES


def faults(request: LogRequest) -> list[Finding]:
    """All that is wrong with a request, at once."""
    found = [*_targets(request), *_values(request), *_contradictions(request)]
    return [Finding("", path, text) for path, text in found]


def _targets(request: LogRequest) -> Iterator[tuple[str, str]]:
    if bool(request.units) == bool(request.file):
        yield "units", "expected either units or one file"
    if len(request.units) > MOST_UNITS:
        yield "units", f"{len(request.units)} units; expected at most {MOST_UNITS}"
    for one in request.units[: MOST_UNITS + 1]:
        if UNIT.match(one) is None:
            right = "expected up to 256 letters, digits and : _ . @ \\ -, not beginning with -"
            yield "units", f"{shown(one)} is no name of a unit; {right}"


def _values(request: LogRequest) -> Iterator[tuple[str, str]]:
    if request.tail is not None and not 0 <= request.tail <= MOST_LINES:
        yield "tail", f"{request.tail} lines; expected 0 to {MOST_LINES}"
    size = len(request.grep.encode("utf-8", "surrogatepass"))
    if size > MOST_PATTERN_BYTES:
        yield "grep", f"a pattern of {size} bytes; expected at most {MOST_PATTERN_BYTES}"
    if set(request.grep) & {"\0", "\n"}:
        yield "grep", f"{shown(request.grep)} has a NUL or a newline; expected one line"
    if request.boot and BOOT.match(request.boot) is None:
        yield "boot", f"{shown(request.boot)} is no boot; expected 0, -1, -2 … or an id of 32 hexadecimal digits"
    if request.priority is not None and not 0 <= request.priority <= LEAST_URGENT:
        yield "priority", f"{request.priority} is no priority; expected 0 to {LEAST_URGENT}"
    if request.output and request.output not in OUTPUTS:
        yield "output", f"{shown(request.output)} is not one of {', '.join(OUTPUTS)}"


def _contradictions(request: LogRequest) -> Iterator[tuple[str, str]]:
    if request.since_us is not None and request.until_us is not None and request.until_us <= request.since_us:
        yield "until", "the end is not after the beginning; expected a later time"
    if request.follow and request.until_us is not None:
        yield "until", "new lines never come before an end; expected either --until or --follow"
    if request.follow and request.boot not in ("", "0"):
        yield "boot", "an earlier boot writes no new lines; expected either --boot or --follow"
    if request.ignore_case and not request.grep:
        yield "ignoreCase", "there is no pattern whose case it could ignore; expected --grep too"
    if request.units and request.rotated:
        yield "rotated", "the journal has no rotated files; expected it with a file"
    if request.follow and request.file.endswith(PACKED):
        yield "follow", "what is packed gets no new lines; expected the file that is written"
    if request.file:
        if request.boot:
            yield "boot", "lines of a file say nothing of boots; expected it with units"
        if request.priority is not None:
            yield "priority", "lines of a file have no priority; expected it with units"
        if request.output not in ("", "cat"):
            yield "output", f"lines of a file are printed as they are; expected cat, not {shown(request.output)}"
