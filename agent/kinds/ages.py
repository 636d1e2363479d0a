# SPDX-License-Identifier: Apache-2.0
"""How long ago something was, as kubectl writes it. Times are stamps of messages, or texts as Kubernetes has them."""

import time
from datetime import datetime
from typing import Protocol


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
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"


def seconds_of(text: str) -> int:
    """Since 1970; zero for what is no time."""
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0
