# SPDX-License-Identifier: Apache-2.0
"""Whether this node is without rules for Services, so that it should get no further pods.

Three ways: it booted and nothing was programmed yet; the rules were lost, or all of a family are refused, and kepd
could not help it; the node shuts down. An ordinary end of kepd is none of them: rules stay and work.
Never: asks an API server, or doubts rules because a server is silent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from agent.drivers.atomic_files import write_file
from agent.model.clock import Clock
from agent.model.services.nft_table import Family
from agent.services.ruleset import SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT_FILE = Path("services", "boot-id")
LOOK_S = 10.0
LONGEST_REPAIR_S = 30.0
FIRST_REST_S = 60.0
LONGEST_REST_S = 600.0
ASK_S = 2.0


class MissingRules:
    """A follower of the plane, and a task. `file` keeps the boot in which Services were programmed last."""

    def __init__(
        self,
        plane: ServicesPlane,
        file: Path,
        clock: Clock,
        *,
        boot_id: Path = BOOT_ID,
        sees_losses: bool = False,
        is_going_down: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`sees_losses`: not only boots count, with `services.taintWhenDown: stop`."""
        self._plane = plane
        self._file = file
        self._clock = clock
        self._boot_id = boot_id
        self._sees_losses = sees_losses
        self._is_going_down = is_going_down
        self._pace = FlapGuard()
        self._is_booting = False
        self._lost: frozenset[Family] = frozenset()
        self._is_on_for_loss = False
        self._is_ending = False
        self._wake = asyncio.Event()
        self.heard: Callable[[], None] = lambda: None
        """Called when the answer to `is_so` may be another one."""

    def __repr__(self) -> str:
        return f"MissingRules(booting={self._is_booting}, lost={sorted(self._lost)}, ending={self._is_ending})"

    def is_so(self) -> bool:
        return self._is_ending or self._is_booting or bool(self._lost)

    def rest_s(self) -> float:
        """Only losses come and go."""
        is_once = self._is_ending or self._is_booting
        return 0.0 if is_once else self._pace.rest_s(self._clock.now_s())

    def changed(self) -> None:
        if self._lost or self._is_on_for_loss:
            self._pace.changed(self._clock.now_s())
        self._is_on_for_loss = bool(self._lost)

    async def begin(self) -> None:
        """Before anything else: rules that stand outlive kepd, but no boot."""
        try:
            known = await asyncio.to_thread(self._file.read_text)
        except (OSError, UnicodeDecodeError):
            known = ""
        if known.strip() == self._boot() or await self._plane.has_rules():
            return
        self._is_booting = True
        log.info("services_after_boot", rules="none", v=0)

    def _boot(self) -> str:
        try:
            return self._boot_id.read_text().strip()
        except OSError as error:
            log.warning("boot_id_unreadable", path=str(self._boot_id), error=str(error))
            return ""

    def follow(self, _family: Family, _report: SyncReport) -> None:
        if self._plane.is_answering and not self._wake.is_set():
            self._is_booting = False
            self._wake.set()

    async def run(self) -> None:
        """The boot is noted once its rules are there: a kepd that ends before that leaves the question open."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._note_boot(), name="services-note-boot")
            if self._sees_losses:
                group.create_task(self._watch(), name="services-watch-losses")

    async def _note_boot(self) -> None:
        await self._wake.wait()
        try:
            await asyncio.to_thread(write_file, self._file, f"{self._boot()}\n".encode())
        except OSError as error:
            effect = "the next start takes this boot for a new one if there are no rules then"
            log.warning("boot_id_not_written", path=str(self._file), error=str(error), effect=effect)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            lost = frozenset(await self._plane.lacking(LONGEST_REPAIR_S))
            if lost != self._lost:
                self._lost = lost
                log.warning("service_rules_missing", families=sorted(lost))
                self.heard()

    async def end(self) -> None:
        """Before kepd ends: whether the node does too."""
        if self._is_going_down is None or not self._sees_losses:
            return
        try:
            async with asyncio.timeout(ASK_S):
                self._is_ending = await self._is_going_down()
        except (OSError, TimeoutError) as error:
            log.warning("node_state_unknown", error=str(error), effect="no taint is put on for a shutdown")


class FlapGuard:
    """At least a minute between two changes, and each that comes soon after doubles it, up to ten minutes."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._last_s = float("-inf")

    def rest_s(self, now_s: float) -> float:
        return max(0.0, self._last_s + self._pause_s - now_s)

    def changed(self, now_s: float) -> None:
        is_soon = now_s - self._last_s < 2 * LONGEST_REST_S
        self._pause_s = min(2 * self._pause_s, LONGEST_REST_S) if is_soon else FIRST_REST_S
        self._last_s = now_s
