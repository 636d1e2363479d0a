# SPDX-License-Identifier: Apache-2.0
"""Keeps the pods of this node as the manifests want them, and shows them.

    run
    ├── manifests, events: each says that it is time to look
    ├── worker per pod: one step after the other, as long as plan.py has one
    └── looker per pod: details of what changed, for those who look

Owns: the rounds (look at the runtime once, then start a worker where there is something to do), what is known of each
pod, and the feed. All tasks live in the group that `run` opens. What happens to one pod holds no other up.
Never: decides. A pod whose step failed waits and is tried again; the end of a pod, once begun, is carried through.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.pod_state import PodState
from agent.model.runtime_error import NotFound, RuntimeCallFailed, Unavailable
from agent.pods.backoff import Attempts
from agent.pods.manifest import Identity
from agent.pods.observation import seen_sandboxes
from agent.pods.plan import (
    Action,
    MakeSandbox,
    RemoveSandbox,
    SeenContainer,
    SeenSandbox,
    StopContainer,
    after,
    plan_pod,
)
from agent.pods.ports import Clock, Containers, Events, Manifests, Sandboxes, Snapshot
from agent.pods.reading import Reading, read_pods
from agent.pods.steps import PodSettings, Steps
from agent.pods.tended_pod import TendedPod

__all__ = ["PodRunner", "PodSettings"]

log = structlog.get_logger(plane="pods")

SAFETY_NET_S = 60.0
# What comes in a burst is looked at once.
GATHER_S = 0.02
MOST_TOLD = 5
# ValueError: text that fits into no message of the runtime.
FAILURES = (RuntimeCallFailed, OSError, ValueError)


class PodRunner:
    """The pods plane. `pods` is what the API shows."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        containers: Containers,
        manifests: Manifests,
        events: Events,
        settings: PodSettings,
        *,
        clock: Clock,
    ) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._manifests = manifests
        self._events = events
        self._settings = settings
        self._identity = Identity(settings.node, settings.name_suffix)
        self._steps = Steps(sandboxes, containers, settings)
        self._clock = clock
        self._reading = Reading()
        self._has_read = False
        self._tended: dict[str, TendedPod] = {}
        self._ending: set[str] = set()
        self._lists = Attempts()
        self._wake = asyncio.Event()
        self.pods: Feed[PodState] = Feed()

    async def run(self, report: Report) -> None:
        """Until cancelled; what runs goes on running."""
        self._tended.clear()
        self._want()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_manifests(), name="pods-manifests")
            group.create_task(self._follow_events(), name="pods-events")
            while True:
                rest_s = SAFETY_NET_S
                if self._has_read:
                    rest_s = await self._round(group)
                    self._tell(report)
                await self._rest(group, rest_s)

    async def _rest(self, group: asyncio.TaskGroup, longest_s: float) -> None:
        """Until somebody wakes us, or this long; then a moment more, for what comes in a burst."""
        timer = group.create_task(self._ring(longest_s), name="pods-timer")
        await self._wake.wait()
        timer.cancel()
        await self._clock.sleep(GATHER_S)
        self._wake.clear()

    async def _ring(self, after_s: float) -> None:
        await self._clock.sleep(after_s)
        self._wake.set()

    async def _follow_manifests(self) -> None:
        async for snapshot in self._manifests.snapshots():
            await self._take(snapshot)

    async def _follow_events(self) -> None:
        async for _event in self._events.listen():
            self._wake.set()

    async def _take(self, snapshot: Snapshot) -> None:
        """Read the manifests."""
        before = set(self._reading.findings)
        self._reading = await asyncio.to_thread(read_pods, snapshot, self._reading, self._identity)
        self._has_read = True
        for finding in self._reading.findings:
            if finding not in before:
                log.warning("manifest_refused", finding=str(finding))
        self._want()
        self._wake.set()

    def _want(self) -> None:
        """Tell every pod what is wanted of it; work that becomes pointless by that ends at once."""
        for key in self._reading.pods.keys() - self._tended.keys():
            self._tended[key] = TendedPod(key)
        for key, tended in self._tended.items():
            if tended.want(self._reading.pods.get(key)) and tended.worker is not None:
                tended.worker.cancel()

    async def _round(self, group: asyncio.TaskGroup) -> float:
        """One look at the runtime, and a worker for every pod that needs one; how long to rest at most."""
        for tended in self._tended.values():
            tended.is_stale = tended.worker is not None
        try:
            containers = await self._containers.list_containers()
            sandboxes = await self._sandboxes.list_sandboxes()
        except RuntimeCallFailed as error:
            return self._cannot_look(error)
        self._lists.reset()
        self._ending &= {sandbox.id for sandbox in sandboxes}
        seen = seen_sandboxes(sandboxes, containers, self._settings.instance, self._ending)
        for key in seen.keys() - self._tended.keys():
            self._tended[key] = TendedPod(key, self._reading.pods.get(key))
        rests_s = [self._tend(tended, seen.get(key, ()), group) for key, tended in self._tended.items()]
        self._tended = {key: tended for key, tended in self._tended.items() if not tended.is_over}
        for key in self.pods.items.keys() - self._tended.keys():
            self.pods.remove(key)
        return min(rests_s, default=SAFETY_NET_S)

    def _cannot_look(self, error: RuntimeCallFailed) -> float:
        what = "does not answer" if isinstance(error, Unavailable) else f"fails in {error.method}"
        self._lists.fail(self._clock.now_s(), f"the container runtime {what}: {error.details}")
        for key, tended in self._tended.items():
            if tended.worker is None and key not in self.pods.items:
                tended.wait_for("the container runtime")
                self._show(tended)
        return self._lists.pause_s

    def _tend(self, tended: TendedPod, seen: tuple[SeenSandbox, ...], group: asyncio.TaskGroup) -> float:
        """Start what has to be done for one pod; how long there is nothing else to do for it."""
        if tended.is_stale and tended.worker is None:
            return SAFETY_NET_S
        tended.seen = seen
        tended.details.forget_others(seen)
        rests_s = (self._tend_work(tended, group), self._tend_look(tended, group))
        # One that is found running is shown with its details at once.
        if tended.looker is None or tended.worker is not None or tended.key in self.pods.items:
            self._show(tended)
        return min(rests_s)

    def _tend_work(self, tended: TendedPod, group: asyncio.TaskGroup) -> float:
        if tended.worker is not None:
            return SAFETY_NET_S
        actions = plan_pod(tended.wanted, tended.seen, self._reading.is_unread)
        tended.wait_for("")
        if not actions:
            tended.work.reset()
            return SAFETY_NET_S
        pause_s = tended.not_before_s(actions) - self._clock.now_s()
        if pause_s > 0:
            if not tended.work.problem:
                tended.wait_for(f"{actions[0]}, again after {tended.sandboxes.pause_s:g} s")
            return pause_s
        tended.begin(actions)
        tended.worker = group.create_task(self._work(tended), name=f"pod {tended.key}")
        tended.worker.add_done_callback(lambda _task: self._worked(tended))
        return SAFETY_NET_S

    def _tend_look(self, tended: TendedPod, group: asyncio.TaskGroup) -> float:
        if tended.looker is not None or not tended.unknown:
            return SAFETY_NET_S
        pause_s = tended.look.until_s - self._clock.now_s()
        if pause_s > 0:
            return pause_s
        tended.looker = group.create_task(self._look(tended), name=f"pod {tended.key} details")
        tended.looker.add_done_callback(lambda _task: self._looked(tended))
        return SAFETY_NET_S

    async def _work(self, tended: TendedPod) -> None:
        """One step after the other; each follows from what the one before has done, so nothing is listed between."""
        seen = tended.seen
        while actions := plan_pod(tended.wanted, seen, self._reading.is_unread):
            if tended.not_before_s(actions) > self._clock.now_s():
                return
            tended.begin(actions)
            self._show(tended)
            async with asyncio.TaskGroup() as group:
                steps = [group.create_task(self._step(tended, action), name=str(action)) for action in actions]
            outcomes = [step.result() for step in steps]
            if failures := [outcome.text for outcome in outcomes if isinstance(outcome, _Failure)]:
                tended.work.fail(self._clock.now_s(), "; ".join(failures))
                return
            for action, outcome in zip(actions, outcomes, strict=True):
                seen = after(seen, action, str(outcome))

    def _worked(self, tended: TendedPod) -> None:
        tended.rest()
        self._wake.set()

    async def _step(self, tended: TendedPod, action: Action) -> "str | _Failure":
        """One step; answers the id of what it made."""
        if isinstance(action, StopContainer | RemoveSandbox):
            self._ending.add(action.sandbox.id)

        def wait_for(what: str) -> None:
            tended.wait_for(what)
            self._show(tended)

        try:
            made = await self._steps.carry_out(action, wait_for)
        except FAILURES as error:
            log.warning("pod_step_failed", step=str(action), error=str(error))
            return _Failure(f"{action}: {_reason(error)}")
        log.info("pod_step_finished", step=str(action))
        if isinstance(action, MakeSandbox):
            tended.sandboxes.fail(self._clock.now_s())
        return made

    async def _look(self, tended: TendedPod) -> None:
        """Ask for the details that are not known yet."""
        details = tended.details
        try:
            for one in tended.unknown:
                if isinstance(one, SeenContainer):
                    with suppress(NotFound):
                        details.statuses[one.id] = await self._containers.container_status(one.id)
                    details.stages[one.id] = one.stage
                else:
                    details.ips[one.id] = await self._ip(one.id)
        except RuntimeCallFailed as error:
            log.warning("pod_look_failed", pod=tended.key, error=str(error))
            tended.look.fail(self._clock.now_s(), f"{error.method}: {error.details}")
        else:
            if tended.look.problem:
                self._wake.set()
            tended.look.reset()
        details.are_refused = bool(tended.look.problem)

    async def _ip(self, sandbox_id: str) -> str:
        try:
            return (await self._sandboxes.sandbox_status(sandbox_id)).network.ip
        except NotFound:
            return ""

    def _looked(self, tended: TendedPod) -> None:
        tended.looker = None
        self._show(tended)
        if tended.unknown or tended.is_over:
            self._wake.set()

    def _show(self, tended: TendedPod) -> None:
        """Bring the feed up to date."""
        reading, pod = self._reading, tended.shown_spec
        about_manifest = ""
        if pod is not None:
            about_manifest = "; ".join(str(finding) for finding in reading.complaints_about(pod.file))
            if about_manifest and reading.is_stale(pod):
                about_manifest = f"its last good manifest is in force: {about_manifest}"
        state = tended.state(about_manifest)
        if state is not None:
            self.pods.put(tended.key, state)

    def _tell(self, report: Report) -> None:
        """What is wrong, or that all is well."""
        problems = [self._lists.problem] if self._lists.problem else []
        problems += [str(finding) for finding in self._reading.findings]
        problems += [f"{key}: {tended.problem}" for key, tended in self._tended.items() if tended.problem]
        if len(problems) > MOST_TOLD:
            problems[MOST_TOLD:] = [f"and {len(problems) - MOST_TOLD} more"]
        if problems:
            report.degraded("; ".join(problems))
        else:
            report.ready(f"{len(self._reading.pods)} pods")


@dataclass(frozen=True, slots=True)
class _Failure:
    """A step did not work."""

    text: str


def _reason(error: Exception) -> str:
    return error.details if isinstance(error, RuntimeCallFailed) else str(error)
