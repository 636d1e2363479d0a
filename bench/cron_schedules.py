# SPDX-License-Identifier: Apache-2.0
"""How long the times of CronJobs take to find: all of two years, the next one, and the latest after an outage.

Schedules and zones are those of the tests' oracle, the same every time. Never: asserts.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from statistics import quantiles
from time import perf_counter
from zoneinfo import ZoneInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.pods.workloads.cron_schedule import Schedule, latest_time, next_time, parse_schedule, times
from tests.pods.workloads.cron_oracle import ZONES, random_schedule

Figure = tuple[str, float, str, str]
CASES = 2000
START_S = 1_767_225_600
TWO_YEARS_S = 2 * 365 * 86_400


def measure() -> list[Figure]:
    random = Random(1)
    cases = [(parse_schedule(random_schedule(random).text), ZoneInfo(random.choice(ZONES))) for _ in range(CASES)]
    years, looks, latest = [], [], []
    for schedule, zone in cases:
        # The first look at a zone reads its file.
        looks.append(timed(partial(next_time, schedule, zone, START_S, START_S)) * 1000)
        years.append(timed(partial(count, schedule, zone)) * 1000)
        latest.append(timed(partial(latest_time, schedule, zone, START_S, START_S + TWO_YEARS_S)) * 1000)
    every_minute = parse_schedule("* * * * *"), ZoneInfo("Europe/Berlin")
    never = parse_schedule("0 0 30 2 *"), ZoneInfo("Europe/Berlin")
    return [
        ("two years of a schedule, the slowest of 2 000 random ones", max(years), "ms", "<= 1000"),
        ("two years of a schedule, 99 of 100", quantiles(years, n=100)[98], "ms", ""),
        ("two years of * * * * *, 1 051 200 times", timed(lambda: count(*every_minute)) * 1000, "ms", "<= 1000"),
        ("the next time, the slowest of 2 000", max(looks), "ms", ""),
        ("the latest time after two years, the slowest of 2 000", max(latest), "ms", ""),
        ("a schedule that never comes", timed(lambda: next_time(*never, START_S, START_S)) * 1000, "ms", ""),
    ]


def count(schedule: Schedule, zone: ZoneInfo) -> int:
    until_s = START_S + TWO_YEARS_S
    return sum(1 for _ in takewhile(lambda one: one <= until_s, islice(times(schedule, zone, START_S), 1_100_000)))


def timed(work: Callable[[], object]) -> float:
    begun_s = perf_counter()
    work()
    return perf_counter() - begun_s


if __name__ == "__main__":
    for name, value, unit, target in measure():
        print(f"{name:62} {value:10.2f} {unit:4} {target}")
