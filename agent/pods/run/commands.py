# SPDX-License-Identifier: Apache-2.0
"""What people may ask of pods: look, end, restart, apply, drain, streams into containers.

A command that cannot be carried out raises Refused with the reason. Keepers end and start; this only asks them.
Addresses of streams are good for one use; whoever asked connects to the runtime itself.
"""

import asyncio
import secrets
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from agent.kinds.selectors import parse_selector
from agent.model.feed import Feed
from agent.model.finding import suggestion, told_faults
from agent.model.nodes.drain import KeptPod, NodeDrain
from agent.model.pods.checkpoint import MadeCheckpoint
from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.model.pods.state import PodState
from agent.model.reason import Reason
from agent.model.refused import Refused
from agent.pods.plan.remembered import Moment
from agent.pods.plan.work import Probing
from agent.pods.run.checkpoints.creating import CheckpointMaker
from agent.pods.run.draining import Drainer
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.runner import PodRunner
from agent.pods.runtime.observed import Instance, Stage
from agent.pods.view.explanation import container_lines, cpu_lines
from agent.pods.view.reasons import Times, pod_reasons, refused_manifest
from agent.pods.view.status import pod_status

log = structlog.get_logger(plane="pods")

FILE_MODE = 0o640
NAME_SIGNS = string.ascii_lowercase + string.digits
TakeOut = Callable[[str, tuple[str, str, str]], None]
FIRST_LOOK_S = 10.0
ContainerTarget = tuple[str, str, str]
"""Namespace, pod, container; an empty container is the only one."""


class ExplainedPod(msgspec.Struct, frozen=True):
    """`details`: what else is known of it, line by line."""

    state: PodState
    reasons: tuple[Reason, ...]
    waits_for: str
    details: tuple[str, ...] = ()


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    path: Path | None = None
    goes_on: bool = False


class PodCommands:
    def __init__(self, runner: PodRunner, drainer: Drainer, context: PodDependencies, take_out: TakeOut) -> None:
        """`take_out` takes an object, by kind, namespace and name, out of its file."""
        self._take_out = take_out
        self._runner = runner
        self._context = context
        self._drainer = drainer
        self._draining: asyncio.Task[list[str]] | None = None
        self.checkpoints = CheckpointMaker(context, runner.node)

    @property
    def pods(self) -> Feed[PodState]:
        return self._runner.pods

    async def looked(self) -> None:
        """None would be a wrong answer while it is not known which there are. Raises Refused."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._runner.rounds.looked.wait()
        except TimeoutError:
            text = f"kepd has begun and not yet found out which pods there are, in {FIRST_LOOK_S:g} s; ask again"
            raise Refused("unavailable", text) from None

    def keeper(self, namespace: str, name: str) -> PodWorker:
        found = self._runner.keeper(namespace or "default", name)
        if found is None:
            raise Refused("not_found", f'no pod "{namespace or "default"}/{name}" on this node')
        return found

    def timeline(self, namespace: str, name: str) -> tuple[tuple[Moment, ...], tuple[str, ...]]:
        """What happened, and the containers in their order; also of one that is gone, for a while."""
        key = f"{namespace or 'default'}/{name}"
        if self._runner.keeper(namespace or "default", name) is None:
            past = self._runner.shown.past.get(key) or self._runner.shown.past.get(
                f"{key}-{self._context.settings().node}"
            )
            if past is not None:
                return past
        run = self.keeper(namespace, name).run
        return run.history.moments, tuple(one.name for one in run.pod.containers)

    def now_s(self) -> float:
        """Wall time, on the clock of the moments."""
        return self._context.clock.wall_s()

    async def explain(self, namespace: str, name: str) -> ExplainedPod:
        key = f"{namespace or 'default'}/{name}"
        state, keeper = self._runner.pods.items.get(key), self._runner.keeper(namespace or "default", name)
        clock = self._context.clock
        if keeper is None:
            if state is None:
                return self._explain_absent(namespace or "default", name)
            # It was not let in, or the runtime has not been looked at yet.
            reasons = tuple(pod_reasons(state, Times(now_s=clock.wall_s())))
            return ExplainedPod(state, reasons, state.waits_for)
        run = keeper.run
        # As of now, not of when something last changed.
        look = run.look(self._runner.shown.complaint_about(run.pod.uid))
        state = pod_status(look)
        times = Times(now_s=clock.wall_s(), due=dict(self._due(run)))
        reasons = tuple([await self._with_words(run, one) for one in pod_reasons(state, times)])
        return ExplainedPod(state, reasons, look.waits_for, tuple(self._details(run, state)))

    def _explain_absent(self, namespace: str, name: str) -> ExplainedPod:
        findings, known = self._runner.wants.reading.findings, self._runner.pods.items
        reason = refused_manifest(findings, name)
        if reason is None:
            near = suggestion(name, (one.name for one in known.values() if one.namespace == namespace))
            faults = told_faults(findings, name)
            raise Refused("not_found", f'no pod "{namespace}/{name}" on this node{near}{faults}')
        return ExplainedPod(PodState(namespace=namespace, name=name, uid="", phase="Pending"), (reason,), "")

    def _due(self, run: LivePod) -> Iterator[tuple[str, float]]:
        """When what waits is tried again, by the clock on the wall."""
        clock = self._context.clock
        for one in run.plan.waiting:
            if one.until_s is not None and one.why != "activeDeadlineSeconds":
                yield one.name, clock.wall_s() + max(one.until_s - clock.now_s(), 0.0)

    async def _with_words(self, run: LivePod, reason: Reason) -> Reason:
        """With the end of a log, or what holds a pull up, where nothing else has words."""
        if reason.image:
            return replace(reason, words=self._context.images.why_waits(reason.image))
        newest = run.seen.newest(reason.container) if reason.container and not reason.words else None
        return reason if newest is None else replace(reason, words=await run.last_line(newest))

    def _details(self, run: LivePod, state: PodState) -> Iterator[str]:
        clock = self._context.clock
        yield f"plan: {run.plan}"
        if run.memory.stop is not None:
            yield f"ending ({run.memory.stop_cause}) since {max(clock.now_s() - run.memory.stop.began_s, 0):.0f} s"
        yield from container_lines(state, run.plan.waiting, run.pod.spec.restart_policy, clock.now_s(), clock.wall_s())
        yield from cpu_lines(run.pod, self._context.settings().facts.cpus)
        for container, one in run.memory.containers.items():
            if one.backoff.restarts:
                yield f"{container}: {one.backoff.restarts} restarts counted for its back-off"
        yield from (f"{one.name}: ephemeral, {one.stage}, no part of the manifest" for one in run.seen.ephemerals)
        if state.message:
            yield state.message
        yield from (f"hook {hook}: {output}" for hook, output in run.hook_outputs.items())
        yield from (f"doing: {task}" for task in run.tasks if not isinstance(task, Probing))

    async def end(self, namespace: str, name: str, grace_s: float | None, evicts: bool) -> None:  # a hook
        await self.delete(namespace, name, grace_s, evicts=evicts)

    async def delete(self, namespace: str, name: str, grace_s: float | None, *, evicts: bool = False) -> None:
        """End it, and take its manifest away so that it does not come back; of one that was made there is none, and
        another takes its place. `evicts`: unless a budget keeps it."""
        keeper = self._runner.keeper(namespace or "default", name)
        waiting = self._runner.wants.by_key.get(f"{namespace or 'default'}/{name}") if keeper is None else None
        pod = waiting or self.keeper(namespace, name).run.pod
        budgets = self._runner.workloads.budgets
        if evicts:
            budgets.give_leave(pod.uid)
        try:
            await self._delete(pod, keeper, grace_s)
        finally:
            budgets.take_back(pod.uid)

    async def _delete(self, pod: PodSpec, keeper: PodWorker | None, grace_s: float | None) -> None:
        # One that was made ends, so that another takes its place.
        if self._runner.workloads.drop(pod):
            self._runner.let_go(pod, grace_s)
            log.info("pod_deletion_asked", pod=pod.key, grace_s=grace_s)
            return
        path = pod.file
        reading = self._runner.wants.reading
        is_there = path in reading.in_force.files
        if is_there and reading.holds_alone(pod):
            # With its faults it may not be taken apart, and it holds nothing else.
            await asyncio.to_thread(Path(path).unlink, missing_ok=True)
        elif is_there:
            await asyncio.to_thread(self._take_out, path, ("Pod", pod.namespace, pod.manifest_name))
        if keeper is not None:
            keeper.remove(grace_s)
        log.info("pod_deletion_asked", pod=pod.key, grace_s=grace_s, path=path)

    def restart(self, namespace: str, name: str, container: str) -> list[str]:
        """With hooks and grace; the policy decides nothing here."""
        keeper = self.keeper(namespace, name)
        run = keeper.run
        if container and container not in run.pod.by_name:
            raise Refused("not_found", f'pod {run.pod.key} has no container "{container}"')
        chosen = [
            one
            for one in run.seen.instances
            if one.stage is Stage.RUNNING
            and container in ("", one.name)
            and run.container_of(one.name).kind not in (ContainerKind.INIT, ContainerKind.EPHEMERAL)
        ]
        if not chosen:
            raise Refused("precondition", "nothing is running that could be restarted")
        keeper.restart(chosen)
        return [one.name for one in chosen]

    async def debug(self, namespace: str, name: str, fields: Container, profile: str, target: str) -> str:
        """An ephemeral container beside those of the manifest; its name, once it runs."""
        if not fields.name:
            fields = replace(fields, name="debugger-" + "".join(secrets.choice(NAME_SIGNS) for _ in range(5)))
        await self.keeper(namespace, name).debug(fields, profile or "general", target)
        log.info("ephemeral_container_started", namespace=namespace, pod=name, container=fields.name, profile=profile)
        return fields.name

    def clear_backoff(self, namespace: str, name: str) -> None:
        """One that was evicted begins anew."""
        keeper = self.keeper(namespace, name)
        if not self._runner.evictor.readmit(keeper):
            keeper.clear_backoff()

    async def drain(self, wish: NodeDrain) -> tuple[list[str], Sequence[KeptPod]]:
        """Groups from low priority to high, each ended before the next; no new pods until `uncordon`. It goes
        on when its caller leaves; a second caller waits for the same drain, and may add force. Answers once nobody is
        left but pods that a budget keeps; those are waited for without the caller."""
        parse_selector(wish.selector)
        is_under_way = self._draining is not None and not self._draining.done()
        await self._drainer.admit(wish, is_under_way=is_under_way)
        if self._draining is None or self._draining.done():
            work = self._drainer.drain("drain", self._context.settings().shutdown.groups)
            self._draining = self._runner.background(work, "pods-drain")
        settled = asyncio.ensure_future(self._drainer.settled.wait())
        try:
            await asyncio.wait([self._draining, settled], return_when=asyncio.FIRST_COMPLETED)
        finally:
            settled.cancel()
        if self._draining.done() and self._draining.cancelled():
            raise Refused("precondition", "the drain was ended by `kepctl uncordon`")
        return (
            self._draining.result() if self._draining.done() else self._drainer.ended
        ), self._runner.admitter.cordon.kept

    async def cordon(self, by: str, reason: str = "") -> None:
        """No pod begins until `uncordon`; those that run go on."""
        await self._drainer.admit(NodeDrain(by=by, reason=reason, began_at_s=0.0, keeps_pods=True))

    async def resume_drain(self) -> None:
        """One that kepd was ended in goes on when it starts anew; of one that is over nothing is left to end."""
        await self._runner.rounds.listed.wait()
        drained, groups = self._runner.drained, self._context.settings().shutdown.groups
        if drained is not None and not drained.keeps_pods and self._draining is None:
            work = self._drainer.drain("drain", groups)
            self._draining = self._runner.background(work, "pods-drain")

    async def uncordon(self) -> list[str]:
        """Ends a drain, also one that runs; the names of the pods that begin anew."""
        if self._runner.drained is None:
            raise Refused("precondition", "the node is neither cordoned nor drained")
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])
        self._drainer.forget()
        return await self._runner.uncordon()

    def log_place(self, namespace: str, name: str, container: str, *, is_previous: bool) -> LogPlace:
        run = self.keeper(namespace, name).run
        chosen = container or self._only(namespace, name)
        instance = run.seen.newest(chosen)
        if instance is None:
            if chosen not in run.pod.by_name:
                known = ", ".join(run.pod.by_name)
                raise Refused("not_found", f'pod {run.pod.key} has no container "{chosen}"; it has {known}')
            if is_previous:
                raise Refused("not_found", f"{chosen} has no previous instance")
            return LogPlace(container=chosen, goes_on=not run.is_ending and chosen not in run.memory.passed)
        attempt = instance.attempt - 1 if is_previous else instance.attempt
        if attempt < 0:
            raise Refused("not_found", f"{instance.name} has no previous instance")
        path = run.log_directory / instance.name / f"{attempt}.log"
        return LogPlace(container=chosen, path=path, goes_on=not is_previous and _may_write(run, instance))

    def _only(self, namespace: str, name: str) -> str:
        mains = self.keeper(namespace, name).run.pod.spec.containers
        return mains[0].name if mains else ""

    @staticmethod
    def _instance(key: str, instances: Sequence[Instance], container: str) -> Instance:
        found = next((one for one in instances if one.name == container), None)
        if found is None:
            raise Refused("not_found", f'pod {key} has no container "{container}" that ever ran')
        return found

    def running_id(self, namespace: str, name: str, container: str) -> str:
        """For streams and checkpoints; raises Refused where nothing runs."""
        run = self.keeper(namespace, name).run
        one = self._instance(run.pod.key, run.seen.instances, container or self._only(namespace, name))
        if not one.is_running:
            raise Refused("precondition", f"{one.name} does not run")
        return one.id

    async def checkpoint(self, namespace: str, name: str, container: str) -> MadeCheckpoint:
        named = container or self._only(namespace, name)
        try:
            instance_id = self.running_id(namespace, name, named)
        except Refused as error:
            raise Refused("no_checkpoint" if error.kind == "precondition" else error.kind, str(error)) from error
        return await self.checkpoints.make(self.keeper(namespace, name).run, named, instance_id)


def _may_write(run: LivePod, newest: Instance) -> bool:
    """It, or an instance after it."""
    if newest.stage is not Stage.ENDED:
        return True
    if run.is_ending or newest.name in run.memory.passed:
        return False
    return run.memory.of(newest.name).may_restart(run.pod, run.container_of(newest.name), newest)
