# SPDX-License-Identifier: Apache-2.0
"""What the parts of the proxy share while it runs: the ledger, the masks, the holds, and how they hear of changes."""

import asyncio
from collections.abc import Callable, Container, Coroutine
from itertools import count

import msgspec
import structlog

from agent.model.clock import Clock, rung
from agent.model.event import Event
from agent.proxy.gates.ledger import PodLedger, Sandbox
from agent.proxy.gates.stop import StopRules
from agent.proxy.run.call import ProxyCall
from agent.proxy.run.figures import Figures

log = structlog.get_logger(plane="proxy")

MOST_TOLD = 1000
# A pull that finds a free slot is held for a moment as well.
WORTH_TELLING_S = 0.1


class ProxySettings(msgspec.Struct, frozen=True):
    stop: StopRules
    fails_open: bool = True


class Hold(msgspec.Struct, kw_only=True, eq=False):
    """One call that is held. `limit_s` is when the watchdog opens it, None where no client gives up."""

    id: str
    call: ProxyCall
    reason: str
    since_s: float
    sandbox_id: str = ""
    pod: str = ""
    container: str = ""
    waits_for: tuple[str, ...] = ()
    until_s: float | None = None
    limit_s: float | None = None
    is_interrupted: bool = False
    task: asyncio.Task[None] | None = None


class ProxyState:
    """Made anew with each run of the plane; figures live longer."""

    def __init__(
        self,
        clock: Clock,
        tell: Callable[[Event], None],
        settings: Callable[[], ProxySettings],
        figures: Figures,
        endings: Container[str] = (),
    ) -> None:
        self.clock = clock
        self.endings = endings
        """Uids of pods that are known to end."""
        self.figures = figures
        self.ledger = PodLedger()
        self.masks: dict[str, str] = {}
        self.holds: dict[str, Hold] = {}
        self.group: asyncio.TaskGroup | None = None
        self.is_ending = False
        """No new holds: another proxy has taken over, or none will be here soon."""
        self.refuses_pulls = False
        self._settings = settings
        self._tell = tell
        self._wakes: dict[str, asyncio.Event] = {}
        self._ids = count(1)
        self._told: set[tuple[str, str]] = set()

    @property
    def settings(self) -> ProxySettings:
        return self._settings()

    def spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None] | None:
        """A task of the plane's run; none while it does not run."""
        if self.group is None:
            work.close()
            return None
        return self.group.create_task(work, name=name)

    # change

    def wake(self, sandbox_id: str) -> None:
        waiting = self._wakes.pop(sandbox_id, None)
        if waiting is not None:
            waiting.set()

    async def change(self, sandbox_id: str, until_s: float | None) -> None:
        waiting = self._wakes.setdefault(sandbox_id, asyncio.Event())
        await rung(waiting, self.clock, until_s)

    # holds

    def open_hold(self, call: ProxyCall, reason: str, sandbox: Sandbox | None = None, container: str = "") -> Hold:
        pod = f"{sandbox.namespace}/{sandbox.name}" if sandbox is not None else ""
        hold = Hold(
            id=f"h{next(self._ids)}",
            call=call,
            reason=reason,
            since_s=self.clock.now_s(),
            sandbox_id=sandbox.id if sandbox is not None else "",
            pod=pod,
            container=container,
        )
        self.holds[hold.id] = hold
        return hold

    def close_hold(self, hold: Hold) -> None:
        if self.holds.pop(hold.id, None) is not None:
            held_s = self.clock.now_s() - hold.since_s
            self.figures.held(hold.call.path, hold.reason, held_s)
            if hold.call.trace is not None:
                hold.call.trace.holds.append((hold.reason, hold.since_s, self.clock.now_s()))
            if held_s >= WORTH_TELLING_S:
                log.info(
                    "proxy_hold_finished",
                    method=hold.call.path.rpartition("/")[2],
                    reason=hold.reason,
                    pod=hold.pod,
                    container=hold.container,
                    held_s=round(held_s, 3),
                )

    def interrupt(self, sandbox_id: str) -> None:
        """End every hold of a sandbox."""
        for hold in self.holds.values():
            if hold.sandbox_id == sandbox_id:
                hold.is_interrupted = True
        self.wake(sandbox_id)

    # words

    def tell(
        self, sandbox: Sandbox, reason: str, message: str, *, is_warning: bool = True, container: str = ""
    ) -> None:
        self._tell(
            Event(
                is_warning=is_warning,
                reason=reason,
                message=message,
                plane="proxy",
                namespace=sandbox.namespace,
                object_name=sandbox.name,
                container=container,
            )
        )

    def tell_faults(self, sandbox: Sandbox) -> None:
        """Annotations that say nothing we understand: once for each pod and text, not at every call."""
        for annotation, text in sandbox.annotated.faults:
            key = (sandbox.uid, f"{annotation} {text}")
            if key not in self._told:
                if len(self._told) >= MOST_TOLD:
                    self._told.clear()
                self._told.add(key)
                self.tell(sandbox, "InvalidAnnotation", f"{annotation}: {text}; the annotation has no effect")

    def broke(self, what: str, error: Exception, pod: str = "") -> None:
        """Our own code failed on a call, which passes. Logged once per pod."""
        self.figures.policy_errors[what] += 1
        key = (pod, what)
        if key not in self._told:
            self._told.add(key)
            log.error("proxy_policy_failed", what=what, pod=pod, error=str(error), exc_info=error)
