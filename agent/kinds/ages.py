# SPDX-License-Identifier: Apache-2.0
"""How long ago something was, as kubectl writes it. Times are stamps of messages, or texts as Kubernetes has them."""

import time
from datetime import datetime
from typing import Protocol

HOUR_S, DAY_S, YEAR_S = 3600, 86400, 365 * 86400


class Stamp(Protocol):
    @property
    def seconds(self) -> int: ...


def age(at: Stamp | str) -> str:
    """How long ago, as kubectl writes it."""
    return age_of(at, time.time())


def age_of(at: Stamp | str, now_s: float) -> str:
    at_s = seconds_of(at) if isinstance(at, str) else at.seconds
    if not at_s:
        return ""
    seconds = max(0, int(now_s - at_s))
    minutes, hours, days, years = (seconds // length for length in (60, HOUR_S, DAY_S, YEAR_S))
    # Two units where the larger one alone would say little.
    for holds, whole, unit, rest, smaller in (
        (seconds < 120, seconds, "s", 0, ""),
        (minutes < 10, minutes, "m", seconds % 60, "s"),
        (minutes < 180, minutes, "m", 0, ""),
        (hours < 8, hours, "h", minutes % 60, "m"),
        (hours < 48, hours, "h", 0, ""),
        (days < 8, days, "d", hours % 24, "h"),
        (years < 2, days, "d", 0, ""),
        (years < 8, years, "y", days % 365, "d"),
    ):
        if holds:
            return f"{whole}{unit}{f'{rest}{smaller}' if rest else ''}"
    return f"{years}y"


def seconds_of(text: str) -> int:
    """Since 1970; zero for what is no time."""
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0
