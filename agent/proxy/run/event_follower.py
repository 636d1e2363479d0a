# SPDX-License-Identifier: Apache-2.0
"""What happens in containers behind the kubelet's back: exits from the runtime's events, and the end of Jobs.

Never: touches a pod without annotations, or stops a container before its mask is on the disk: a kill of this process
between the two must not leave an exit that makes a finished Job fail.
"""

import asyncio
from math import ceil

import msgspec
import structlog

from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent, RuntimeEvents
from agent.proxy.gates.job_end import grace_of, read_masks, sidecars_to_end, still_needed, written_masks
from agent.proxy.gates.ledger import LedgerContainer, LedgerState, Sandbox, drop_absent, merge, rebuild
from agent.proxy.gates.stop import LEAST_S, pre_stop_command
from agent.proxy.ports import ProxyRecords, ProxyRuntime
from agent.proxy.run.readiness import Readiness
from agent.proxy.run.state import ProxyState

log = structlog.get_logger(plane="proxy")

MASKS = "masks.json"
# Between looks while the runtime is away, each time twice as long.
RETRY_S, LONGEST_RETRY_S = 0.2, 1.0
LOOK_LATER_S = 1.0


class EventFollower:
    def __init__(
        self,
        state: ProxyState,
        runtime: ProxyRuntime,
        readiness: Readiness,
        events: RuntimeEvents,
        records: ProxyRecords,
    ) -> None:
        self._state = state
        self._runtime = runtime
        self._readiness = readiness
        self._events = events
        self._records = records
        self._listening = asyncio.Event()
        self._is_known = False
        self._has_missed = False
        self._looks_later = False

    async def load_masks(self) -> None:
        """What an earlier process promised. A damaged file is kept aside and logged."""
        content = await self._records.read(MASKS)
        try:
            self._state.masks = read_masks(content)
        except msgspec.MsgspecError as error:
            place = await self._records.set_aside(MASKS)
            log.error("proxy_masks_unreadable", error=str(error), kept_at=place)

    async def recover(self) -> None:
        """Until the runtime has reported what there is. Events have been listened to since before."""
        await self._listening.wait()
        pause_s, said = RETRY_S, ""
        while not self._is_known:
            try:
                self._has_missed = False
                await self._look()
                self._is_known = True
                if self._has_missed:
                    await self._look_again()
            except RuntimeCallFailed as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("proxy_recovery_waits", error=said)
                await self._state.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    async def _look(self) -> None:
        ledger = self._state.ledger
        with ledger.look() as newer:
            sandboxes, containers = await self._runtime.list_sandboxes(), await self._runtime.list_containers()
            self._has_missed |= bool(newer)
            rebuild(ledger, sandboxes, containers, self._state.clock.wall_s() - self._state.clock.now_s(), newer)
        await self._ask_exit_codes()
        await self._keep_masks({one.id for one in containers})
        for sandbox in ledger.sandboxes.values():
            self._state.tell_faults(sandbox)
            for container in sandbox.running():
                self._readiness.watch(sandbox, container)
        log.info("proxy_state_recovered", sandboxes=len(ledger), masks=len(self._state.masks), v=1)

    async def _keep_masks(self, present: set[str]) -> None:
        kept = still_needed(self._state.masks, present)
        if kept != self._state.masks:
            self._state.masks = kept
            await self._records.write(MASKS, written_masks(kept))

    async def _ask_exit_codes(self) -> None:
        """Of those that exited, and whose code decides something."""
        for sandbox, container in list(self._state.ledger.containers()):
            wants = sandbox.annotated.job_end and container.name in sandbox.annotated.mains
            if wants and container.state is LedgerState.EXITED and container.exit_code is None:
                await self._ask_exit_code(container)

    async def _ask_exit_code(self, container: LedgerContainer) -> None:
        try:
            container.exit_code = (await self._runtime.container_status(container.id)).exit_code
        except NotFound:
            return

    async def follow(self) -> None:
        """Events, for ever. LOST means that the lists have to be read again."""
        async for event in self._events.listen():
            self._listening.set()
            try:
                await self._take(event)
            except RuntimeCallFailed as error:
                log.info("proxy_event_not_followed", error=str(error))

    async def _take(self, event: RuntimeEvent) -> None:
        if not self._is_known:
            self._has_missed = True
            return
        if not len(self._state.ledger):
            return
        if event.kind is EventKind.LOST:
            await self._look_again()
        elif event.kind is EventKind.STARTED:
            # A start that an earlier process passed on may take effect when this one has read the lists already.
            found = self._state.ledger.find(event.container_id)
            if found is not None and found[1].state is LedgerState.CREATED:
                self._note_start(*found)
        elif event.kind is EventKind.STOPPED:
            found = self._state.ledger.find(event.container_id)
            if found is None:
                return
            sandbox, container = found
            self._state.ledger.note(container, LedgerState.EXITED)
            container.exit_code, container.is_ready = event.exit_code, False
            if event.exit_code is None and sandbox.annotated.job_end:
                await self._ask_exit_code(container)
            self._state.wake(sandbox.id)
            self._end_job(sandbox)
        elif event.kind is EventKind.DELETED:
            self._state.ledger.remove_sandbox(event.container_id)
            self._state.ledger.remove_container(event.container_id)

    async def _look_again(self) -> None:
        ledger = self._state.ledger
        with ledger.look() as newer:
            sandboxes, containers = await self._runtime.list_sandboxes(), await self._runtime.list_containers()
            if newer:
                self._look_later()
            drop_absent(ledger, sandboxes, newer)
            changed = merge(ledger, containers, newer)
        await self._ask_exit_codes()
        for sandbox_id in changed:
            sandbox = ledger.sandboxes[sandbox_id]
            for container in sandbox.running():
                self._readiness.watch(sandbox, container)
            self._state.wake(sandbox_id)
        self.end_jobs()

    def _look_later(self) -> None:
        """What changed while lists were read was left as the change said. It may have ended since, in no event."""
        if not self._looks_later:
            self._looks_later = True
            self._state.spawn(self._later(), "proxy-look-later")

    async def _later(self) -> None:
        await self._state.clock.sleep(LOOK_LATER_S)
        self._looks_later = False
        try:
            await self._look_again()
        except RuntimeCallFailed as error:
            log.info("proxy_event_not_followed", error=str(error))

    def _note_start(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        self._state.ledger.note(container, LedgerState.RUNNING)
        sandbox.has_started_main |= container.name in sandbox.annotated.mains
        self._readiness.watch(sandbox, container)
        self._state.wake(sandbox.id)

    # ended Jobs

    def end_jobs(self) -> None:
        for sandbox in self._state.ledger.sandboxes.values():
            self._end_job(sandbox)

    def _end_job(self, sandbox: Sandbox) -> None:
        if self._state.is_ending or sandbox.has_ended_sidecars:
            return
        due = sidecars_to_end(sandbox)
        if due:
            sandbox.has_ended_sidecars = True
            self._state.spawn(self._end(sandbox, due), f"proxy-job:{sandbox.name}")

    async def _end(self, sandbox: Sandbox, due: tuple[LedgerContainer, ...]) -> None:
        names = [one.name for one in due]
        try:
            text = f"all of {', '.join(sandbox.annotated.mains)} are done; ending {', '.join(names)}"
            self._state.tell(sandbox, "SidecarsEnded", text, is_warning=False)
            log.info("proxy_sidecars_ended", pod=f"{sandbox.namespace}/{sandbox.name}", sidecars=names)
            for container in due:
                await self._stop(sandbox, container)
        except (RuntimeCallFailed, OSError) as error:
            # Tried again with the next event; what was stopped is no longer due.
            sandbox.has_ended_sidecars = False
            log.warning("proxy_sidecars_not_ended", pod=f"{sandbox.namespace}/{sandbox.name}", error=str(error))

    async def _stop(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        """One sidecar, after the preStop hook that its kubelet wrote down, within one grace. It is masked when it is
        stopped: one that ended by itself before shows its own code."""
        clock, grace_s, command = self._state.clock, grace_of(container), pre_stop_command(container)
        began_s = clock.now_s()
        if command and grace_s > LEAST_S:
            try:
                await self._runtime.exec_sync(container.id, command, grace_s - LEAST_S)
            except RuntimeCallFailed as error:
                log.info("proxy_hook_failed", container=container.name, error=str(error))
        spent_s = ceil(clock.now_s() - began_s)
        if not container.is_running:
            return
        self._state.masks[container.id] = sandbox.id
        await self._records.write(MASKS, written_masks(self._state.masks))
        await self._runtime.stop_container(container.id, max(min(LEAST_S, grace_s), grace_s - spent_s))
