# SPDX-License-Identifier: Apache-2.0
"""Keeps the kernel's rules of one family as they should be.

The loop: plan what changed, write the difference, read everything again after any failure, set aside the Service that
the kernel refuses, repair what another program changed. Its unit in the task tree is the plane's; the two families
share nothing but the objects. Leaves the rules in place at the end.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.services.nft_error import NftFailed, RivalFound, RulesRefused
from agent.model.services.service import ServiceKey
from agent.services.batches import MOST_ELEMENTS, halves, portions
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.desired import Desired
from agent.services.routes.frontends import Claim, ServicePlan
from agent.services.ruleset import NO_PLANS, Plans, Ruleset, SyncReport, SyncWatcher
from agent.services.run.pace import QUARANTINE_S, Periods, SyncPace

log = structlog.get_logger(plane="services")

# More at once would hold up the event loop; the rest follows after a breath.
MOST_AT_ONCE = 200
LONGEST_WATCH_PAUSE_S = 30.0
# A shortage of the kernel that comes more often in a row is taken for a refusal, and whoever causes it is isolated.
MOST_SHORTAGES = 5


class _Todo(msgspec.Struct):
    plans: dict[ServiceKey, ServicePlan | None] = msgspec.field(default_factory=dict)
    node: bool = False


class FamilySync:
    """One family. `periods` is asked anew each time: a reload changes it."""

    def __init__(
        self,
        desired: Desired,
        facts: FamilyFacts,
        rules: Ruleset,
        watcher: SyncWatcher,
        *,
        clock: Clock,
        periods: Callable[[], Periods] = Periods,
        repairs: Callable[[], bool] = lambda: True,
        may_share: Callable[[], bool] = lambda: False,
    ) -> None:
        """`may_share`: whether the rules of others may stand beside ours, asked before the first sync."""
        self.desired = desired
        self.rules = rules
        self.quarantine: dict[ServiceKey, str] = {}
        self.pending_since_s: float | None = None
        """When the oldest change came that is not in the kernel yet."""
        self.updated_s: float = clock.wall_s()
        self.is_synced = False
        self.taken = (0, 0)
        """Changes of Services and of slices, of all that were told, that are in the kernel."""
        self.facts = facts
        self._watcher = watcher
        self._clock = clock
        self._periods = periods
        self._repairs = repairs
        self._todo = _Todo(node=True)
        self._pace = SyncPace()
        self._may_share = may_share
        self._is_checked = False
        self._drops: Sequence[str] = ()
        """What drops forwarded packets, as each full sync asks."""
        self._is_known = False
        self._is_empty = False
        """There are no rules, and none were wanted when we looked."""
        self._doubts = 0
        """Grows whenever what we know may no longer hold; what was read before that counts for nothing."""
        self._gone: set[Claim] = set()
        self._suspects: set[ServiceKey] = set()
        """They were refused once, and come last."""
        self._quarantined_s = 0.0
        self._shortages = 0
        """Of the kernel, in a row."""
        self._tampered = ""
        self._large_s = float("-inf")
        """Not before then is a large Service's turn: what it costs delays the next large one, and no other."""
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"FamilySync({self.desired.family}, {len(self.rules)} services, {self._pace})"

    def set_facts(self, facts: FamilyFacts) -> None:
        if facts == self.facts:
            return
        if facts.table != self.facts.table:
            self._doubt()
        self.facts = facts
        self._todo.node = True
        self.desired.set_node(facts.node)
        self.wake()

    def _doubt(self) -> None:
        self._is_known = self._is_empty = False
        self._doubts += 1

    def wake(self) -> None:
        if self.pending_since_s is None:
            self.pending_since_s = self._clock.wall_s()
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name=f"services-watch-{self.desired.family}")
            group.create_task(self._loop(), name=f"services-sync-{self.desired.family}")

    async def _loop(self) -> None:
        while True:
            await self._until_due()
            self._wake.clear()
            await self.sync()

    async def _until_due(self) -> None:
        latest_s = self._pace.latest_s(self._periods(), self._release_s())
        if self.desired.large:
            latest_s = min(latest_s, self._large_s)
        latest_s -= self._clock.now_s()
        if latest_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if latest_s == float("inf") else latest_s):
                    await self._wake.wait()
        pause_s = self._pace.earliest_s(self._periods()) - self._clock.now_s()
        if pause_s > 0:
            await self._clock.sleep(pause_s)

    async def sync(self) -> None:
        """One run; a failure is told and leaves everything planned as it was."""
        began_s = self._clock.now_s()
        is_due = self._pace.latest_s(self._periods()) <= began_s
        is_full = is_due or not self._is_known
        self._release(began_s)
        told = self.desired.fold.service_changes, self.desired.fold.slice_changes
        try:
            has_large = await self._plan()
            changed = dict(self._todo.plans)
            is_idle = not is_due and self._is_empty and not self._is_wanted()
            is_full = (is_due or not self._is_known) and not is_idle
            elements = self._idle() if is_idle else await (self._reconcile() if is_full else self._increment())
        except Exception as caught:  # one family's trouble must not end the other, nor the source
            error = caught if isinstance(caught, NftFailed) else NftFailed(f"{caught!r}; kepd tries again")
            if error is not caught:
                log.error("service_sync_broken", family=self.desired.family, error=repr(caught), exc_info=caught)
            self._is_known = False
            self._pace = self._pace.failed(self._clock.now_s(), self._clock.now_s() - began_s)
            retry_s = self._pace.earliest_s(self._periods()) - self._clock.now_s()
            self._watcher.sync_failed(self.desired.family, error, retry_s=retry_s, is_full=is_full)
            return
        self._shortages = 0
        took_s = self._clock.now_s() - began_s
        now_s = self._clock.now_s()
        if has_large:
            self._large_s = now_s + self._periods().rest_s(took_s)
        self._pace = self._pace.succeeded(now_s, 0.0 if has_large else took_s, was_full=is_full)
        self.updated_s = self._clock.wall_s()
        self.pending_since_s = self.updated_s if self._wake.is_set() or self.desired.large else None
        self.is_synced = True
        if not self.desired.large:
            self.taken = told
        if self._tampered:
            self._watcher.repaired(self.desired.family, self._tampered, elements)
            self._tampered = ""
        looked, self.desired.looked = self.desired.looked, set()
        gone, self._gone = self._gone, set()
        self._watcher.synced(self.desired.family, SyncReport(changed, elements, took_s, is_full, looked, gone))

    def _release(self, now_s: float) -> None:
        """Services that were set aside are tried again when their time has come."""
        if self.quarantine and now_s >= self._release_s():
            self.desired.changed.update(self.quarantine)
            for key in self.quarantine:
                self._todo.plans.setdefault(key, self.desired.plan_of(key))
            self.quarantine.clear()
            self._is_known = False

    def _release_s(self) -> float:
        return self._quarantined_s + QUARANTINE_S if self.quarantine else float("inf")

    async def _plan(self) -> bool:
        """Look at what changed, with a breath between so many Services. Where the rules are known a large one has a
        turn of its own, so that a change elsewhere waits for one of them at most. Whether there was one."""
        has_large = False
        while self.desired.is_due or (self.desired.large and not has_large):
            if not self.desired.is_due and self._is_known:
                if self._clock.now_s() < self._large_s:
                    break
                has_large = True
            fresh = self.desired.update(MOST_AT_ONCE)
            self._todo.plans.update(fresh)
            self._suspects.difference_update(key for key, plan in fresh.items() if plan is None)
            for key in fresh:
                if self.quarantine.pop(key, None) is not None:
                    # What an earlier process wrote for it is not known here, and has to be read.
                    self._is_known = False
            await asyncio.sleep(0)
        broken, self.desired.broken = self.desired.broken, {}
        for key, text in broken.items():
            self._set_aside(key, RulesRefused(text))
        return has_large

    def _idle(self) -> int:
        """Still nothing there and nothing wanted: most often a family that the cluster does not have."""
        self._todo.plans.clear()
        return 0

    async def _increment(self) -> int:
        with self._node_in_hand() as has_node:
            facts = self.facts if has_node else None
            written = await self.rules.write(self._todo.plans, facts)
        self._todo.plans = {}
        return written

    @contextmanager
    def _node_in_hand(self) -> Iterator[bool]:
        """Whether the node is to be written. What changes of it meanwhile is written the next time."""
        has_node, self._todo.node = self._todo.node, False
        try:
            yield has_node
        except BaseException:
            self._todo.node = self._todo.node or has_node
            raise

    async def _reconcile(self) -> int:
        """Read what is there and write the difference, whatever it is."""
        await self._check()
        drops, before = await self.rules.forward_drops(), self._drops
        self._drops = drops
        if drops and drops != before:
            self._watcher.forwarding_dropped(self.desired.family, drops)
        doubts = self._doubts
        if not await self.rules.prepare(self.facts, is_wanted=self._is_wanted()):
            self._is_empty = self._doubts == doubts
            return self._idle()
        self._is_empty = False
        plans = self._todo.plans
        try:
            return await self._reconcile_all(plans, doubts)
        except Exception as caught:  # noqa: BLE001  # a refusal, or raised again
            error = self._refusal(caught)
            log.warning("service_sync_refused", family=self.desired.family, error=str(error), services=len(plans))
            return await self._isolate(plans)
        finally:
            self.rules.release_dump()

    def _refusal(self, caught: Exception) -> RulesRefused:
        """A fault of ours on one Service is isolated like a refusal of the kernel; all else is raised again."""
        if isinstance(caught, RulesRefused) and not self._wait_out(caught):
            return caught
        if isinstance(caught, NftFailed):
            raise caught
        log.error("service_rules_broken", family=self.desired.family, error=repr(caught), exc_info=caught)
        return RulesRefused(f"kepd failed to make its rules: {caught!r}")

    def _wait_out(self, error: RulesRefused) -> bool:
        """Whether to wait for a shortage of the kernel to end. Counts them: one that comes each time is a fault of a
        Service, and would stop all others for ever."""
        if not error.is_passing or self._shortages >= MOST_SHORTAGES:
            return False
        self._shortages += 1
        return True

    async def _reconcile_all(self, plans: Mapping[ServiceKey, ServicePlan | None], doubts: int) -> int:
        # What an earlier process wrote for these may still work, and they have nothing better.
        spared = {key: self.desired.plan_of(key) for key in self.quarantine if key not in plans}
        written = await self._difference(plans, spared)
        self._todo.plans = {}
        self._is_known = self._doubts == doubts
        return written

    async def _difference(self, plans: Plans, spared: Plans) -> int:
        with self._node_in_hand():
            done = await self.rules.reconcile(plans, self.facts, spared)
        self._gone.update(done.gone)
        return done.written

    async def _check(self) -> None:
        """Whether this node lets us, and nobody else does the same work."""
        if self._is_checked:
            return
        await self.rules.check()
        rivals = [] if self._may_share() else await self.rules.rivals()
        if rivals and await self.rules.has_rules():
            # These Services were taken over once, and are ours until our rules are taken away.
            log.warning("service_rival_beside", family=self.desired.family, rivals=rivals, effect="kepd goes on", v=0)
        elif rivals:
            raise RivalFound(
                f"another program has its Services here ({', '.join(rivals)}): stop it and remove its rules, "
                "or set services.proxyName and the backend nftables; nothing is programmed until then"
            )
        self._is_checked = True

    def _is_wanted(self) -> bool:
        """A node without Services gets no rules."""
        return any(self._todo.plans.values()) or len(self.rules) > 0 or bool(self.facts.node.service_ranges)

    async def _isolate(self, plans: Plans) -> int:
        """One in there is refused: take the rest in halves until it stands alone. What the kernel has for a
        Service stays until the Service's own plan is taken in its place."""
        doubts = self._doubts
        written = await self._leave(plans)
        self._todo.plans = dict(plans)
        alone: list[ServiceKey] = []
        rest: deque[Sequence[ServiceKey]] = deque(portions(plans, NO_PLANS, MOST_ELEMENTS, self._suspects))
        while rest:
            some = rest.popleft()
            count, error = await self._try(some)
            written += count
            if error is None:
                continue
            if len(some) == 1:
                alone += some
            else:
                rest.extendleft(reversed(halves(some)))
        written += await self._leave({key: plans[key] for key in alone})
        for key in alone:
            # It may have been refused for an address that another one of these had to give up first.
            count, error = await self._try((key,))
            written += count
            if error is not None:
                self._set_aside(key, error)
        self._is_known = self._doubts == doubts
        return written

    async def _leave(self, spared: Plans) -> int:
        """Reduce the rules to those of the mirror and `spared`. Reads the kernel before, and again for what follows."""
        await self._stand_again()
        written = await self._difference({}, spared)
        await self._stand_again()
        return written

    async def _stand_again(self) -> None:
        if not await self.rules.prepare(self.facts, is_wanted=True):
            raise NftFailed("another program deleted the rules; kepd creates them again")

    async def _try(self, keys: Sequence[ServiceKey]) -> tuple[int, RulesRefused | None]:
        try:
            written = await self.rules.write_over({key: self._todo.plans[key] for key in keys})
        except Exception as caught:  # noqa: BLE001  # a refusal, or raised again
            return 0, self._refusal(caught)
        for key in keys:
            del self._todo.plans[key]
            self._suspects.discard(key)
        return written, None

    def _set_aside(self, key: ServiceKey, error: RulesRefused) -> None:
        self.quarantine[key] = str(error)
        self._suspects.add(key)
        self._quarantined_s = self._clock.now_s()
        self._todo.plans.pop(key, None)
        self._watcher.quarantined(self.desired.family, key, error)

    async def _watch(self) -> None:
        """Notice what others do to our rules."""
        while True:
            try:
                async with aclosing(self.rules.changes()) as sentences:
                    async for sentence in sentences:
                        self.disturbed(sentence)
            except NftFailed as error:
                log.warning("service_table_watch_failed", family=self.desired.family, error=str(error))
            await self._clock.sleep(LONGEST_WATCH_PAUSE_S)

    def is_written(self, key: ServiceKey) -> bool:
        """Whether the kernel has the Service as it is planned now."""
        is_waiting = key in self._todo.plans or self.desired.is_waiting(key)
        return self.is_synced and not is_waiting and key not in self.quarantine

    def disturbed(self, sentence: str) -> None:
        """Somebody else changed our rules."""
        if self._repairs():
            self._tampered = self._tampered or sentence
            self._doubt()
            self.wake()
