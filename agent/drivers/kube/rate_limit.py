# SPDX-License-Identifier: Apache-2.0
"""How many requests may go out: a token bucket. Every caller gets a turn, in the order of asking."""


class RequestBucket:
    """`qps` tokens a second, at most `burst` of them kept. The client owns the only one."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = burst
        self._tokens = float(burst)
        self._at_s: float | None = None

    def change(self, qps: float, burst: int, now_s: float) -> None:
        """Other limits from now on; what was promised stays promised."""
        self._fill(now_s)
        self._qps, self._burst = qps, burst
        self._tokens = min(self._tokens, float(burst))

    def take(self, now_s: float) -> float:
        """Takes a token, if need be one of the future. Answers how long to wait for it."""
        self._fill(now_s)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)

    def _fill(self, now_s: float) -> None:
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._tokens = min(float(self._burst), self._tokens + passed_s * self._qps)
