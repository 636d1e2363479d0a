# SPDX-License-Identifier: Apache-2.0
"""Wall times that outlive a process, on a clock that somebody sets. Decides without asking what time it is."""

from datetime import UTC, datetime

import msgspec

JUMP_S = 1.0
"""A smaller step of the clock is none."""


class Boot(msgspec.Struct, frozen=True):
    """A run of this node, and when it began by the clock on the wall as that is set now."""

    id: str = ""
    began_s: float = 0.0

    def follows(self, before: "Boot") -> bool:
        """Whether times noted by `before` mean something else now: another boot, or a clock that was set."""
        return self.id != before.id or abs(self.began_s - before.began_s) > JUMP_S


def carried(wall_s: float, then: Boot, here: Boot, now_s: float) -> float:
    """A wall time that was noted when the clock was set as in `then`, by the clock as it is set now: within a boot a
    duration is one of the clock that only runs. What is ahead of now counts as now; 0 stays what has not happened."""
    moved_s = here.began_s - then.began_s if then.id == here.id and here.follows(then) else 0.0
    return min(wall_s + moved_s, now_s) if wall_s else 0.0


def stamp(wall_s: float) -> str:
    """As Kubernetes writes a time."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
