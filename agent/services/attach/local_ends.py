# SPDX-License-Identifier: Apache-2.0
"""Pods of this node that serve no longer, as the runtime tells, and those of kepd by their readiness.

A container counts once it was seen running beside all others of its pod: one that prepares a pod ends by itself before
they are made. Of pods that a kubelet runs no readiness is known here; checks find what the runtime does not tell.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from ipaddress import ip_address
from typing import TYPE_CHECKING

import structlog

from agent.model.finding import printable
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.event import RuntimeEvents
from agent.services.attach.files import PodsHere
from agent.services.attach.pods import FINISHED, local_pods
from agent.services.objects.addresses import read_address
from agent.services.ports import LocalEnds
from agent.wire.cri import runtime_v1_pb2 as pb

if TYPE_CHECKING:
    from agent.drivers.cri.driver import CriRuntime

log = structlog.get_logger(plane="services")

REST_S = 0.2
"""Between two looks, however much the runtime tells."""


class RuntimeEnds:
    """By the runtime's own word."""

    def __init__(self, runtime: "CriRuntime", events: RuntimeEvents) -> None:
        self._runtime, self._events = runtime, events
        self._addresses: dict[str, tuple[bytes, ...]] = {}
        """Of sandboxes that were seen ready."""
        self._ran: dict[str, dict[str, set[str]]] = {}
        """Their containers that were seen running, and beside which others."""
        self._ended: Mapping[bytes, str] = {}

    def ended(self) -> Mapping[bytes, str]:
        return self._ended

    async def changes(self) -> AsyncIterator[None]:
        """The first event stands for whatever came before. What was known in an earlier absence is of no account."""
        self._addresses, self._ran, self._ended = {}, {}, {}
        async with aclosing(self._events.listen()) as told:  # type: ignore[type-var]
            async for _ in told:
                try:
                    await self.look()
                except RuntimeCallFailed as error:
                    log.warning("service_local_ends_unknown", error=str(error), effect="checks go on")
                yield
                await asyncio.sleep(REST_S)

    async def look(self) -> None:
        sandboxes = await self._runtime.list_sandboxes()
        running: dict[str, dict[str, tuple[int, bool]]] = {}
        for one in await self._runtime.list_containers():
            newest = running.setdefault(one.pod_sandbox_id, {})
            now = one.metadata.attempt, one.state == pb.CONTAINER_RUNNING
            newest[one.metadata.name] = max(newest.get(one.metadata.name, (-1, False)), now)
        ready = {one.id for one in sandboxes if one.state == pb.SANDBOX_READY}
        for one_id in ready - self._addresses.keys():
            try:
                self._addresses[one_id] = _addresses(await self._runtime.sandbox_status(one_id))
            except RuntimeCallFailed as error:
                # It may be gone by now; others are not to wait for it.
                log.info("service_local_end_unknown", sandbox=one_id, error=str(error), effect="checks go on")
        for one_id in self._addresses:
            here, ran = running.get(one_id, {}), self._ran.setdefault(one_id, {})
            for name in (name for name, (_, is_running) in here.items() if is_running):
                ran.setdefault(name, set()).update(here)
        self._ended = dict(self._found(ready, running))

    def _found(
        self, ready: set[str], running: Mapping[str, Mapping[str, tuple[int, bool]]]
    ) -> Iterable[tuple[bytes, str]]:
        # An address may be another pod's by now.
        taken = {address for one_id in ready for address in self._addresses.get(one_id, ())}
        for one_id, addresses in self._addresses.items():
            if one_id not in ready:
                yield from ((one, "its sandbox ended") for one in addresses if one not in taken)
                continue
            here = running.get(one_id, {})
            ended = (one for one, beside in sorted(self._ran[one_id].items()) if here.keys() <= beside)
            name = next((one for one in ended if not here.get(one, (0, False))[1]), "")
            if name:
                yield from ((one, f"its container {printable(name)} ended") for one in addresses)


def _addresses(status: pb.PodSandboxStatus) -> tuple[bytes, ...]:
    """None of a pod on the node's own network: that address is of others too."""
    if status.linux.namespaces.options.network == pb.NODE:
        return ()
    texts = (status.network.ip, *(one.ip for one in status.network.additional_ips))
    return tuple(one.packed for one in map(read_address, texts) if one is not None)


class OwnPodEnds:
    """By the readiness that kepd finds by its probes."""

    def __init__(self, pods: PodsHere) -> None:
        self._pods = pods

    def ended(self) -> Mapping[bytes, str]:
        known = [(pod, state) for pod, state in self._pods.pods() if not pod.spec.host_network]
        found = {ip_address(one.ip).packed: "its pod is not ready" for one in local_pods(known) if not one.is_ready}
        finished = (state.ip for _, state in known if state.ip and state.phase in FINISHED)
        return {**dict.fromkeys((ip_address(one).packed for one in finished), "its pod ended"), **found}

    async def changes(self) -> AsyncIterator[None]:
        async for _ in self._pods.changes():
            yield
            await asyncio.sleep(REST_S)


class AllEnds:
    """Each of these may say that a pod serves no longer."""

    def __init__(self, sources: Sequence[LocalEnds]) -> None:
        self._sources = sources

    def ended(self) -> Mapping[bytes, str]:
        return {address: why for one in self._sources for address, why in one.ended().items()}

    async def changes(self) -> AsyncIterator[None]:
        bell = asyncio.Event()

        async def follow(one: LocalEnds) -> None:
            async for _ in one.changes():
                bell.set()

        following = [asyncio.create_task(follow(one), name="services-local-ends") for one in self._sources]
        for task in following:
            task.add_done_callback(lambda _: bell.set())
        try:
            while True:
                await bell.wait()
                bell.clear()
                for task in following:
                    if task.done():
                        task.result()
                yield
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
