# SPDX-License-Identifier: Apache-2.0
"""Whether a sidecar that was started does what `kepd.dev/ready.NAME` asks for.

One task per such sidecar, from its start until it is ready, gone, or no call can wait for it any more. A kubelet's own
probes are not visible to a proxy, so the question is asked here.
"""

import asyncio

import structlog

from agent.model.pods.http_question import HttpQuestion
from agent.model.runtime.error import RuntimeCallFailed
from agent.proxy.gates.annotations import Ready
from agent.proxy.gates.ledger import LedgerContainer, Sandbox
from agent.proxy.ports import Asker, ProxyRuntime
from agent.proxy.run.state import ProxyState

log = structlog.get_logger(plane="proxy")

PERIOD_S = 0.2
QUESTION_S = 1.0
GOOD_STATUSES = range(200, 400)


class Readiness:
    def __init__(self, state: ProxyState, runtime: ProxyRuntime, asker: Asker) -> None:
        self._state = state
        self._runtime = runtime
        self._asker = asker
        self._watched: set[str] = set()

    def watch(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        """A container runs. One that no call waits for is not asked anything."""
        annotated = sandbox.annotated
        if container.name not in annotated.sidecars or container.id in self._watched:
            return
        ready = annotated.ready_of(container.name)
        if ready.kind == "started":
            container.is_ready = True
        elif not sandbox.has_started_main:
            self._watched.add(container.id)
            self._state.spawn(self._ask(sandbox, container, ready), f"proxy-ready:{container.name}")

    async def _ask(self, sandbox: Sandbox, container: LedgerContainer, ready: Ready) -> None:
        try:
            address = ""
            while container.is_running and not sandbox.is_ending and not sandbox.has_started_main:
                if ready.kind != "exec" and not address:
                    address = await self._address(sandbox)
                if (address or ready.kind == "exec") and await self._is_ready(container, ready, address):
                    container.is_ready = True
                    log.info("proxy_sidecar_ready", container=container.name, pod=f"{sandbox.namespace}/{sandbox.name}")
                    self._state.wake(sandbox.id)
                    return
                await self._state.clock.sleep(PERIOD_S)
        finally:
            self._watched.discard(container.id)

    async def _address(self, sandbox: Sandbox) -> str:
        try:
            return (await self._runtime.sandbox_status(sandbox.id)).network.ip or "127.0.0.1"
        except RuntimeCallFailed:
            return ""

    async def _is_ready(self, container: LedgerContainer, ready: Ready, address: str) -> bool:
        try:
            async with asyncio.timeout(QUESTION_S):
                if ready.kind == "exec":
                    done = await self._runtime.exec_sync(container.id, list(ready.command), int(QUESTION_S))
                    return done.exit_code == 0
                if ready.kind == "tcp":
                    await self._asker.tcp_connect(address, ready.port)
                    return True
                answer = await self._asker.http_get(HttpQuestion(host=address, port=ready.port, path=ready.path))
                return answer.status in GOOD_STATUSES
        except (TimeoutError, OSError, ValueError, RuntimeCallFailed):
            return False
