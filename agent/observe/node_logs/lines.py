# SPDX-License-Identifier: Apache-2.0
"""Bytes of a log as whole lines of bounded length, and the times that lines begin with."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

LONGEST_LINE = 64 << 10
ISO = re.compile(rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?[\s\]]")
SYSLOG = re.compile(rb"(?:<\d{1,3}>)?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([ \d]\d) (\d\d):(\d\d):(\d\d) ")
MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
TimeOf = Callable[[bytes], int | None]


class LineCutter:
    """Takes chunks, gives whole lines. What a line has beyond the longest is counted and dropped."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._begun = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> bytes:
        end = chunk.find(b"\n")
        if end < 0:
            self._begin(chunk)
            return b""
        self._begin(chunk[:end])
        first = self._end()
        last = chunk.rfind(b"\n")
        middle = chunk[end + 1 : last + 1]
        if len(middle) > self._longest:
            middle = b"".join(self._cut(line) for line in middle.split(b"\n")[:-1])
        self._begin(chunk[last + 1 :])
        return first + middle

    def rest(self) -> bytes:
        """A line that never ended."""
        return self._end() if self._begun or self._dropped else b""

    def _begin(self, part: bytes) -> None:
        room = self._longest - len(self._begun)
        self._begun += part[:room]
        self._dropped += max(len(part) - room, 0)

    def _end(self) -> bytes:
        line, dropped = self._begun, self._dropped
        self._begun, self._dropped = b"", 0
        return _shortened(line, dropped)

    def _cut(self, line: bytes) -> bytes:
        return _shortened(line[: self._longest], max(len(line) - self._longest, 0))


def _shortened(line: bytes, dropped: int) -> bytes:
    if not dropped:
        return line + b"\n"
    # Not in the middle of a sign.
    kept = line
    for size in range(1, min(len(line), 4) + 1):
        lead = line[-size]
        if lead & 0xC0 != 0x80:
            needed = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
            kept = line[:-size] if needed > size else line
            break
    return kept + f"…[+{dropped + len(line) - len(kept)} bytes]\n".encode()


def line_time(line: bytes, now: datetime) -> int | None:
    """Microseconds of wall time that a line begins with; None if it does not. `now` has the zone of the node, which is
    that of times without one; of a time without a year it is the last such one."""
    found = ISO.match(line[:64] + b" ")
    if found is not None:
        day, clock, part, zone = (one.decode() if one else "" for one in found.groups())
        try:
            read = datetime.fromisoformat(f"{day}T{clock}{zone}")
        except ValueError:
            return None
        return _micros(read, now.tzinfo) + int(f"{part:0<6.6}")
    found = SYSLOG.match(line[:64])
    if found is None:
        return None
    month, day_of, hour, minute, second = found.groups()
    for year in (now.year + 1, now.year, now.year - 1):
        try:
            read = datetime(
                year, MONTHS.index(month) + 1, int(day_of), int(hour), int(minute), int(second), tzinfo=now.tzinfo
            )
        except ValueError:
            continue
        if read <= now + timedelta(days=1):
            return _micros(read, now.tzinfo)
    return None


def _micros(time: datetime, zone: tzinfo | None) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=zone)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000


class Between:
    """The lines of a file from one time to another. A line without a time has that of the line before it."""

    def __init__(self, since_us: int | None, until_us: int | None, time_of: TimeOf) -> None:
        self._since_us = since_us
        self._until_us = until_us
        self._time_of = time_of
        self._is_inside = since_us is None

    def of(self, lines: bytes) -> bytes:
        if self._is_inside and self._until_us is None:
            # Lines are in the order of their times.
            return lines
        return b"".join(line + b"\n" for line in lines.split(b"\n")[:-1] if self._takes(line))

    def _takes(self, line: bytes) -> bool:
        time_us = self._time_of(line)
        if time_us is not None:
            is_early = self._since_us is not None and time_us < self._since_us
            is_late = self._until_us is not None and time_us > self._until_us
            self._is_inside = not (is_early or is_late)
        return self._is_inside


class LastLines:
    """Leaves out so many lines, and gives the others."""

    def __init__(self, skipped: int) -> None:
        self._left = skipped

    def of(self, lines: bytes) -> bytes:
        place = 0
        while self._left and place < len(lines):
            end = lines.find(b"\n", place)
            place = len(lines) if end < 0 else end + 1
            self._left -= 1
        return lines[place:]
