# SPDX-License-Identifier: Apache-2.0
"""What a CronJob's `schedule` says, and when that comes on the wall clock of a zone.

It is read as the library reads it that Kubernetes uses: five fields or a descriptor. A minute that the clock skips does
not come, and one that it shows twice comes twice. Times are whole seconds since 1970; the database of zones is taken
for a fact, as the calendar is. Never: asks what time it is.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import islice

import msgspec

from agent.model.finding import shown

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DESCRIPTORS: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY = "@every "
NUMBER = re.compile(r"[+]?[0-9]{1,18}\Z")
# Each text can be taken apart in one way only, or a long one would take for ever.
DURATION = re.compile(r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+\Z")
DURATION_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
LONGEST_NS = 2**63 - 1
DAY_S, MINUTE_S = 86_400, 60
EPOCH_DAY = date(1970, 1, 1).toordinal()
FARTHEST_DAYS = 9 * 366
"""29 February comes within eight years; what has not come by then never does."""


class Calendar(msgspec.Struct, frozen=True):
    """`minutes` and `hours` in their order. `takes_either`: one of both days is enough, since both are restricted."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    takes_either: bool

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.takes_either else by_day and by_weekday


class Every(msgspec.Struct, frozen=True):
    """So many seconds after the last time, whatever a clock on the wall shows."""

    period_s: int


Schedule = Calendar | Every


class _Bounds(msgspec.Struct, frozen=True):
    what: str
    low: int
    high: int
    names: tuple[str, ...] = ()


FIELDS = (
    _Bounds("minute", 0, 59),
    _Bounds("hour", 0, 23),
    _Bounds("day of the month", 1, 31),
    _Bounds("month", 1, 12, MONTHS),
    _Bounds("day of the week", 0, 6, WEEKDAYS),
)


def parse_schedule(text: str) -> Schedule:
    """Raises ValueError, which says what is wrong with which part."""
    if "TZ" in text:
        raise ValueError("the zone belongs into timeZone, without TZ= or CRON_TZ=")
    if text.startswith(EVERY):
        return Every(_period_s(text.removeprefix(EVERY)))
    if text.startswith("@") and text not in DESCRIPTORS:
        raise ValueError(f"{shown(text)} is not known; expected {', '.join(DESCRIPTORS)} or @every with a duration")
    fields = DESCRIPTORS.get(text, text).split()
    if len(fields) != len(FIELDS):
        expected = ", ".join(one.what for one in FIELDS)
        raise ValueError(f"has {len(fields)} fields; expected 5: {expected}; or one word such as @daily")
    minutes, hours, days, months, weekdays = (
        _field(field, bounds) for field, bounds in zip(fields, FIELDS, strict=True)
    )
    return Calendar(
        minutes=tuple(sorted(minutes[0])),
        hours=tuple(sorted(hours[0])),
        days=days[0],
        months=months[0],
        weekdays=weekdays[0],
        takes_either=not (days[1] or weekdays[1]),
    )


def _period_s(text: str) -> int:
    """Whole seconds, and never less than one."""
    if text not in ("0", "+0", "-0") and not DURATION.match(text):
        raise ValueError(f"{shown(text)} is no duration; expected one such as 90s, 15m or 1h30m after @every")
    total_ns = 0
    for number, unit in DURATION_PART.findall(text):
        whole, _, rest = number.partition(".")
        total_ns += int(whole or "0") * UNITS_NS[unit] + int(rest or "0") * UNITS_NS[unit] // 10 ** len(rest)
    if total_ns > LONGEST_NS:
        raise ValueError(f"{shown(text)} is longer than the 292 years that a duration may have")
    return max(total_ns // 10**9, 1) if not text.startswith("-") else 1


def _field(text: str, bounds: _Bounds) -> tuple[frozenset[int], bool]:
    """Its numbers, and whether a star is among its parts. An empty part stands for nothing."""
    found: set[int] = set()
    has_star = False
    for part in text.split(","):
        if part:
            numbers, is_star = _part(part, bounds)
            found.update(numbers)
            has_star = has_star or is_star
    return frozenset(found), has_star


def _part(text: str, bounds: _Bounds) -> tuple[range, bool]:
    spread, *steps = text.split("/")
    ends = spread.split("-")
    if len(steps) > 1:
        raise ValueError(f"{bounds.what} {shown(text)} has more than one /; expected FIRST-LAST/STEP")
    is_star = ends[0] in ("*", "?")
    if not is_star and len(ends) > 2:
        raise ValueError(f"{bounds.what} {shown(text)} has more than one -; expected FIRST-LAST")
    step = _number(steps[0], text, bounds) if steps else 1
    first = bounds.low if is_star else _number(ends[0], text, bounds, bounds.names)
    last = bounds.high if is_star or (steps and len(ends) == 1) else _number(ends[-1], text, bounds, bounds.names)
    where = f"{bounds.what} {shown(text)}"
    if first < bounds.low or last > bounds.high:
        wrong = first if first < bounds.low else last
        hint = "; Sunday is 0 or sun" if bounds.names == WEEKDAYS and wrong == 7 else ""
        raise ValueError(f"{where} reaches {wrong}; expected {bounds.low} to {bounds.high}{hint}")
    if first > last:
        raise ValueError(f"{where} begins with {first}, behind its end {last}; expected FIRST-LAST, or a list of both")
    if not step:
        raise ValueError(f"{where} has step 0; expected 1 or more")
    return range(first, last + 1, step), is_star and step == 1


def _number(text: str, part: str, bounds: _Bounds, names: tuple[str, ...] = ()) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + bounds.low
    if not NUMBER.match(text):
        named = f", or a name such as {names[0]}" if names else ""
        what = shown(text) if text else "nothing"
        raise ValueError(f"{bounds.what} {shown(part)} has {what} where a number from {bounds.low} on belongs{named}")
    return int(text)


def times(schedule: Schedule, zone: tzinfo, after_s: int) -> Iterator[int]:
    """All later ones in their order; of one that never comes none."""
    if isinstance(schedule, Every):
        while True:
            after_s += schedule.period_s
            yield after_s
    # A clock that is set back over midnight shows the end of a day after the beginning of the next one.
    day = datetime.fromtimestamp(after_s, zone).toordinal() - 1
    held: list[int] = []
    end = day + FARTHEST_DAYS
    while day <= end:
        found = _times_of(schedule, zone, date.fromordinal(day))
        if found:
            end = day + FARTHEST_DAYS
        if held and found and held[-1] > found[0]:
            held = sorted((*held, *found))
        else:
            yield from (one for one in held if one > after_s)
            held = found
        day += 1


def next_time(schedule: Schedule, zone: tzinfo, since_s: int, after_s: int) -> int | None:
    """The first after a moment, with periods counted from `since_s`; None: it never comes."""
    if isinstance(schedule, Every):
        return since_s + max((after_s - since_s) // schedule.period_s + 1, 1) * schedule.period_s
    return next(times(schedule, zone, max(since_s, after_s)), None)


def latest_time(schedule: Schedule, zone: tzinfo, since_s: int, until_s: int) -> int | None:
    """The last one later than `since_s` that has come by `until_s`."""
    if until_s <= since_s:
        return None
    if isinstance(schedule, Every):
        passed = (until_s - since_s) // schedule.period_s
        return since_s + passed * schedule.period_s if passed else None
    day = datetime.fromtimestamp(until_s, zone).toordinal() + 1
    first = max(datetime.fromtimestamp(since_s, zone).toordinal() - 1, day - FARTHEST_DAYS)
    best: int | None = None
    for ordinal in range(day, first - 1, -1):
        come = [one for one in _times_of(schedule, zone, date.fromordinal(ordinal)) if since_s < one <= until_s]
        if best is not None:
            # The day before it may reach beyond it, if the clock was set back over midnight.
            return max(best, *come) if come else best
        best = come[-1] if come else None
    return best


def count_times(schedule: Schedule, zone: tzinfo, since_s: int, until_s: int, most: int) -> int:
    """How many came between, `most` at most."""
    count = 0
    for one in islice(times(schedule, zone, since_s), most):
        if one > until_s:
            break
        count += 1
    return count


def _times_of(schedule: Calendar, zone: tzinfo, day: date) -> list[int]:
    """Those on one day of the zone's calendar, in the order in which they come."""
    if not schedule.has_day(day):
        return []
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    before, after = midnight.utcoffset(), (midnight + timedelta(days=1)).replace(fold=1).utcoffset()
    if before == after and before is not None:
        start_s = (day.toordinal() - EPOCH_DAY) * DAY_S - int(before.total_seconds())
        return [start_s + hour * 3600 + minute * MINUTE_S for hour in schedule.hours for minute in schedule.minutes]
    return sorted(_of_changed_day(schedule, midnight))


def _of_changed_day(schedule: Calendar, midnight: datetime) -> set[int]:
    """The clock is set on this day: some of its minutes do not come, or come twice."""
    found = set()
    for hour in schedule.hours:
        for minute in schedule.minutes:
            for fold in (0, 1):
                wanted = midnight.replace(hour=hour, minute=minute, fold=fold)
                moment = wanted.astimezone(UTC)
                # A minute that is skipped is read back as another one.
                if moment.astimezone(wanted.tzinfo).replace(tzinfo=None, fold=0) == wanted.replace(tzinfo=None, fold=0):
                    found.add(int(moment.timestamp()))
    return found
