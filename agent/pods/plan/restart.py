# SPDX-License-Identifier: Apache-2.0
"""Whether a container that ended is started again, and after which pause.

The restart matrix (what it is, how it ended, its own policy and rules, the policy of its pod), and the curve of
pauses: at once, then 10 s, doubling up to 300 s, and when it begins anew.
"""

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.pods.runtime.observed import Instance

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"
# Fixed, not derived from the longest pause.
MEMORY_S = 600.0
# More restarts than this in a window cannot be counted.
MOST_MOMENTS = 100
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# After this long without a failure the first pause comes again.
RETRY_MEMORY_S = 120.0


def policy_of(pod: PodSpec, container: ContainerSpec) -> str:
    return container.fields.restart_policy or pod.spec.restart_policy


def matching_action(container: Container, exit_code: int) -> str:
    """What the first rule that speaks of this code wants; empty if none does."""
    for rule in container.restart_policy_rules:
        if rule.exit_codes is not None:
            is_listed = exit_code in rule.exit_codes.values
            if is_listed == (rule.exit_codes.operator == "In"):
                return rule.action
    return ""


def may_restart(pod: PodSpec, container: ContainerSpec, ended: Instance, *, is_killed: bool) -> bool:
    """`is_killed` says that kepd ended it because a probe or hook failed: rules do not count then, only the policy."""
    if container.kind is ContainerKind.SIDECAR:
        return True
    if container.kind is ContainerKind.INIT and ended.has_succeeded:
        return False
    if not is_killed and matching_action(container.fields, ended.exit_code) in (RESTART, RESTART_ALL):
        return True
    policy = policy_of(pod, container)
    if container.kind is ContainerKind.INIT:
        return policy != "Never"
    if policy == "OnFailure":
        return is_killed or not ended.has_succeeded
    return policy == "Always"


class RestartCurve(msgspec.Struct, frozen=True, kw_only=True):
    """How pauses grow. A node may shorten the longest, and with it the first."""

    first_s: float = 10.0
    longest_s: float = 300.0

    def pause_s(self, crashes: int) -> float:
        """Before the restart that follows the n-th exit; the first is at once."""
        if crashes <= 0:
            return 0.0
        # A power beyond this is longer than any longest pause and would only grow the number.
        return min(min(self.first_s, self.longest_s) * 2.0 ** min(crashes - 1, 32), self.longest_s)


class BackOff(msgspec.Struct, frozen=True, kw_only=True):
    restarts: int = 0
    tried_s: float = 0.0
    moments_s: tuple[float, ...] = ()

    def due_s(self, finished_s: float, curve: RestartCurve) -> float:
        return self.ended_s(finished_s) + curve.pause_s(self._counted(finished_s))

    def ended_s(self, finished_s: float) -> float:
        """By a runtime whose clock is behind it ended before it was started."""
        return max(finished_s, self.tried_s)

    def started(self, now_s: float, finished_s: float | None) -> "BackOff":
        """It is being started; `finished_s` is of the exit before, if there was one."""
        if finished_s is None:
            return replace(self, tried_s=now_s)
        moments_s = (*self.moments_s, now_s)[-MOST_MOMENTS:]
        return replace(self, restarts=self._counted(finished_s) + 1, tried_s=now_s, moments_s=moments_s)

    def restarts_since(self, moment_s: float) -> int:
        return sum(at_s >= moment_s for at_s in self.moments_s)

    def _counted(self, finished_s: float) -> int:
        """It ran long enough for the curve to begin anew?"""
        return 0 if self.tried_s and finished_s - self.tried_s > MEMORY_S else self.restarts


class RetryPause(msgspec.Struct):
    """Between attempts of one thing that fail: 1 s, doubling, 60 s at most. Changed by whoever tries."""

    problem: str = ""
    pause_s: float = 0.0
    until_s: float = 0.0

    def fail(self, now_s: float, problem: str = "") -> None:
        is_first = not self.pause_s or now_s > self.until_s + RETRY_MEMORY_S
        self.pause_s = FIRST_PAUSE_S if is_first else min(self.pause_s * 2, LONGEST_PAUSE_S)
        self.until_s = now_s + self.pause_s
        self.problem = problem

    def reset(self) -> None:
        self.problem, self.pause_s, self.until_s = "", 0.0, 0.0

    def __str__(self) -> str:
        return f"{self.problem}; tried again after {self.pause_s:g} s" if self.problem else ""
