# SPDX-License-Identifier: Apache-2.0
"""One pod at work: what is wanted, what was seen, what is remembered, and what is being done to it now.

Changed by its keeper and the keeper's parts alone (starting, sandbox_maker, pod_images, container_setup, stopping,
probing, resizing, collecting, observer); others read it and ask the keeper. Never: plans.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import rung
from agent.model.finding import printable
from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.pods.state import Condition
from agent.model.runtime.error import NotFound, RuntimeCallFailed, Unavailable
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.manifest.annotations import KepdAnnotations, annotations_of
from agent.pods.plan.order import Member
from agent.pods.plan.remembered import (
    ContainerMemory,
    History,
    Memory,
    Moment,
    encode_record,
    record_name,
    without_problem,
)
from agent.pods.plan.restart import RetryPause
from agent.pods.plan.start_steps import StartPlan, StartRules
from agent.pods.plan.stop import note_exit
from agent.pods.plan.transitions import Removal, deletion
from agent.pods.plan.work import RestartingAll, Saving, Work, is_shown
from agent.pods.run.one_pod.pod_trace import PodTrace
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.environment import PodFacts
from agent.pods.runtime.observed import (
    Instance,
    SeenPod,
    Stage,
    left_container,
    lost_instance,
    newest_first,
    with_status,
)
from agent.pods.view.reasons import NO_RUNTIME
from agent.pods.view.status import Look, why_starting, why_stopping

log = structlog.get_logger(plane="pods")

# How calls to the runtime, the disk and the manifest fail, which is tried again.
FAILURES = (RuntimeCallFailed, OSError, ValueError)
Result = TypeVar("Result")
# A record that is never at rest is written again when something else happens.
MOST_SAVES = 3


class Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """Who learns of a pod's changes; whoever makes the pod says so once."""

    # Something that people see has changed.
    changed: Callable[["LivePod"], None] = lambda _run: None
    # What the runtime has of it is another now; the second is what it was before.
    seen: Callable[["LivePod", SeenPod], None] = lambda _run, _before: None
    # A call failed and what it did before is unknown: the runtime has to be looked at.
    doubted: Callable[[], None] = lambda: None


NO_LISTENERS = Listeners()


class LivePod:
    """The state of one pod."""

    def __init__(
        self,
        pod: PodSpec,
        context: PodDependencies,
        memory: Memory,
        history: History,
        listeners: Listeners = NO_LISTENERS,
    ) -> None:
        self.pod = pod
        self.context = context
        self.memory = memory
        self.history = history
        self.seen = SeenPod()
        self.plan = StartPlan()
        self.tasks: dict[Work, asyncio.Task[Any]] = {}
        # Once it ends for good.
        self.removal: Removal | None = None
        self.is_gone = False
        # From here on nothing is written down any more: the record has been taken away.
        self.is_forgotten = False
        self.problem = ""
        # Images that are mounted, by the names of their volumes.
        self.volume_images: dict[str, str] = {}
        self.hook_outputs: dict[str, str] = {}
        self.resize_conditions: tuple[Condition, ...] = ()
        self.annotated = KepdAnnotations()
        # As of the last sandbox; until one is made nothing depends on it.
        self.features = RuntimeFeatures()
        self.saved_memory: Memory | None = None
        self.unsaved = ""
        self._shown: tuple[object, ...] = ()
        self._bells: set[asyncio.Event] = set()
        self._group: asyncio.TaskGroup | None = None
        self._listeners = listeners
        self.trace: PodTrace | None = None
        if context.tracing is not None:
            self.trace = PodTrace(context.tracing, pod, history, memory.first_seen_wall_s)
        self.read_annotations()

    def saw(self, seen: SeenPod) -> None:
        """What the runtime has of it is this now."""
        before, self.seen = self.seen, seen
        self._listeners.seen(self, before)

    def read_annotations(self) -> None:
        """Take over what the manifest asks for beyond its fields; what cannot be used is reported once."""
        self.context.requests.note(self.pod)
        has_cpu_burst = self.context.settings().facts.groups.has_cpu_burst
        self.annotated = annotations_of(self.pod, has_cpu_burst=has_cpu_burst)
        for note, text in self.annotated.faults:
            self.tell("InvalidAnnotation", f"{note}: {text}", is_warning=True)

    @property
    def rules(self) -> StartRules:
        return StartRules(
            curve=self.context.settings().curve,
            needs=self.annotated.needs,
            keystone=self.annotated.keystone,
            most_restarts=self.annotated.most_restarts,
            restart_window_s=self.annotated.restart_window_s,
        )

    @property
    def members(self) -> list[Member]:
        """Containers as far as order goes, also those that run although the manifest has them no longer."""
        left = sorted({one.name for one in self.seen.running} - self.pod.by_name.keys())
        return [self.annotated.member(one) for one in (*self.pod.containers, *map(self.container_of, left))]

    def container_of(self, name: str) -> ContainerSpec:
        """As the manifest has it, else as what runs tells of itself."""
        if (known := self.pod.by_name.get(name)) is not None:
            return known
        newest = self.seen.newest(name)
        return left_container(newest) if newest is not None else ContainerSpec(ContainerKind.MAIN, Container(name=name))

    @property
    def facts(self) -> PodFacts:
        settings, active = self.context.settings(), self.seen.active
        return PodFacts(
            node=settings.node,
            host_ips=settings.facts.addresses,
            pod_ips=(active.ip, *active.more_ips) if active is not None and active.ip else (),
            cpus=settings.facts.cpus,
            memory_bytes=settings.facts.memory_bytes,
            disk_bytes=settings.facts.disk_bytes,
            claims=self.context.claims.places(self.pod),
        )

    def enter(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def leave(self) -> None:
        """The group takes no more tasks: the pod ends, or its keeper has failed and pauses."""
        self._group = None

    @property
    def is_kept(self) -> bool:
        """Whether tasks can be begun. Who comes from outside has to ask; a pause may be on."""
        return self._group is not None

    def spawn(self, work: Work, doing: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start something that is to be found under its value as long as it goes on."""
        if self._group is None:
            doing.close()
            raise RuntimeError(f"pod {self.pod.key} is not being kept")
        context = self.trace.context_of(work) if self.trace is not None else None
        task = self._group.create_task(doing, name=f"pod {self.pod.key} {work}", context=context)
        self.tasks[work] = task

        def forget(ended: asyncio.Task[Result]) -> None:
            if self.tasks.get(work) is task:
                del self.tasks[work]
            if not ended.cancelled() and ended.exception() is not None:
                # Its group takes no more from now on, a moment before the keeper hears of it.
                self.leave()
            self.ring()

        task.add_done_callback(forget)
        return task

    def ring(self) -> None:
        for bell in self._bells:
            bell.set()

    async def rest(self, until_s: float | None) -> None:
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            await rung(bell, self.context.clock, until_s)
        finally:
            self._bells.discard(bell)

    def put(self, instance: Instance) -> None:
        """An instance is new or has changed. An exit is noted with whatever ends it."""
        known = self.seen.instance(instance.id)
        others = [one for one in self.seen.instances if one.id != instance.id]
        self.saw(SeenPod(self.seen.sandboxes, newest_first((*others, instance))))
        has_ended = instance.stage is Stage.ENDED and (known is None or known.stage is not Stage.ENDED)
        if known is not None and known.stage is Stage.CREATED and instance.stage in (Stage.RUNNING, Stage.ENDED):
            # It ran after all, whatever was noted while it was unknown whether its start had worked.
            self.memory = self.memory.changed(instance.name, without_problem)
        if has_ended:
            self._note_exit(instance, was_known=known is not None)
        self.ring()

    def _note_exit(self, instance: Instance, *, was_known: bool) -> None:
        now_s = self.context.clock.now_s()
        if was_known:
            self.note("exit", instance.name, f"{instance.exit_code} {instance.reason}".strip())
        newest = self.seen.newest(instance.name)
        if newest is not None and newest.id == instance.id:
            for key in ("", instance.name):
                stop = self.memory.stop_of(key)
                if stop is not None:
                    self.memory = self.memory.with_stop(key, note_exit(stop, instance.name, now_s))

    def drop(self, *instance_ids: str) -> None:
        left = tuple(one for one in self.seen.instances if one.id not in instance_ids)
        self.saw(SeenPod(self.seen.sandboxes, left))

    def is_running(self, instance_id: str) -> bool:
        known = self.seen.instance(instance_id)
        return known is not None and known.is_running

    def remember(self, name: str, change: Callable[[ContainerMemory], ContainerMemory]) -> None:
        self.memory = self.memory.changed(name, change)
        self.ring()

    async def refresh(self, instance_id: str) -> None:
        """Ask the runtime about one container; what it does not know any more has ended."""
        known = self.seen.instance(instance_id)
        if known is None:
            return
        context = self.context
        try:
            status = await context.containers.container_status(instance_id)
        except NotFound:
            if known.stage is Stage.CREATED:
                self.drop(instance_id)
            elif known.stage is not Stage.ENDED:
                self.put(lost_instance(known, context.clock.now_s(), context.clock.wall_s()))
            return
        fresh = with_status(known, status, context.clock.now_s(), context.clock.wall_s())
        if is_unbegun := self.memory.of(known.name).has_lost_its_start(fresh):
            fresh = replace(known, stage=Stage.CREATED)
        elif fresh.stage is Stage.ENDED and not known.message:
            words = await self._last_words(fresh, {one.container_path: one.host_path for one in status.mounts})
            line = "" if fresh.has_succeeded else await self.last_line(fresh)
            fresh = replace(fresh, message=": ".join(text for text in (fresh.message, words) if text), last_line=line)
        # Two answers may come in the wrong order: an end is never taken back, unless a list alone has said so.
        now_known = self.seen.instance(instance_id)
        is_end = now_known is not None and now_known.stage is Stage.ENDED and fresh.stage is not Stage.ENDED
        if now_known is None or (is_end and (now_known.finished_s or not is_unbegun)):
            return
        self.put(fresh)

    async def _last_words(self, ended: Instance, mounts: Mapping[str, str]) -> str:
        """The runtime knows what is mounted also of an instance that an earlier kepd made."""
        container = self.pod.by_name.get(ended.name)
        if container is None:
            return ""
        path = mounts.get(container.fields.termination_message_path, "")
        falls_back = container.fields.termination_message_policy == "FallbackToLogsOnError" and ended.exit_code != 0
        log_file = self.log_directory / ended.name / f"{ended.attempt}.log"
        return await asyncio.to_thread(self.context.files.read_message, Path(path), log_file, falls_back=falls_back)

    async def last_line(self, instance: Instance) -> str:
        """Of its log, as far as it can be read now."""
        log_file = self.log_directory / instance.name / f"{instance.attempt}.log"
        return await asyncio.to_thread(self.context.files.last_line, log_file)

    @property
    def log_directory(self) -> Path:
        return self.context.files.logs.pod(self.pod.namespace, self.pod.name, self.pod.uid)

    def note(self, kind: str, container: str = "", text: str = "", seconds: float = 0.0) -> None:
        """One moment of the history, and of the log."""
        at_s = self.context.clock.wall_s()
        self.history.add(Moment(at_s=at_s, kind=kind, container=container, text=printable(text), seconds=seconds))
        log.info("pod_moment_noted", pod=self.pod.key, uid=self.pod.uid, kind=kind, container=container, text=text, v=3)

    def tell(self, reason: str, message: str, container: str = "", *, is_warning: bool = False) -> None:
        self.context.tell_of(self.pod, reason, message, container, is_warning=is_warning)

    async def save(self) -> None:
        """Write the record; a disk that refuses stops no pod, and is asked again. A stop under way need not survive a
        power cut: nothing that it is about would."""
        memory, before = self.memory, self.unsaved
        if self.is_forgotten:
            return
        try:
            boot_id, claims = self.context.settings().facts.boot_id, self.facts.claims
            content = encode_record(self.pod, memory, self.history.moments, boot_id, claims)
            is_durable = memory.stop is None and not memory.ends
            await self.context.records.write(record_name(self.pod.uid), content, is_durable=is_durable)
            self.saved_memory, self.unsaved = memory, ""
        except (OSError, ValueError) as error:
            self.unsaved = str(error)
            log.warning("pod_record_not_saved", pod=self.pod.key, error=self.unsaved)
            self.save_soon()
        if self.unsaved != before:
            self.ring()

    def show(self) -> None:
        """Say that something changed, if anything that people see did: what is shown costs more than the look."""
        shown = (
            self.pod,
            self.seen,
            self.memory,
            self.plan.waiting,
            self.problem,
            self.unsaved,
            self.resize_conditions,
            self.is_removed,
            self.context.settings().facts.addresses,
            [work for work in self.tasks if is_shown(work)],
        )
        if shown != self._shown:
            self._shown = shown
            self._listeners.changed(self)

    def doubt(self) -> None:
        """What is known may be wrong: the runtime is looked at as a whole."""
        self._listeners.doubted()

    def save_soon(self) -> None:
        """Write the record in the background, once what happens now is over."""
        if Saving() not in self.tasks and self._group is not None:
            self.spawn(Saving(), self._save_settled())

    async def _save_settled(self) -> None:
        """What the disk refused it may take later, whether or not anything happens to the pod until then."""
        saves, pause = 0, RetryPause()
        while self.unsaved or (self.saved_memory != self.memory and saves < MOST_SAVES):
            if self.unsaved:
                pause.fail(self.context.clock.now_s())
                await self.context.clock.sleep(pause.pause_s)
            saves += 1
            await self.save()

    def look(self, message: str) -> Look:
        """What people see of it now; `message` is a complaint about its manifest."""
        now_s, sources = self.context.clock.now_s(), self.context.sources()
        pulls = (one.name for one in self.pod.spec.image_pull_secrets)
        if self.memory.stop is not None:
            waits_for = why_stopping(self.memory.stop, now_s)
        else:
            waits_for = why_starting(self.plan.waiting, self.tasks, self.problem, now_s)
        return Look(
            pod=self.pod, seen=self.seen, memory=self.memory, waiting=self.plan.waiting, waits_for=waits_for,
            message=message, is_terminating=self.is_terminating,
            deletion=deletion(self.removal, self.pod, self.memory.stop, now_s, self.context.clock.wall_s()),
            host_ips=self.context.settings().facts.addresses,
            is_restarting_all=RestartingAll() in self.tasks,
            more_conditions=self.resize_conditions,
            missing_secrets=tuple(one for one in pulls if ("Secret", self.pod.namespace, one) not in sources),
        )  # fmt: skip

    @property
    def is_removed(self) -> bool:
        return self.removal is not None

    @property
    def is_terminating(self) -> bool:
        return self.is_removed or (
            self.memory.stop is not None and self.memory.stop_cause not in ("sandbox", "completed")
        )

    @property
    def is_ending(self) -> bool:
        """Whether its place is free, or will be without anything more."""
        memory = self.memory
        ends = memory.stop is not None and memory.stop_cause != "sandbox"
        return self.is_removed or ends or (memory.outcome or memory.ending_as) is not None


def reason_of_error(error: Exception) -> str:
    if isinstance(error, Unavailable):
        return f"{NO_RUNTIME}: {error.details}"
    return error.details if isinstance(error, RuntimeCallFailed) else str(error)
