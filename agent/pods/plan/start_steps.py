# SPDX-License-Identifier: Apache-2.0
"""The steps that bring a pod up and keep it there. Pure values; each says in one line what it does."""

from functools import cached_property

import msgspec

from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.pods.plan.order import Dependency
from agent.pods.plan.remembered import Memory
from agent.pods.plan.restart import RestartCurve
from agent.pods.plan.stop_state import Trigger
from agent.pods.plan.work import Work, containers_at_work, is_pod_at_work
from agent.pods.runtime.observed import Instance, SeenPod


class MakeSandbox(msgspec.Struct, frozen=True):
    """Make a sandbox, after what is left of earlier ones has been taken away."""

    attempt: int
    replaces: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"make sandbox {self.attempt}" + (f" in place of {len(self.replaces)}" if self.replaces else "")


class Launch(msgspec.Struct, frozen=True):
    """Fetch, create, start, run postStart; instances that never started are taken away first."""

    name: str
    attempt: int
    sandbox_id: str
    discards: tuple[str, ...] = ()
    ended_s: float | None = None
    # The container whose processes an ephemeral one sees.
    target_id: str = ""

    def __str__(self) -> str:
        return f"start {self.name}" + (f", attempt {self.attempt}" if self.attempt else "")


class Settle(msgspec.Struct, frozen=True):
    """Go on with an instance that was found running before anybody noted that its postStart was done."""

    instance: Instance

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"go on with {self.name}"


class EndContainer(msgspec.Struct, frozen=True):
    """End one container for a fault of its own; one that is renewed starts again."""

    instance: Instance
    message: str
    grace_s: int
    is_renewed: bool = False

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"end {self.name} within {self.grace_s} s: {self.message}"


class RestartAll(msgspec.Struct, frozen=True):
    """End everything without hooks and order, and begin anew in the same sandbox."""

    name: str
    ended_s: float = 0.0

    def __str__(self) -> str:
        return f"restart all containers because of {self.name}"


class BeginStop(msgspec.Struct, frozen=True):
    """The pod, or what is left of it, has to end."""

    trigger: Trigger
    cause: str
    grace_s: float

    def __str__(self) -> str:
        return f"end the pod within {self.grace_s:g} s ({self.cause})"


class Finish(msgspec.Struct, frozen=True):
    """Nothing will run any more; this is how it ended."""

    phase: str
    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"finish as {self.phase}"


StartStep = MakeSandbox | Launch | Settle | EndContainer | RestartAll | BeginStop | Finish


class StartRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the node and the pod's annotations add to the manifest."""

    curve: RestartCurve = msgspec.field(default_factory=RestartCurve)
    needs: dict[str, tuple[Dependency, ...]] = msgspec.field(default_factory=dict)
    keystone: str = ""
    most_restarts: int | None = None
    restart_window_s: float = 0.0


class WaitingContainer(msgspec.Struct, frozen=True):
    """Why a container does not run yet."""

    name: str
    why: str
    until_s: float | None = None


class StartPlan(msgspec.Struct, frozen=True):
    """What is done now, at the same time, when to plan again if nothing happens before, and who waits for what."""

    steps: tuple[StartStep, ...] = ()
    waiting: tuple[WaitingContainer, ...] = ()

    @property
    def wake_s(self) -> float | None:
        return min((one.until_s for one in self.waiting if one.until_s is not None), default=None)

    @property
    def is_conclusion(self) -> bool:
        """The pod is done, or ends for good."""
        ends = [step for step in self.steps if isinstance(step, Finish | BeginStop)]
        return any(isinstance(step, Finish) or step.cause != "sandbox" for step in ends)

    def __str__(self) -> str:
        return "; ".join(str(step) for step in self.steps) or "nothing to do"


class Situation(msgspec.Struct, frozen=True, dict=True):
    pod: PodSpec
    seen: SeenPod
    memory: Memory
    works: frozenset[Work]
    rules: StartRules
    now_s: float

    @cached_property
    def busy(self) -> frozenset[str]:
        return containers_at_work(self.works)

    @property
    def is_idle(self) -> bool:
        return not self.busy and not is_pod_at_work(self.works)

    def instance(self, name: str) -> Instance | None:
        active = self.seen.active
        found = self.seen.newest(name, active.id) if active is not None else None
        # A manifest may take the name of an ephemeral container by and by.
        return found if found is None or not found.is_ephemeral else None

    def is_done(self, instance: Instance) -> bool:
        return self.memory.of(instance.name).has_done_its_work(instance)

    def may_restart(self, one: ContainerSpec, ended: Instance) -> bool:
        return self.memory.of(one.name).may_restart(self.pod, one, ended)
