# SPDX-License-Identifier: Apache-2.0
"""Ends TCP connections to endpoints that are gone, for Services that want it, after the rules are in.

First the sockets of this host's own processes, which hear of it at once and whose last packet still reaches the
endpoint; then the entries of connection tracking, so that whoever sends once more gets a reset. Pods' own sockets are
not touched. 500 at a time, so that nothing else waits; a round that fails is tried again, by the next process if this
one is killed: its first look is at all connections.

Never: ends anything before the rules are in, nor more than the node allows in a minute.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.refused import Refused
from agent.model.services.ended_connections import EndedConnections
from agent.model.services.flow import TCP_ALONE, Flow, Flows, FlowsUnavailable, FlowTarget, SocketsUnavailable
from agent.model.services.nft_table import Family
from agent.model.services.service import NEVER, Address, PortKey, ServiceKey
from agent.services.ports import HostSockets
from agent.services.routes.stale_flows import EndingCheck, GoneEndpoints, checks_of
from agent.services.ruleset import SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

SETTLE_S = 0.02
MOST_AT_ONCE = 500
SLICE_S = 0.02
# A look among very many flows rests so many times as long as it took.
PAUSES = 9
RETRY_S = 1.0
REFUSED_S = 60.0
MINUTE_S = 60.0
MOST_SHOWN = 1000
# An end by hand looks so often whether the kernel has the last change, and gives up after so long.
LOOK_S, UNWRITTEN_S = 0.02, 5.0
STRICT = (
    "net.netfilter.nf_conntrack_tcp_loose is 0, so a client would hear nothing instead of a reset; set it to 1 "
    "(another program's chain that drops invalid or unknown packets has the same effect, and kepd cannot see that)"
)
UNWRITTEN = (
    "the kernel has not got the last changes of Services yet and would lead these connections back to where they were; "
    "kepctl get events says what is in the way, nothing was ended"
)


class EndingSettings(msgspec.Struct, frozen=True):
    default_s: int = NEVER
    most_per_min: int = 10_000


class ConnectionEnder:
    """A follower of the plane, and a task. `addresses`: those that this host has now."""

    def __init__(
        self,
        plane: ServicesPlane,
        flows: Flows,
        sockets: HostSockets,
        clock: Clock,
        *,
        settings: Callable[[], EndingSettings],
        addresses: Callable[[], Awaitable[Iterable[bytes]]],
    ) -> None:
        self.refusal = ""
        """Why nothing is ended although Services want it."""
        self._plane = plane
        self._flows = flows
        self._sockets = sockets
        self._clock = clock
        self._settings = settings
        self._addresses = addresses
        self._indices = {family: GoneEndpoints() for family in plane.families}
        self._default_s: dict[Family, int] = {}
        """Of families that were synced: the default their Services were looked at with."""
        self._rests_until_s = 0.0
        self._minute_s, self._used = float("-inf"), 0
        self._is_capped = self._has_no_sockets = False
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        now_s, default_s = self._clock.now_s(), self._settings().default_s
        index, desired = self._indices[family], self._plane.families[family].desired
        keys = {*report.changed, *report.looked}
        if self._default_s.get(family) != default_s:
            keys.update(plan.key for plan in desired.plans())
        self._default_s[family] = default_s
        for key in keys:
            index.look(key, desired.plan_of(key), default_s, self._endpoints_of(family, key), now_s)
        if index.due_s < float("inf"):
            self._wake.set()

    def _endpoints_of(self, family: Family, key: ServiceKey) -> Callable[[PortKey], frozenset[bytes]]:
        """In any condition, port by port."""
        fold = self._plane.intake.fold
        return lambda port: frozenset([one.data[:-2] for one in fold.backends(key, family, port)])

    def reloaded(self) -> None:
        """The default may be another one."""
        for family in [one for one, had_s in self._default_s.items() if had_s != self._settings().default_s]:
            self.follow(family, SyncReport({}, 0, 0.0, is_full=False))

    async def run(self) -> None:
        while True:
            await self._until_due()
            self._wake.clear()
            await self.round()

    async def _until_due(self) -> None:
        due_s = min(one.due_s for one in self._indices.values())
        wait_s = max(due_s, self._rests_until_s) - self._clock.now_s()
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s == float("inf") else wait_s):
                    await self._wake.wait()
        await asyncio.sleep(max(SETTLE_S, self._rests_until_s - self._clock.now_s()))

    async def round(self) -> None:
        """End what is due."""
        began_s = self._clock.now_s()
        for family, index in self._indices.items():
            if index.due_s <= self._clock.now_s():
                await self._end_due(family, index)
        self._rests_until_s = self._clock.now_s() + min(RETRY_S, PAUSES * (self._clock.now_s() - began_s))

    async def _end_due(self, family: Family, index: GoneEndpoints) -> None:
        checks = index.take(self._clock.now_s())
        if not await self._is_possible():
            for check in checks:
                index.give_back(check, self._clock.now_s() + REFUSED_S)
            return
        by_target = self._by_target(family, checks)
        again_s = 0.0
        try:
            found = await self._flows.flows(family, TCP_ALONE, {to: check.kept for to, check in by_target.items()})
            for at in range(0, len(found), MOST_AT_ONCE):
                some = [one for one in found[at : at + MOST_AT_ONCE] if index.may_end(one, by_target[one.target])]
                allowed = self._allowed(family, len(some))
                await self._end(family, some[:allowed])
                if allowed < len(some):
                    again_s = self._minute_s + MINUTE_S
                    break
        except FlowsUnavailable as error:
            log.warning("connections_not_ended", family=family, error=str(error), next_try_s=RETRY_S)
            again_s = self._clock.now_s() + RETRY_S
        for check in checks if again_s else ():
            index.give_back(check, again_s)

    def _by_target(self, family: Family, checks: Iterable[EndingCheck]) -> dict[FlowTarget, EndingCheck]:
        """With the addresses that node ports have here. An external IP that is one of them comes before."""
        owner_of, here = self._plane.families[family].desired.owner_of, self._plane.own_addresses(family)
        found: dict[FlowTarget, EndingCheck] = {}
        for check in checks:
            for target in check.targets:
                if target.address:
                    found[target] = check
                    continue
                exact = (target._replace(address=address) for address in here)
                found.update((one, check) for one in exact if owner_of(one) is None)
        return found

    async def _is_possible(self) -> bool:
        """Where an entry that is gone turns a reset into silence, nothing is ended."""
        refusal = "" if await self._flows.follows_midstream() else STRICT
        if refusal and refusal != self.refusal:
            self._plane.ending_refused(refusal)
        self.refusal = refusal
        return not refusal

    def _allowed(self, family: Family, count: int) -> int:
        """How many of so many this minute still has."""
        most, now_s = self._settings().most_per_min, self._clock.now_s()
        if now_s >= self._minute_s + MINUTE_S:
            self._minute_s, self._used, self._is_capped = now_s, 0, False
        allowed = min(count, max(0, most - self._used))
        self._used += allowed
        if allowed < count and not self._is_capped:
            self._is_capped = True
            self._plane.ending_capped(family, most)
        return allowed

    async def _end(self, family: Family, flows: Sequence[Flow]) -> tuple[int, int]:
        """How many sockets and how many entries."""
        began_s = self._clock.now_s()
        sockets = await self._end_sockets(flows)
        entries = await self._flows.delete(flows)
        ended = self._plane.measures.ended
        ended[family, "socket"] += sockets
        ended[family, "entry"] += entries
        if entries or sockets:
            log.info("connections_ended", family=family, entries=entries, sockets=sockets)
        if len(flows) >= MOST_AT_ONCE:
            await self._clock.sleep(max(0.0, SLICE_S - (self._clock.now_s() - began_s)))
        return sockets, entries

    async def _end_sockets(self, flows: Sequence[Flow]) -> int:
        if self._has_no_sockets or not flows:
            return 0
        own = frozenset(await self._addresses())
        try:
            return await self._sockets.destroy([one for one in flows if one.source in own])
        except SocketsUnavailable as error:
            self._has_no_sockets = True
            log.warning("host_sockets_kept", error=str(error), effect="this host's processes hear of it when they send")
            return 0

    def wait_of(self, key: ServiceKey) -> tuple[int, bool]:
        """Seconds until its connections end once their endpoint is gone, and whether the Service says so itself."""
        service = self._plane.intake.fold.services.get(key)
        own = service.options.ends_after_s if service is not None else None
        return (self._settings().default_s, False) if own is None else (own, True)

    async def _until_written(self, families: Iterable[Family]) -> None:
        """Wait until known changes are programmed."""
        fold, until_s = self._plane.intake.fold, self._clock.now_s() + UNWRITTEN_S
        services, slices = fold.service_changes, fold.slice_changes
        for sync in map(self._plane.families.__getitem__, families):
            while sync.taken[0] < services or sync.taken[1] < slices:
                if self._clock.now_s() >= until_s:
                    raise Refused("tracking", UNWRITTEN)
                await self._clock.sleep(LOOK_S)

    async def end_connections(
        self, key: ServiceKey, to: Address | None, port: int, *, dry_run: bool
    ) -> EndedConnections:
        """By hand: connections to one endpoint, or to all that no slice has. Raises KeyError and Refused."""
        plans = {one: plan for one, sync in self._plane.families.items() if (plan := sync.desired.plan_of(key))}
        if not plans:
            raise KeyError(str(key))
        if not dry_run and not await self._is_possible():
            raise Refused("tracking", STRICT)
        if not dry_run:
            await self._until_written(plans)
        done = EndedConnections()
        for family, plan in plans.items():
            if to is not None and to.family != family:
                continue
            by_target = self._by_target(family, checks_of(plan, self._endpoints_of(family, key)))
            kept = {one: check.kept if to is None else frozenset[bytes]() for one, check in by_target.items()}
            try:
                listed = await self._flows.flows(family, TCP_ALONE, kept)
                found = [one for one in listed if not one.is_over and not one.is_untranslated]
                if to is not None:
                    found = [one for one in found if one.answerer == to.packed + port.to_bytes(2, "big")]
                done = done.with_more(found, MOST_SHOWN)
                for at in range(0, 0 if dry_run else len(found), MOST_AT_ONCE):
                    done = done.ended(*await self._end(family, found[at : at + MOST_AT_ONCE]))
            except FlowsUnavailable as error:
                raise Refused("tracking", str(error)) from error
        return done
