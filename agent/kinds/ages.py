# SPDX-License-Identifier: Apache-2.0
"""How long ago something was, as kubectl writes it."""

import time
from typing import Protocol


class Stamp(Protocol):
    @property
    def seconds(self) -> int: ...


def age(stamp: Stamp) -> str:
    """How long ago, as kubectl writes it."""
    return age_of(stamp, time.time())


def age_of(stamp: Stamp, now_s: float) -> str:
    if not stamp.seconds:
        return ""
    seconds = max(0, int(now_s - stamp.seconds))
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"
