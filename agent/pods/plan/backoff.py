# SPDX-License-Identifier: Apache-2.0
"""Pauses between attempts that fail: 1 s, doubling, 60 s at most."""

from dataclasses import dataclass

__all__ = ["RetryPause"]

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# After this long without a failure the first pause comes again.
MEMORY_S = 120.0


@dataclass(slots=True)
class RetryPause:
    """One thing that is tried. Changed by the runner alone."""

    problem: str = ""
    pause_s: float = 0.0
    until_s: float = 0.0

    def fail(self, now_s: float, problem: str = "") -> None:
        """It did not work, or is not to be done again soon."""
        is_first = not self.pause_s or now_s > self.until_s + MEMORY_S
        self.pause_s = FIRST_PAUSE_S if is_first else min(self.pause_s * 2, LONGEST_PAUSE_S)
        self.until_s = now_s + self.pause_s
        self.problem = problem

    def reset(self) -> None:
        self.problem, self.pause_s, self.until_s = "", 0.0, 0.0

    def __str__(self) -> str:
        return f"{self.problem}; tried again after {self.pause_s:g} s" if self.problem else ""
