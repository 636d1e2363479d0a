# SPDX-License-Identifier: Apache-2.0
"""The pause before a container is started again.

Owns: the curve of RST-01 and RST-06: at once, then 10 s, doubling up to 300 s, and when it begins anew (RST-02).
Never: waits or reads a clock. Pure.
"""

from dataclasses import dataclass, replace

__all__ = ["BackOff", "Curve", "pause_before_restart_s"]

# RST-02: fixed, not derived from the longest pause.
MEMORY_S = 600.0
# More restarts than this in a window cannot be counted.
MOST_MOMENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How pauses grow. A node may shorten the longest, and with it the first (RST-06)."""

    first_s: float = 10.0
    longest_s: float = 300.0

    def pause_s(self, crashes: int) -> float:
        """Before the restart that follows the n-th exit; the first is at once."""
        if crashes <= 0:
            return 0.0
        # A power beyond this is longer than any longest pause and would only grow the number.
        return min(min(self.first_s, self.longest_s) * 2.0 ** min(crashes - 1, 32), self.longest_s)


DEFAULT_CURVE = Curve()


def pause_before_restart_s(restarts: int, curve: Curve = DEFAULT_CURVE) -> float:
    """After so many restarts."""
    return curve.pause_s(restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """What is remembered of one container, until it becomes another one (RST-03)."""

    restarts: int = 0
    tried_s: float = 0.0
    moments_s: tuple[float, ...] = ()

    def due_s(self, finished_s: float, curve: Curve) -> float:
        """When it may start again after an exit at `finished_s`."""
        return finished_s + curve.pause_s(self._counted(finished_s))

    def started(self, now_s: float, finished_s: float | None) -> "BackOff":
        """It is being started; `finished_s` is of the exit before, if there was one."""
        if finished_s is None:
            return replace(self, tried_s=now_s)
        moments_s = (*self.moments_s, now_s)[-MOST_MOMENTS:]
        return replace(self, restarts=self._counted(finished_s) + 1, tried_s=now_s, moments_s=moments_s)

    def restarts_since(self, moment_s: float) -> int:
        """How many since then, as far as they are remembered."""
        return sum(at_s >= moment_s for at_s in self.moments_s)

    def pause_s(self, finished_s: float, curve: Curve) -> float:
        """How long the pause is as a whole."""
        return curve.pause_s(self._counted(finished_s))

    def _counted(self, finished_s: float) -> int:
        """It ran long enough for the curve to begin anew?"""
        return 0 if self.tried_s and finished_s - self.tried_s > MEMORY_S else self.restarts
