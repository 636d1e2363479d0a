# SPDX-License-Identifier: Apache-2.0
"""Sees the plane through the absence of its API server, and back (`services.outage`).

Follows whether the server speaks. Once it has been silent for the stated time, what a snapshot has is taken where no
list ever came; with `judge` endpoints are checked from then on, and those that are dead are set back in the rules.
When the server has returned, nothing of that is left: its word alone counts.
Never: changes what sources reported. Beside a server that speaks it waits, and does nothing else.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from heapq import nsmallest

import msgspec
import structlog

from agent.model.clock import Clock, rung
from agent.model.event import Event
from agent.model.finding import printable
from agent.model.services.check import Asked, Outcome
from agent.model.services.outage import DeadEndpoint, OutageReport
from agent.model.services.service import ServiceKey
from agent.services.nftables.trace import told_endpoint
from agent.services.outage.judged import targets_of
from agent.services.outage.judgement import Judgement, Pace
from agent.services.outage.silence import KINDS, Phase, Silence
from agent.services.ports import EndpointChecks, LocalEnds
from agent.services.run.intake import LIST
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

TICK_S = 0.1
AT_ONCE = 200
"""Services whose endpoints are gathered between two breaths."""
GATHER_S = 5.0
"""While lists come in, endpoints are gathered again no more often."""
TELL_S = 10.0
MOST_SHOWN = 200
LONGEST_FAILURE = 300
WHY: Mapping[Outcome, str] = {
    "refused": "it refuses connections",
    "unreachable": "its host cannot be reached",
    "silent": "it does not answer",
}


class OutageSettings(msgspec.Struct, frozen=True):
    mode: str = "off"
    after_s: float = 10.0
    checks_per_s: float = 100.0


class NoLocalEnds:
    """No runtime tells anything; local endpoints are checked like others."""

    def ended(self) -> Mapping[bytes, str]:
        return {}

    async def changes(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def _nothing() -> None:
    """There is no snapshot."""


class OutageKeeper:
    """A follower of the source, and a task."""

    def __init__(
        self,
        plane: ServicesPlane,
        clock: Clock,
        tell: Callable[[Event], None],
        settings: Callable[[], OutageSettings],
        checks: Callable[[], EndpointChecks],
        *,
        ends: LocalEnds | None = None,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.plane, self._clock, self._tell = plane, clock, tell
        self._settings, self._make_checks, self._luck = settings, checks, luck
        self._ends: LocalEnds = ends or NoLocalEnds()
        self._silence = Silence(settings().after_s, clock.now_s())
        self._wake = asyncio.Event()
        self._failures: dict[str, str] = {}
        """Kind → why there are no news of it."""
        self._told: tuple[float, int] = (float("-inf"), 0)
        self._judgement: Judgement | None = None
        self._whose: dict[Asked, tuple[ServiceKey, str]] = {}
        """The first Service that has it, and its node."""
        self._others: dict[Asked, set[ServiceKey]] = {}
        self._gathered: tuple[int, int] = (-1, -1)
        self._gathered_s = float("-inf")
        self._here: Mapping[bytes, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.followers: list[Callable[[], None]] = []
        """Called when the phase is another one."""
        self.snapshot_s = 0.0
        self.restore: Callable[[], Awaitable[None]] = _nothing
        """Takes what a snapshot has, where no list has come."""
        self.unwritten: Callable[[], str] = str
        """Why there is no snapshot of what is known."""

    @property
    def is_alone(self) -> bool:
        """Whether no server is followed at the moment."""
        return self._silence.phase is not Phase.WITH_SERVER

    @property
    def alone_s(self) -> float:
        return self._clock.now_s() - self._silence.since_s if self._silence.phase is Phase.ALONE else 0.0

    @property
    def dead(self) -> Collection[Asked]:
        return self._judgement.dead if self._judgement is not None else ()

    def heard(self, kind: str) -> None:
        self._failures.pop(kind, None)
        self._silence.heard(kind)
        self._wake.set()

    def lost(self, kind: str, why: str) -> None:
        if kind in KINDS:
            self._failures[kind] = printable(why)[:LONGEST_FAILURE]
        self._silence.lost(kind, self._clock.now_s())
        self._wake.set()

    def doubts(self, kind: str, *, is_doubted: bool) -> None:
        self._silence.doubts(kind, is_doubted=is_doubted)
        self._wake.set()

    def began_with(self, snapshot_s: float) -> None:
        """What is programmed is of a snapshot, of that time of the wall clock."""
        self.snapshot_s = snapshot_s
        self._silence.vouched_s = self._clock.now_s() - max(self._clock.wall_s() - snapshot_s, 0.0)

    def reloaded(self) -> None:
        self._silence.after_s = self._settings().after_s
        if self._judgement is not None:
            self._judgement.set_pace(Pace(per_s=self._settings().checks_per_s))
        self._wake.set()

    async def run(self) -> None:
        if self._settings().mode == "off":
            return
        while True:
            due_s = self._silence.due_s
            await rung(self._wake, self._clock, due_s if due_s != float("inf") else None)
            self._wake.clear()
            await self._look()
            while self.is_alone and self._settings().mode == "judge":
                await self._judge()

    async def _look(self) -> None:
        if not self._silence.look(self._clock.now_s()):
            return
        phase, mode = self._silence.phase, self._settings().mode
        log.warning("service_outage_phase", phase=str(phase), mode=mode)
        if phase is not Phase.WITH_SERVER:
            # A doubted list leaves a process that has just begun with nothing as well.
            await self.restore()
        if phase is Phase.ALONE:
            why = "".join(f" ({text})" for text in tuple(self._failures.values())[:1])
            text = f"no API server gives news of Services{why}; {self._effect()}"
            self._tell(Event(is_warning=True, reason="ServersSilent", message=text, plane="services"))
        elif phase is Phase.WITH_SERVER:
            text = "an API server gives news again, and what it says counts"
            self._tell(Event(is_warning=False, reason="ServerReturned", message=text, plane="services"))
        self.plane.remark(self._remark())
        for follower in self.followers:
            follower()

    def _effect(self) -> str:
        if not self.plane.intake.arrived.is_set():
            return "no list and no snapshot is there, so nothing is programmed"
        kept = "Services and endpoints stay as they were last told"
        return f"{kept}, and dead endpoints are found by checks" if self._settings().mode == "judge" else kept

    def _remark(self) -> str:
        if self._silence.phase is Phase.WITH_SERVER:
            return ""
        return f"{self._silence.phase}, services.outage {self._settings().mode}"

    async def _judge(self) -> None:
        """Until the server is back."""
        try:
            checks = self._make_checks()
        except OSError as error:
            log.warning("endpoint_checks_missing", error=str(error), effect="none is judged", retry_s=TELL_S)
            await self._clock.sleep(TELL_S)
            await self._look()
            return
        pace = Pace(per_s=self._settings().checks_per_s)
        judgement = self._judgement = Judgement(pace, self._clock.now_s(), self._luck)
        for sync in self.plane.families.values():
            sync.desired.dead = judgement.dead
        watching = asyncio.create_task(self._follow_ends(), name="services-local-ends")
        try:
            while self.is_alone:
                await self._gather(judgement)
                self._round(judgement, checks)
                await self._clock.sleep(TICK_S)
                await self._look()
        finally:
            watching.cancel()
            checks.close()
            self._lift(judgement)

    def _lift(self, judgement: Judgement) -> None:
        """As if nobody had ever judged."""
        before = set(judgement.dead)
        for sync in self.plane.families.values():
            sync.desired.dead = ()
        self._touch(before)
        self._judgement, self._gathered, self._gathered_s = None, (-1, -1), float("-inf")
        self._whose, self._others, self._here = {}, {}, {}

    def _round(self, judgement: Judgement, checks: EndpointChecks) -> None:
        now_s = self._clock.now_s()
        changed = []
        for asked, outcome in checks.ended(now_s):
            self.outcomes[outcome] += 1
            if judgement.take(asked, outcome, now_s):
                changed.append(asked)
        for asked in judgement.due(now_s):
            checks.begin(asked, now_s)
        self._touch(changed)
        self._tell_dead(judgement)

    def _touch(self, changed: Iterable[Asked]) -> None:
        keys = {self._whose[one][0] for one in changed if one in self._whose}
        keys.update(*(self._others.get(one, ()) for one in changed))
        for sync in self.plane.families.values() if keys else ():
            sync.desired.changed.update(keys)
            sync.wake()

    async def _gather(self, judgement: Judgement) -> None:
        """The endpoints there are: anew when something was told, not too often."""
        fold, now_s = self.plane.intake.fold, self._clock.now_s()
        counts = fold.service_changes, fold.slice_changes
        if counts == self._gathered or now_s < self._gathered_s + GATHER_S:
            return
        self._gathered, self._gathered_s = counts, now_s
        families, whose = tuple(self.plane.families), dict[Asked, tuple[ServiceKey, str]]()
        others: dict[Asked, set[ServiceKey]] = {}
        for at, key in enumerate(tuple(fold.services)):
            for asked, node in targets_of(fold, key, families):
                if whose.setdefault(asked, (key, node))[0] != key:
                    others.setdefault(asked, set()).add(key)
            if at % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        self._whose, self._others = whose, others
        judgement.follow({asked: node for asked, (_, node) in whose.items()}, self._clock.now_s())
        self._note_ends(judgement)

    async def _follow_ends(self) -> None:
        """What the runtime of this node says counts at once."""
        while True:
            try:
                async for _ in self._ends.changes():
                    if self._judgement is not None:
                        self._note_ends(self._judgement)
            except Exception as error:  # noqa: BLE001  # whoever tells of pods here stops no check
                log.warning("service_local_ends_lost", error=repr(error), effect="checks go on", retry_s=TELL_S)
            await self._clock.sleep(TELL_S)

    def _note_ends(self, judgement: Judgement) -> None:
        self._here = self._ends.ended()
        place = next((sync.facts.node.place for sync in self.plane.families.values()), None)
        here = place.node if place is not None else ""
        told = {
            asked for asked, (_, node) in self._whose.items() if node == here and asked.data[:-4] in self._here
        } if self._here else set()  # fmt: skip
        self._touch(judgement.tell(told))

    def _tell_dead(self, judgement: Judgement) -> None:
        """Once in a while, where there are more than were told."""
        (told_s, count), now_s = self._told, self._clock.now_s()
        if len(judgement.dead) == count or now_s < told_s + TELL_S:
            return
        self._told = now_s, len(judgement.dead)
        if len(judgement.dead) > count:
            first = next(iter(self._shown(judgement, judgement.dead)))
            text = f"{len(judgement.dead)} of {len(judgement)} endpoints are dead and get no traffic while others live"
            text += f", such as {first.endpoint}/{first.protocol} of {first.service}: {first.why}"
            self._tell(Event(is_warning=True, reason="EndpointsJudged", message=text, plane="services"))

    def _shown(self, judgement: Judgement, some: Iterable[Asked]) -> Iterable[DeadEndpoint]:
        for asked in some:
            key, node = self._whose.get(asked, (ServiceKey("", ""), ""))
            why = self._here.get(asked.data[:-4], "") or WHY.get(judgement.last_failure(asked), "")
            yield DeadEndpoint(
                endpoint=told_endpoint(asked.data), protocol=asked.protocol, node=node, service=str(key), why=why
            )

    def why_dead(self, asked: Asked) -> str:
        """Why it is set back; empty: it is not."""
        if self._judgement is None or asked not in self._judgement.dead:
            return ""
        return self._here.get(asked.data[:-4], "") or WHY.get(self._judgement.last_failure(asked), "")

    def report(self) -> OutageReport:
        """As of now."""
        mode = self._settings().mode
        if mode == "off":
            return OutageReport(mode=mode)
        silence, judgement = self._silence, self._judgement
        shown: list[DeadEndpoint] = []
        if judgement is not None:
            nobody = ServiceKey("", ""), ""
            first = nsmallest(MOST_SHOWN, judgement.dead, key=lambda one: (self._whose.get(one, nobody)[0], one))
            shown += self._shown(judgement, first)
        return OutageReport(
            mode=mode,
            phase=str(silence.phase),
            since_s=self._clock.wall_s() - (self._clock.now_s() - silence.since_s),
            snapshot_s=self.snapshot_s if self.is_alone else 0.0,
            lines=tuple(self._lines(judgement)),
            checked=len(judgement) if judgement is not None else 0,
            dead=tuple(shown),
            dead_total=len(self.dead),
        )

    def _lines(self, judgement: Judgement | None) -> Iterable[str]:
        silence = self._silence
        if silence.phase is Phase.WITH_SERVER:
            yield f"alone once no server has given news for {silence.after_s:.0f} s"
        else:
            yield self._effect()
        yield from (f"no news of {kind}: {text}" for kind, text in sorted(self._failures.items()))
        yield from (text for kind, text in self._doubted())
        if problem := self.unwritten():
            yield f"a boot would begin with what was known before, for the snapshot is not written: {problem}"
        if judgement is not None:
            yield f"checks: {len(judgement)} endpoints, each once in {judgement.round_s:.1f} s"

    def _doubted(self) -> Iterable[tuple[str, str]]:
        for (kind, _, name), found in self.plane.intake.findings.items():
            if kind == LIST:
                for one in found:
                    yield name, one.text
