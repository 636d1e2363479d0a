# SPDX-License-Identifier: Apache-2.0
"""Ends pods of the node, as plan/drain.py plans it, for people and before the node goes down.

A drain that is cancelled leaves pods that end ending, and one that waits for a budget goes on looking. The shutdown of
the node is held up until they have ended:

    run
    ├── watch: connect, raise the longest delay where it is too short, take the lock, follow the news; again after a gap
    └── drain: while a shutdown is being prepared
    before_end: the drain again, where systemd ends kepd before it is over, or without a word of logind

That does nothing while the rules allow no delay. Where none of them was configured, a node without systemd is no fault.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.finding import Advice, printable
from agent.model.nodes.drain import KeptPod, NodeDrain
from agent.pods.plan.admit import priority_of
from agent.pods.plan.drain import Candidate, EndPod, Group, ShutdownRules, begin_drain, groups_for, plan_drain
from agent.pods.plan.remembered import SHUTDOWN_REASON, PodOutcome
from agent.pods.plan.restart import RetryPause
from agent.pods.ports import Logind
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.runner import PodRunner
from agent.pods.workloads.workload import Key

log = structlog.get_logger(plane="pods")

SHUTDOWN = PodOutcome(
    phase="Failed", reason=SHUTDOWN_REASON, message="Pod was terminated in response to imminent node shutdown."
)
POLL_S, KEPT_POLL_S = 0.1, 1.0
KEY = "pods.shutdown"


class Drainer:
    """`settled` is set while nothing is left of a drain but pods that a budget keeps."""

    def __init__(self, runner: PodRunner, context: PodDependencies) -> None:
        self._runner = runner
        self._context = context
        self._surging: dict[str, Key] = {}
        self.ended: list[str] = []
        self.settled = asyncio.Event()

    async def admit(self, wish: NodeDrain, *, is_under_way: bool = False) -> None:
        """No new pods until the node is uncordoned. Raises Refused."""
        await self._runner.admitter.cordon.change(wish, is_under_way=is_under_way)
        self.settled.clear()
        done = "cordoned" if wish.keeps_pods else "drains"
        self._tell_node("NodeNotSchedulable", f"{wish.by} {done} the node{f': {wish.reason}' if wish.reason else ''}")

    def forget(self) -> None:
        """The node takes pods again."""
        for key in set(self._surging.values()):
            self._runner.workloads.keep_after_all(key)
        self._surging.clear()
        self._runner.admitter.cordon.lets_in = frozenset()
        self._runner.admitter.cordon.kept = ()
        self.settled.clear()
        self._tell_node("NodeSchedulable", "the node takes pods again")

    async def drain_before_shutdown(self, rules: ShutdownRules) -> list[str]:
        await self._runner.rounds.listed.wait()
        return await self.drain("shutdown", groups_for(self._candidates(None), rules))

    async def drain(self, why: str, groups: Sequence[Group]) -> list[str]:
        """End everything; the names of the pods that were up, in the order of their turns. Before the node goes down a
        budget delays, and keeps nobody."""
        await self._runner.rounds.listed.wait()
        clock, wish = self._context.clock, self._runner.drained if why == "drain" else None
        drain = begin_drain(self._candidates(wish), groups, wish.most_s if wish is not None else 0.0)
        log.info("node_drain_started", why=why, pods=len(drain.candidates), waves=len(drain.waves))
        if wish is not None and wish.surges:
            self._surge(drain.candidates)
        while True:
            now_s, wish = clock.now_s(), self._runner.drained if why == "drain" else None
            ended = self._ended(drain.candidates)
            kept = self._kept_back([one for one in drain.candidates if one.uid not in ended])
            is_forced = wish is not None and wish.is_forced
            plan = plan_drain(drain, ended, now_s, () if is_forced else kept.keys(), forces=why == "shutdown")
            drain = plan.then
            for step in plan.steps:
                self._end(step, kept.get(step.uid, ""))
            left = [one for one in drain.candidates if one.uid not in self._ended((one,))]
            held = tuple(KeptPod(pod=one.key, why=kept[one.uid]) for one in left if one.uid in kept)
            self._runner.admitter.cordon.kept = held
            self.ended = [one.key for one in drain.candidates if one not in left]
            is_stuck = plan.is_over and bool(held) and why == "drain"
            if plan.is_over and not is_stuck:
                log.info("node_drain_finished", why=why, left=[one.key for one in left])
                return [one.key for one in drain.candidates]
            if is_stuck and not self._surging:
                self.settled.set()
            until_s = plan.wake_s if plan.wake_s is not None else now_s + POLL_S
            await clock.sleep(min(max(until_s - now_s, 0.0), POLL_S) if not is_stuck else KEPT_POLL_S)

    def _candidates(self, wish: NodeDrain | None) -> list[Candidate]:
        runs = [keeper.run for keeper in self._runner.keepers.values() if keeper.run.memory.outcome is None]
        concerns = self._runner.admitter.cordon.concerns
        return [
            Candidate(
                uid=run.pod.uid, key=run.pod.key, priority=priority_of(run.pod.spec), grace_s=float(run.pod.grace_s)
            )
            for run in runs
            if wish is None or concerns(run)
        ]

    def _surge(self, candidates: Sequence[Candidate]) -> None:
        for one in candidates:
            key = self._runner.workloads.replace(one.uid)
            if key is not None:
                self._surging[one.uid] = key
        self._runner.admitter.cordon.lets_in = frozenset(self._surging.values())

    def _kept_back(self, left: Sequence[Candidate]) -> dict[str, str]:
        """By a budget, or until a replacement is there. Where there is no room for one, it ends as others do."""
        here = {one.uid for one in left}
        self._surging = {uid: key for uid, key in self._surging.items() if uid in here}
        for pod in self._runner.admitter.waiting:
            if pod.owner is not None and pod.owner.key in self._surging.values():
                self._give_up(pod.owner.key, self._runner.admitter.why_waits(pod))
        kept = dict.fromkeys(self._surging, "its replacement is not available yet")
        return {**self._runner.workloads.budgets.kept_back([one.uid for one in left if one.uid not in kept]), **kept}

    def _give_up(self, key: Key, why: str) -> None:
        log.info("replacement_given_up", workload="/".join(key), reason=why)
        self._runner.workloads.keep_after_all(key)
        self._surging = {uid: other for uid, other in self._surging.items() if other != key}
        self._runner.admitter.cordon.lets_in = frozenset(self._surging.values())
        text = f"{key[0]} {key[1]}/{key[2]}: its pods end without a replacement, which has no place here: {why}"
        self._tell_node("NoReplacement", text)

    def _ended(self, candidates: Sequence[Candidate]) -> set[str]:
        keepers = self._runner.keepers
        return {
            one.uid for one in candidates if one.uid not in keepers or keepers[one.uid].run.memory.outcome is not None
        }

    def _end(self, step: EndPod, kept: str) -> None:
        """`kept`: what would have kept it, if it ends by force."""
        keeper = self._runner.keepers.get(step.uid)
        if keeper is not None:
            log.info("pod_shutdown_planned", pod=step.key, grace_s=step.grace_s, against=kept)
            with contained(step.key, "end it"):
                if kept:
                    keeper.run.tell("DisruptionForced", f"it ends although {kept}", is_warning=True)
                keeper.end("shutdown", step.grace_s, SHUTDOWN)

    def _tell_node(self, reason: str, message: str) -> None:
        self._context.tell(Event(is_warning=False, reason=reason, message=printable(message), plane="pods"))


class NodeShutdown:
    def __init__(
        self, runner: PodRunner, drainer: Drainer, logind: Logind, clock: Clock, rules: Callable[[], ShutdownRules]
    ) -> None:
        self._runner = runner
        self._drainer = drainer
        self._logind = logind
        self._clock = clock
        self._rules = rules
        self._changed = asyncio.Event()
        self._attempts = RetryPause()
        self._drain: asyncio.Task[list[str]] | None = None
        self._advice: tuple[Advice, ...] = ()

    def settings_changed(self) -> None:
        self._changed.set()

    async def advice(self) -> Sequence[Advice]:
        return self._advice

    async def run(self, report: Report) -> None:
        """Until cancelled. Pods that end go on ending."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    if reason := self._why_off():
                        self._advice = ()
                        self._logind.drop_lock()
                        report.ready(f"off: {reason}")
                        await self._changed.wait()
                        continue
                    await self._watch(group, report)
        finally:
            self._logind.drop_lock()
            await self._logind.close()

    def longest_s(self) -> float:
        """How long `before_end` may take."""
        return 0.0 if self._why_off() else self._rules().delay_s

    async def before_end(self) -> None:
        """Their scopes are ordered so that systemd ends them after kepd, whose end therefore waits for them."""
        if self._why_off():
            return
        if self._drain is not None:
            await asyncio.wait([self._drain])
            return
        try:
            is_going_down = await self._logind.is_going_down()
        except OSError as error:
            log.warning("node_state_unknown", error=str(error))
            return
        if is_going_down:
            log.info("node_shutdown_unannounced", delay_s=self._rules().delay_s)
            self._runner.set_shutting_down(is_so=True)
            await self._drainer.drain_before_shutdown(self._rules())

    def _why_off(self) -> str:
        rules = self._rules()
        if not rules.delay_s:
            return f"{KEY} has neither groups nor a longest delay"
        return "" if rules.groups or self._logind.is_expected() else "this node has no systemd"

    async def _watch(self, group: asyncio.TaskGroup, report: Report) -> None:
        news = group.create_task(self._follow(group, report), name="logind-news")
        changed = group.create_task(self._changed.wait(), name="logind-settings")
        try:
            await asyncio.wait([news, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            changed.cancel()
            await asyncio.wait([news, changed])

    async def _follow(self, group: asyncio.TaskGroup, report: Report) -> None:
        try:
            await self._logind.connect()
            await self._lengthen(report)
            self._logind.drop_lock()
            async for is_preparing in self._logind.news():
                self._attempts.reset()
                if is_preparing:
                    self._begin(group)
                else:
                    await self._resume()
        except OSError as error:
            self._attempts.fail(self._clock.now_s(), str(error))
            text = f"{error}; without it a shutdown of this node ends pods without their order and grace"
            self._advise("logind", "not reached", "reached", text)
            # Who configured groups relies on them; else it is advice.
            say = report.degraded if self._rules().groups else report.ready
            say(f"{text}; tried again in {self._attempts.pause_s:g} s")
            log.warning("logind_lost", error=str(error), retry_in_s=self._attempts.pause_s)
            await self._logind.close()
            await self._clock.sleep(self._attempts.pause_s)

    async def _lengthen(self, report: Report) -> None:
        """Logind waits no longer than InhibitDelayMaxSec."""
        wanted_s = self._rules().delay_s
        allowed_s = await self._logind.longest_delay_s()
        problem = ""
        if allowed_s < wanted_s:
            try:
                await self._logind.raise_longest_delay(wanted_s)
            except OSError as error:
                problem = f" ({error})"
            allowed_s = await self._logind.longest_delay_s()
        if allowed_s >= wanted_s:
            self._advice = ()
            report.ready(f"delays a shutdown by up to {wanted_s:g} s")
            return
        text = (
            f"a shutdown kills what has not ended after {allowed_s:g} s, but {KEY} wants {wanted_s:g} s; set it in a"
            f" file in /etc/systemd/logind.conf.d/ and reload systemd-logind{problem}"
        )
        self._advise("logind InhibitDelayMaxSec", f"{allowed_s:g}", f"{wanted_s:g}", text)
        report.ready(f"delays a shutdown by at most {allowed_s:g} s, but {wanted_s:g} s are needed")
        log.warning("shutdown_delay_too_short", allowed_s=allowed_s, wanted_s=wanted_s, problem=problem.strip(" ()"))

    def _advise(self, subject: str, found: str, wanted: str, text: str) -> None:
        self._advice = (Advice(subject=subject, found=found, wanted=wanted, text=text),)

    def _begin(self, group: asyncio.TaskGroup) -> None:
        if self._drain is None or self._drain.done():
            log.info("node_shutdown_announced", delay_s=self._rules().delay_s)
            self._runner.set_shutting_down(is_so=True)
            self._drain = group.create_task(self._ended(), name="node-shutdown")

    async def _ended(self) -> list[str]:
        try:
            return await self._drainer.drain_before_shutdown(self._rules())
        finally:
            self._logind.drop_lock()

    async def _resume(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.wait([self._drain])
            self._drain = None
            log.info("node_shutdown_cancelled")
        self._runner.set_shutting_down(is_so=False)
        await self._logind.take_lock()
