# SPDX-License-Identifier: Apache-2.0
"""Keeps the kernel's table as policies and pods want it.

run
├── manifests, pods, others who touch the table: each tells that something is due
├── rounds: everything as it is now becomes a table, and the difference one transaction
├── flows: judged again after each change
└── counters: now and then, while there is a table

What an earlier kepd left stays in force until it is known which policies and pods there are, and is then replaced in
one transaction. A container starts only after `hold` has returned.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress

import structlog
from msgspec.structs import replace

from agent.model.clock import Clock, rung
from agent.model.component import Report
from agent.model.event import Event
from agent.model.finding import Advice, Finding, printable
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.unprotected import PodUnprotected
from agent.model.services.nft_error import NftFailed, OutcomeUnknown, RulesRefused
from agent.objects.wanted import WantedSource
from agent.policies.manifest.objects import KIND, PolicedPod, Policy
from agent.policies.manifest.reading import NO_OBJECTS, PolicyObjects, policies_in
from agent.policies.ports import PodsHere, PolicyTable, TableTaken
from agent.policies.rules import bridge_text
from agent.policies.rules.building import Builder
from agent.policies.rules.changing import change, outgrows
from agent.policies.rules.nft_text import COUNTERS, NO_GUARD, REMOVAL, guard_text, whole_text
from agent.policies.rules.table import GUARD, NO_TABLE, Table
from agent.policies.run.bridge_table import MEND as BRIDGE_MEND
from agent.policies.run.bridge_table import BridgeTable
from agent.policies.run.bridges import MEND, Bridges
from agent.policies.run.flow_ender import FlowEnder
from agent.policies.run.metrics import PolicyMetrics
from agent.policies.run.set_aside import SetAside

log = structlog.get_logger(plane="policies")

HOLD_S = 10.0
RETRIES_S = (0.2, 1.0, 5.0, 30.0)
LOOK_S = 10.0
ASK_AGAIN_S = 0.5
MOST_TOLD = 5
NOT_READY = "NetworkPolicyNotReady"


class PolicyPlane:
    def __init__(
        self,
        *,
        table: PolicyTable,
        bridge_table: PolicyTable,
        pods: PodsHere | None,
        manifests: WantedSource,
        ender: FlowEnder,
        bridges: Bridges,
        clock: Clock,
        tell: Callable[[Event], None],
        metrics: PolicyMetrics,
        claim: Callable[[], AbstractContextManager[None]] = nullcontext,
        off: str = "",
    ) -> None:
        """`claim` takes the table for this process, or raises TableTaken. `off` says
        why nothing is enforced here; then only what an earlier kepd left is taken away, where pods run."""
        self._table, self._pods, self._manifests, self._ender = table, pods, manifests, ender
        self._bridges, self._clock, self._tell, self._metrics, self.off = bridges, clock, tell, metrics, off
        self._claim, self._claims = claim, ExitStack()
        self.bridge, self._bridge_table = BridgeTable(bridge_table, self._take_table), bridge_table
        self.builder = Builder()
        self.asides = SetAside(clock)
        self.objects: PolicyObjects = NO_OBJECTS
        self.since_s: dict[str, float] = {}
        """By policy, since when it has been known."""
        self._problems: tuple[Finding, ...] = ()
        self.problem = self.bridge_problem = self._doubt = ""
        """`_doubt`: why it is not known which policies there are; what an earlier kepd left stays meanwhile."""
        self._has_read = self._has_pods = self._is_touched = self._has_claim = False
        self._standing: Table | None = None
        """What the kernel has; None while that is not known."""
        self._applied: tuple[Mapping[str, Policy], dict[str, PolicedPod]] = ({}, {})
        self._failures, self._is_refused = 0, False
        """What failed last was what the table says, and not the way into the kernel."""
        self._due, self._news, self._in_force = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def standing(self) -> Table:
        return self._standing or NO_TABLE

    @property
    def pods(self) -> Sequence[PolicedPod]:
        return self.objects.labelled(self._pods.pods()) if self._pods is not None else ()

    async def hold(self, uid: str) -> None:
        """Until the kernel has what policies say of a pod with its present addresses. Raises PodUnprotected."""
        if self._doubt and not self._holds(uid):
            raise PodUnprotected(f"{self._doubt}; pods wait until it is")
        try:
            async with asyncio.timeout(HOLD_S):
                while not self._holds(uid):
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    self._due.set()
                    await waiter
                    if self.problem:
                        raise PodUnprotected(f"the kernel has not taken the network policies: {self.problem}")
                if why := self.builder.crowded.get(uid) or self.asides.why(self.builder.policies_of(uid)):
                    raise PodUnprotected(f"{why}; kepd tries again")
        except TimeoutError as error:
            text = "pods and policies are not known yet" if self._standing is None else "the pod has no address yet"
            text = self._doubt or text
            raise PodUnprotected(
                f"the network policies of the pod are not in force: {text}; kepd tries again"
            ) from error

    def _holds(self, uid: str) -> bool:
        if self.off:
            return True
        if self._doubt:
            return any(pod.uid == uid and pod.is_host_network for pod in self.pods)
        policies, known = self._applied
        if not self._has_read or self._standing is None or policies is not self.objects.policies:
            return False
        if not policies:
            return True
        pod = next((one for one in self.pods if one.uid == uid), None)
        return pod is not None and (pod.is_host_network or (pod.addresses is not None and known.get(uid) == pod))

    async def run(self, report: Report) -> None:
        """Until cancelled; the rules stay."""
        self._standing, self._has_claim = None, False
        with self._claims:
            await self._run(report)

    async def _run(self, report: Report) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_manifests(), name="policies-manifests")
            group.create_task(self._follow_pods(), name="policies-pods")
            group.create_task(self._follow_others(), name="policies-others")
            group.create_task(self.bridge.follow(self._in_force, self._due.set), name="policies-bridge")
            group.create_task(self._ender.run(lambda: self.standing), name="policies-flows")
            group.create_task(self._look(), name="policies-counters")
            group.create_task(self._report(report), name="policies-report")
            while True:
                retry_s = RETRIES_S[min(self._failures, len(RETRIES_S)) - 1] if self._failures else None
                again_s = self.asides.again_s if retry_s is None else self._clock.now_s() + retry_s
                await rung(self._due, self._clock, again_s)
                self._due.clear()
                await self._round()

    async def _follow_manifests(self) -> None:
        async for wanted in self._manifests.news():
            before, found, snapshot = self.objects, policies_in(wanted.in_force), wanted.look
            if snapshot.is_remembered:
                self.objects = found
                continue
            self._problems = () if self.off else snapshot.problems
            self._doubt = await self._why_doubtful(snapshot)
            now_s = self._clock.wall_s()
            self.since_s = {key: self.since_s.get(key, now_s) for key in found.policies}
            for finding in (one for one in found.findings if one not in before.findings):
                log.warning("manifest_refused", finding=str(finding))
                self._tell(self._event("FailedValidation", str(finding)))
            # What is the same value has been applied.
            same = found.policies == before.policies
            self.objects = replace(found, policies=before.policies) if same else found
            self._has_read = not self._doubt
            self._due.set()
            self._news.set()
            if self._has_read:
                await self._manifests.settle()

    async def _why_doubtful(self, snapshot: ManifestSnapshot) -> str:
        """Where no process of before has told what was in force, what cannot be read may have been: so it is if an
        earlier kepd left a table, or if nothing can be read at all."""
        if self.off or not snapshot.doubtful:
            return ""
        try:
            is_left = not snapshot.files or await self._table.exists(GUARD)
        except NftFailed as error:
            is_left = True
            log.debug("policies_not_looked_for", error=str(error))
        why = "it cannot be read" if snapshot.problems else "it is not there"
        places = ", ".join(sorted(map(printable, snapshot.doubtful)))
        return f"which policies stand in {places} is not known, for {why}" if is_left else ""

    async def _follow_pods(self) -> None:
        if self._pods is None:
            self._has_pods = True
            return
        await self._pods.listed()
        self._has_pods = True
        self._due.set()
        async for _ in self._pods.changes():
            self._due.set()

    async def _follow_others(self) -> None:
        await self._in_force.wait()
        async with aclosing(self._table.changes()) as sentences:
            async for sentence in sentences:
                log.warning("policies_touched", change=sentence, effect="all of the table is written again")
                self._standing, self._is_touched = None, True
                self._due.set()

    async def _round(self) -> None:
        """One look at everything, and one transaction."""
        if not self._has_read or self._pods is None:
            return
        waiters, self._waiters = self._waiters, []
        policies: Mapping[str, Policy] = {} if self.off else self.objects.policies
        pods = self._as_known(self.pods) if policies else ()
        if policies and (not self._has_pods or self._is_early(pods)):
            self._waiters += waiters
            return
        is_same = policies is self._applied[0] and list(pods) == list(self._applied[1].values())
        if self._standing is None or not is_same or self.bridge.is_due or self.asides.due():
            await self._put(policies, pods)
        for one in waiters:
            if not one.done():
                one.set_result(None)
        self._news.set()

    async def _put(self, policies: Mapping[str, Policy], pods: Sequence[PolicedPod]) -> None:
        before, known = self.problem, self.asides.sentences()

        async def attempt(given: Mapping[str, Policy]) -> str:
            return await self._bring(given, pods)

        self.problem = await attempt(self.asides.without(policies))
        if self.problem and self._is_refused and self._failures and (new := self.asides.newcomers(policies)):
            self.problem = await self.asides.sift(new, attempt, self.problem)
        elif not self.problem and (due := self.asides.due()):
            self.problem = await self.asides.sift(due, attempt, "")
        for key, text in self.asides.sentences().items():
            if key not in known:
                self._tell(self._event(NOT_READY, f"{KIND} {key} {text}"))
        if not self.problem:
            self._failures = 0
            self._applied = (policies, {one.uid: one for one in pods})
            return
        self._failures += 1
        if self.problem != before:
            log.warning("policies_not_applied", error=self.problem)
            self._tell(self._event(NOT_READY, f"the kernel has not taken the network policies: {self.problem}"))

    async def _bring(self, policies: Mapping[str, Policy], pods: Sequence[PolicedPod]) -> str:
        """What is in the way; empty if they are in force."""
        began_s = self._clock.now_s()
        wanted = await asyncio.to_thread(self.builder.table, policies, pods) if policies else NO_TABLE
        await self._see_to_bridges(wanted)
        # That the tables are taken is what this table's change says.
        with suppress(TableTaken):
            await self.bridge.bring(wanted.links)
        wanted = replace(wanted, is_blunt=True) if self.bridge.problem else wanted
        problem = await self._apply(wanted, began_s)
        if problem:
            self._metrics.refused += 1
        else:
            self.asides.are_in_force(policies)
            self._metrics.policies, self._metrics.policed = len(policies), len(wanted.policed)
        return problem

    def _as_known(self, pods: Sequence[PolicedPod]) -> list[PolicedPod]:
        """Addresses that nobody has asked for again are those of before."""
        known = self._applied[1]
        return [
            replace(one, addresses=known[one.uid].addresses) if one.addresses is None and one.uid in known else one
            for one in pods
        ]

    def _is_early(self, pods: Sequence[PolicedPod]) -> bool:
        """While it is not known which addresses pods have that an earlier kepd left, its table is better than ours."""
        is_so = self._standing is None and any(one.addresses is None and not one.is_host_network for one in pods)
        if is_so:
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._due.set)
        return is_so

    async def _apply(self, wanted: Table, began_s: float) -> str:
        """What is in the way; empty if the kernel has it now."""
        standing, self._is_touched, is_changed = self._standing, False, False
        try:
            if standing is None or NO_TABLE in (standing, wanted) or outgrows(standing, wanted):
                is_there = standing is not NO_TABLE if standing is not None else await self._table.exists(GUARD)
                if is_changed := is_there or wanted is not NO_TABLE:
                    self._take_table()
                    await self._make_anew(wanted, is_there=is_there)
            elif made := await asyncio.to_thread(change, standing, wanted):
                is_changed = True
                await self._table.add_chains(made.new_chains)
                if made.text:
                    await self._table.load(made.text)
                await self._table.change(made.elements, made.gone_chains, made.gone_sets)
        except TableTaken as error:
            self._is_refused = False
            # What another kepd has there is not ours to take away.
            if wanted is not NO_TABLE:
                return str(error)
        except NftFailed as error:
            self._standing = None
            self._is_refused = isinstance(error, OutcomeUnknown) or (
                isinstance(error, RulesRefused) and not error.is_passing
            )
            if wanted is not NO_TABLE or is_changed:
                return str(error)
            log.debug("policies_not_looked_for", error=str(error))
        self._standing = None if self._is_touched else wanted
        if is_changed and wanted is not NO_TABLE:
            self._metrics.applied(self._clock.now_s() - began_s)
            self._in_force.set()
            self._ender.look()
        return ""

    async def _make_anew(self, wanted: Table, *, is_there: bool) -> None:
        """One that is there is never gone for a packet: until the new one stands, a guard has the same rules."""
        text = await asyncio.to_thread(whole_text, wanted) if wanted is not NO_TABLE else REMOVAL
        has_guard = is_there and wanted is not NO_TABLE
        if has_guard:
            await self._table.load(guard_text(text))
        await self._table.load(text)
        if has_guard:
            await self._table.load(NO_GUARD)

    def _take_table(self) -> None:
        """Only who has something to write takes it, so that several kepd may be here."""
        if not self._has_claim:
            self._claims.enter_context(self._claim())
            self._has_claim = True

    async def _see_to_bridges(self, wanted: Table) -> None:
        problem = await asyncio.to_thread(self._bridges.shown) if wanted is not NO_TABLE else ""
        if problem and problem != self.bridge_problem:
            log.warning("policies_not_on_bridges", error=problem)
        self.bridge_problem = problem

    async def _look(self) -> None:
        """Packets that were refused; and bridges, which others may change."""
        while True:
            await self._in_force.wait()
            await self._clock.sleep(LOOK_S)
            await self.count()
            await self._see_to_bridges(self.standing)
            if self.bridge.problem:
                self.bridge.is_due = True
                self._due.set()
            self._news.set()

    async def count(self) -> None:
        try:
            for table, counters in ((self._table, COUNTERS), (self._bridge_table, bridge_text.COUNTERS)):
                for name in counters:
                    self._metrics.counted(name.removeprefix("denied_"), await table.counter(name))
        except NftFailed as error:
            log.debug("policies_not_counted", error=str(error))

    def findings(self) -> list[Finding]:
        """Also that what is here is not enforced."""
        text = f"is not enforced here: {self.off}"
        places = self.objects.places.items() if self.off else ()
        aside = self.asides.sentences().items()
        return [
            *self._problems, *self.objects.findings,
            *(Finding(where, "", f"{KIND} {key} {text}") for key, where in places),
            *(Finding(self.objects.places.get(key, ""), "", f"{KIND} {key} {words}") for key, words in aside),
        ]  # fmt: skip

    async def _report(self, report: Report) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            doubts = (self.problem, self.bridge_problem, self.bridge.problem, self._doubt if self._problems else "")
            troubles = [*filter(None, doubts), *map(str, self.findings())]
            if troubles:
                more = [f"and {len(troubles) - MOST_TOLD} more"] if len(troubles) > MOST_TOLD else []
                report.degraded("; ".join([*troubles[:MOST_TOLD], *more]))
            elif self._standing is not None or self.off or self._doubt:
                # A directory that is not there yet is no trouble.
                report.ready(
                    self.off or "; ".join(filter(None, (f"{len(self.objects.policies)} policies", self._doubt)))
                )

    async def advice(self) -> Sequence[Advice]:
        """For `kepctl doctor`."""
        missing = "between pods of one bridge not enforced"
        problems = (
            (self.bridge_problem, missing, MEND), (self.bridge.problem, f"{missing} for all frames", BRIDGE_MEND),
        )  # fmt: skip
        return [
            Advice(subject="network policies", found=found, wanted="", text=text, mend=mend)
            for text, found, mend in problems if text
        ]  # fmt: skip

    def _event(self, reason: str, message: str) -> Event:
        return Event(is_warning=True, reason=reason, message=message, plane="policies")
