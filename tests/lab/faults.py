# SPDX-License-Identifier: Apache-2.0
"""Injected faults and recorded requests, as values that both ends of the throttle's control socket understand.

Owns: what a fault is, which requests it meets, and what is known of a request.
Never: does I/O; throttle_server.py acts on these, throttle.py asks for them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tests.lab.errors import LabError

__all__ = ["Fault", "Kind", "Request"]

Kind = Literal["hang", "reset", "truncate", "status", "delay", "redirect"]
NEEDS_STATUS = range(100, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to requests whose `METHOD /path` (without the query) contains a match of `pattern`.

    hang      nothing after `after_bytes` of the body (0: not even a status line) until cleared, then goes on as usual
    reset     connection reset after `after_bytes` of the body (0: before any answer)
    truncate  connection closed in order after `after_bytes` of a longer body
    status    answer `status` with `headers` and an error body, without asking the registry
    delay     answer after `delay_s`
    redirect  answer 307 to the same path, each time anew
    """

    kind: Kind
    pattern: str = ""
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    after_bytes: int = 0
    delay_s: float = 0.0
    times: int | None = None
    """How many requests it meets before it is used up; none: all of them."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise LabError(f"fault {self.kind}: pattern {self.pattern!r} is no regular expression: {error}") from error
        if self.kind not in get_args(Kind):
            raise LabError(f"fault {self.kind!r}: unknown kind; known are {', '.join(get_args(Kind))}")
        if self.status not in NEEDS_STATUS:
            raise LabError(f"fault {self.kind}: status {self.status} is none of HTTP; 100 to 599 are")
        if self.after_bytes < 0 or self.delay_s < 0 or (self.times is not None and self.times < 1):
            raise LabError(f"fault {self.kind}: after_bytes and delay_s must not be negative, times must be at least 1")

    def meets(self, method: str, path: str) -> bool:
        return re.search(self.pattern, f"{method} {path}") is not None


@dataclass(slots=True, kw_only=True)
class Request:
    """One request the throttle saw; times are of the monotonic clock, which all processes of a machine share."""

    method: str
    path: str
    started_s: float
    status: int | None = None
    body_bytes: int = 0
    ended_s: float | None = None
    fault: Kind | None = None

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_in_flight(self) -> bool:
        return self.ended_s is None
