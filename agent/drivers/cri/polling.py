# SPDX-License-Identifier: Apache-2.0
"""Events by comparing lists, for runtimes that have no event stream at all.

The last resort: it costs a list every time and sees nothing that began and ended between two looks.
"""

from collections.abc import AsyncIterator, Iterable, Mapping

from agent.drivers.cri.driver import CriRuntime
from agent.model.clock import Clock
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.wire.cri import runtime_v1_pb2 as pb

RUNNING = pb.CONTAINER_RUNNING
EXITED = pb.CONTAINER_EXITED


Seen = Mapping[str, tuple[str, int]]


def _snapshot(containers: Iterable[pb.Container]) -> Seen:
    """Container id to (sandbox id, state)."""
    return {container.id: (container.pod_sandbox_id, container.state) for container in containers}


def compare(before: Seen, after: Seen) -> list[RuntimeEvent]:
    events: list[RuntimeEvent] = []
    for container_id, (sandbox_id, state) in after.items():
        old = before.get(container_id, ("", -1))[1]
        if old == -1:
            events.append(RuntimeEvent(EventKind.CREATED, container_id, sandbox_id))
        if state == RUNNING and old != RUNNING:
            events.append(RuntimeEvent(EventKind.STARTED, container_id, sandbox_id))
        if state == EXITED and old != EXITED:
            events.append(RuntimeEvent(EventKind.STOPPED, container_id, sandbox_id))
    events += [
        RuntimeEvent(EventKind.DELETED, container_id, sandbox_id)
        for container_id, (sandbox_id, _) in before.items()
        if container_id not in after
    ]
    return events


async def poll_events(runtime: CriRuntime, clock: Clock, interval_s: float) -> AsyncIterator[RuntimeEvent]:
    """Compare for ever. What exists at the start is no news."""
    before = _snapshot(await runtime.list_containers())
    while True:
        await clock.sleep(interval_s)
        after = _snapshot(await runtime.list_containers())
        for event in compare(before, after):
            yield event
        before = after
