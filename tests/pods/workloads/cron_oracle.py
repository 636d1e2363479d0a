# SPDX-License-Identifier: Apache-2.0
"""When a schedule comes, the slow way: each minute is looked at on the wall clock of its zone.

It shares nothing with the code that it judges: schedules are made here as text and as sets of numbers at once, so that
no text is read, and no minute is left out, so that nothing about changes of the clock needs to be known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

MINUTE_S = 60
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# Whole hours, halves and quarters; changes at night, at midnight and by 30 minutes; days that never were.
ZONES = (
    "UTC", "America/New_York", "America/Sao_Paulo", "America/St_Johns", "America/Havana", "America/Santiago",
    "America/Asuncion", "America/Caracas", "Europe/Berlin", "Europe/Dublin", "Europe/Lisbon", "Africa/Casablanca",
    "Africa/Cairo", "Antarctica/Troll", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran", "Asia/Kathmandu", "Asia/Kolkata",
    "Asia/Pyongyang", "Australia/Lord_Howe", "Pacific/Chatham", "Pacific/Apia", "Pacific/Kiritimati", "Pacific/Fiji",
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A schedule as text, and what its fields let through."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def comes_at(self, local: datetime) -> bool:
        if local.minute not in self.minutes or local.hour not in self.hours or local.month not in self.months:
            return False
        by_day, by_weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.any_day or self.any_weekday else by_day or by_weekday


def all_times(made: Made, zone: ZoneInfo, after_s: int, until_s: int) -> list[int]:
    """Later than the one and not later than the other."""
    first = after_s - after_s % MINUTE_S + MINUTE_S
    return [
        minute_s
        for minute_s in range(first, until_s + 1, MINUTE_S)
        if made.comes_at(datetime.fromtimestamp(minute_s, zone))
    ]


def random_schedule(random: Random) -> Made:
    minutes, minute, _ = _field(random, 0, 59, ())
    hours, hour, _ = _field(random, 0, 23, ())
    days, day, any_day = _field(random, 1, 31, (), stars=3)
    months, month, _ = _field(random, 1, 12, MONTHS, stars=6)
    weekdays, weekday, any_weekday = _field(random, 0, 6, WEEKDAYS, stars=3)
    text = random.choice((" ", "  ", "\t")).join((minute, hour, day, month, weekday))
    return Made(text, minutes, hours, days, months, weekdays, any_day, any_weekday)


def _field(
    random: Random, low: int, high: int, names: Sequence[str], stars: int = 1
) -> tuple[frozenset[int], str, bool]:
    found: set[int] = set()
    texts = []
    has_star = False
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        is_star = random.randrange(stars + 4) < stars
        kind = "star" if is_star else random.choice(("one", "range", "steps", "from", "every"))
        first = random.randint(low, high)
        last = random.randint(first, high)
        step = random.randint(1, high)
        match kind:
            case "star":
                texts.append(random.choice("*?"))
                found |= set(range(low, high + 1))
                has_star = True
            case "one":
                texts.append(_name(random, first, low, names))
                found.add(first)
            case "range":
                texts.append(f"{_name(random, first, low, names)}-{_name(random, last, low, names)}")
                found |= set(range(first, last + 1))
            case "steps":
                texts.append(f"{first}-{last}/{step}")
                found |= set(range(first, last + 1, step))
            case "from":
                texts.append(f"{_name(random, first, low, names)}/{step}")
                found |= set(range(first, high + 1, step))
            case "every":
                texts.append(f"*/{step}")
                found |= set(range(low, high + 1, step))
                has_star = has_star or step == 1
    return frozenset(found), ",".join(texts), has_star


def _name(random: Random, value: int, low: int, names: Sequence[str]) -> str:
    if not names or random.random() < 0.5:
        return str(value)
    name = names[value - low]
    return random.choice((name, name.upper(), name.capitalize()))


def random_moment(random: Random, zone: ZoneInfo) -> int:
    """Half of them within a day of a change of the clock, if the zone has one in that year."""
    year = random.randint(2009, 2035)
    days = [datetime(year, 1, 1, 12, tzinfo=UTC) + timedelta(days=day) for day in range(365)]
    changes = [
        day for day, next_day in pairwise(days)
        if day.astimezone(zone).utcoffset() != next_day.astimezone(zone).utcoffset()
    ]  # fmt: skip
    if changes and random.random() < 0.5:
        return int(random.choice(changes).timestamp()) + random.randint(-86_400, 86_400)
    return int(days[0].timestamp()) + random.randrange(365 * 86_400)
