# SPDX-License-Identifier: Apache-2.0
"""When schedules come: against an oracle that looks at each minute, and by what their forms mean."""

from datetime import UTC, datetime
from itertools import islice
from random import Random
from zoneinfo import ZoneInfo

import pytest

from agent.pods.workloads.cron_schedule import (
    DESCRIPTORS,
    Calendar,
    Every,
    count_times,
    latest_time,
    next_time,
    parse_schedule,
    times,
)
from tests.pods.workloads.cron_oracle import ZONES, all_times, random_moment, random_schedule

CASES = 2000
NEW_YORK, SAO_PAULO = ZoneInfo("America/New_York"), ZoneInfo("America/Sao_Paulo")


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def after(schedule: str, zone: ZoneInfo, text: str, count: int = 1) -> list[str]:
    found = islice(times(parse_schedule(schedule), zone, moment(text)), count)
    return [datetime.fromtimestamp(one, zone).isoformat(timespec="minutes") for one in found]


@pytest.mark.parametrize("part", range(10))
def test_random_schedules_in_random_zones_come_in_random_outages_when_the_oracle_says(part: int) -> None:
    """CJ-2."""
    random = Random(part)
    for _ in range(CASES // 10):
        made, zone = random_schedule(random), ZoneInfo(random.choice(ZONES))
        schedule = parse_schedule(made.text)
        since_s = random_moment(random, zone)
        outage_s = random.choice((90, 3_600, 21_600, 86_400, 86_400 * random.choice((2, 2, 2, 15))))
        expected = all_times(made, zone, since_s, since_s + outage_s)
        about = f"{made.text!r} in {zone.key} for {outage_s} s from {since_s}"

        found = []
        for one in times(schedule, zone, since_s):
            if one > since_s + outage_s:
                break
            found.append(one)
        assert expected == found, about
        assert (expected[-1] if expected else None) == latest_time(schedule, zone, since_s, since_s + outage_s), about
        assert min(len(expected), 101) == count_times(schedule, zone, since_s, since_s + outage_s, 101), about
        if expected:
            assert expected[0] == next_time(schedule, zone, since_s, since_s), about


@pytest.mark.parametrize("name", ZONES)
def test_around_each_change_of_the_clock_in_five_years_the_oracle_agrees(name: str) -> None:
    zone, random = ZoneInfo(name), Random(name)
    days = range(moment("2016-01-01T00:00+00:00"), moment("2021-01-01T00:00+00:00"), 86_400)
    changes = [
        day
        for day in days
        if datetime.fromtimestamp(day, zone).utcoffset() != datetime.fromtimestamp(day + 86_400, zone).utcoffset()
    ]
    for change_s in changes:
        for _ in range(5):
            made = random_schedule(random)
            expected = all_times(made, zone, change_s - 86_400, change_s + 2 * 86_400)
            schedule = parse_schedule(made.text)

            found = list(islice(times(schedule, zone, change_s - 86_400), len(expected)))
            assert expected == found, f"{made.text!r} around {change_s}"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("*/15 * * * *", "0,15,30,45 * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("10-20/5 * * * *", "10,15,20 * * * *"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 0 * JAN-mar Sun,wEd", "0 0 * 1,2,3 0,3"),
        (" 0  0\t1 * * ", "0 0 1 * *"),
        ("0,,5, * * * *", "0,5 * * * *"),
        ("007 +3 * * *", "7 3 * * *"),
        ("*-9 0 * * *", "* 0 * * *"),
        ("*/90 0 * * *", "0 0 * * *"),
        ("0 0 * * mon/2", "0 0 * * 1,3,5"),
        *DESCRIPTORS.items(),
    ],
)
def test_forms_that_mean_the_same_are_read_alike(text: str, same: str) -> None:
    """CJ-1."""
    assert parse_schedule(same) == parse_schedule(text)


@pytest.mark.parametrize(
    ("text", "either"),
    [("0 0 1 * 1", True), ("0 0 * * 1", False), ("0 0 1 * *", False), ("0 0 */2 * 1", True), ("0 0 */1 * 1", False)],
)
def test_a_day_of_the_month_or_of_the_week_is_enough_unless_one_is_a_star(text: str, either: bool) -> None:
    """CJ-1. A star with a step restricts."""
    schedule = parse_schedule(text)

    assert isinstance(schedule, Calendar)
    assert either == schedule.takes_either


@pytest.mark.parametrize(
    ("text", "period_s"),
    [
        ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("1h0.5m", 3630), ("1500ms", 1), ("5ns", 1), ("0", 1), ("-1h", 1),
        ("2m3s4ms", 123), (".5m", 30), ("3.m", 180), ("1000000us", 1), ("2000000µs", 2), ("+1m", 60),
    ],
)  # fmt: skip
def test_every_takes_durations_as_go_writes_them(text: str, period_s: int) -> None:
    """CJ-1."""
    assert Every(period_s) == parse_schedule(f"@every {text}")


def test_every_counts_from_the_last_time_and_not_from_now() -> None:
    schedule = Every(600)

    assert next_time(schedule, UTC, 1000, 1000) == 1600
    assert next_time(schedule, UTC, 1000, 1600) == 2200
    assert next_time(schedule, UTC, 1000, 10) == 1600
    assert latest_time(schedule, UTC, 1000, 7599) == 7000
    assert latest_time(schedule, UTC, 1000, 1599) is None
    assert count_times(schedule, UTC, 0, 10**9, 101) == 101


@pytest.mark.parametrize(
    ("schedule", "start", "expected"),
    [
        ("30 2 11 mar ?", "2012-03-11T00:00-05:00", ["2013-03-11T02:30-04:00"]),
        ("0 * * * *", "2012-03-11T01:00-05:00", ["2012-03-11T03:00-04:00"]),
        ("0 2 * * *", "2012-03-11T00:00-05:00", ["2012-03-12T02:00-04:00"]),
        ("30 1 4 nov ?", "2012-11-04T01:45-04:00", ["2012-11-04T01:30-05:00"]),
        ("0 1 * * *", "2012-11-04T00:00-04:00", ["2012-11-04T01:00-04:00", "2012-11-04T01:00-05:00"]),
        ("0 0 29 2 ?", "2012-07-09T23:35-04:00", ["2016-02-29T00:00-05:00", "2020-02-29T00:00-05:00"]),
        ("0 0 29 2 ?", "2096-03-01T00:00-05:00", ["2104-02-29T00:00-05:00"]),
    ],
)
def test_a_minute_that_the_clock_skips_does_not_come_and_one_that_it_repeats_comes_twice(
    schedule: str, start: str, expected: list[str]
) -> None:
    """CJ-2. Moments that robfig/cron names for its own Next."""
    assert expected == after(schedule, NEW_YORK, start, len(expected))


def test_a_day_without_midnight_has_its_other_hours() -> None:
    """CJ-2."""
    assert after("0 9 10 * ?", SAO_PAULO, "2018-10-17T05:00-04:00") == ["2018-11-10T09:00-02:00"]
    assert after("0 9 22 * ?", SAO_PAULO, "2018-02-14T05:00-05:00") == ["2018-02-22T09:00-03:00"]
    assert after("0 5 4 * ?", SAO_PAULO, "2018-11-03T10:00-03:00") == ["2018-11-04T05:00-02:00"]


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", ", * * * *"])
def test_what_never_comes_has_no_times(text: str) -> None:
    schedule = parse_schedule(text)

    assert next_time(schedule, UTC, 0, 1_700_000_000) is None
    assert latest_time(schedule, UTC, 0, 1_700_000_000) is None
    assert count_times(schedule, UTC, 0, 1_700_000_000, 101) == 0


def test_the_latest_of_decades_is_found_without_a_look_at_each() -> None:
    assert moment("2026-11-28T15:07+00:00") == latest_time(
        parse_schedule("* * * * *"), UTC, 0, moment("2026-11-28T15:07:59+00:00")
    )


BAD = [
    "", " ", "*", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *",
    "* * * 13 *", "* * * * 7", "* * * * 0-7", "* * * * 8", "-1 * * * *", "1- * * * *", "5-1 * * * *", "1-2-3 * * * *",
    "*/0 * * * *", "*/-1 * * * *", "*/ * * * *", "1/2/3 * * * *", "a * * * *", "* * * foo *", "* * * january *",
    "* * * * tues", "* * * * sunday", "jan * * * *", "1.5 * * * *", "0x5 * * * *", "1_0 * * * *", "٣ * * * *",
    "** * * * *", "*5 * * * *", "L * * * *", "* * 15W * *", "* * * * 1#2", "@", "@Daily", "@dayly", "@every",
    "@every ", "@every 5", "@every 1d", "@every  1h", "@every 1h ", "@every h", "@every 9999999999h", "@every .s",
    "@every 1h-5m", "@reboot", " @daily", "TZ=UTC 0 0 * * *", "CRON_TZ=UTC @daily", "0 0 * * * TZ=UTC",
    "* * * * sat-sun", "0 0 31-1 * *", "99999999999999999999 * * * *",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_a_bad_schedule_is_told_in_one_line(text: str) -> None:
    """CJ-1."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as told:
        parse_schedule(text)

    assert any(word in str(told.value) for word in ("expected", "belongs", "is longer")), told.value


def test_a_long_duration_is_refused_at_once() -> None:
    """It was taken apart in every possible way."""
    with pytest.raises(ValueError, match="is no duration"):
        parse_schedule("@every " + "111111m" * 200 + "!")


def test_bad_schedules_are_many_enough() -> None:
    assert len(set(BAD)) >= 40
