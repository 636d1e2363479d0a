# SPDX-License-Identifier: Apache-2.0
"""The folder of the runtime's hosts files, which the runtime tells, and what they say of a registry."""

from pathlib import Path

import structlog

from agent.drivers.cri.driver import CriRuntime
from agent.drivers.registry.address import default_base_url
from agent.images.access.mirrors import MirrorChain
from agent.images.run.node_images import read_chain
from agent.model.clock import Clock
from agent.model.runtime_error import RuntimeCallFailed

log = structlog.get_logger(plane="images")

DEFAULT_FOLDER = Path("/etc/containerd/certs.d")
ASK_AGAIN_S = 60.0


class RegistryHosts:
    """`folder` is the default one until the runtime has told another. Files are read anew for each question."""

    def __init__(self, runtime: CriRuntime, *, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self.folder = DEFAULT_FOLDER

    async def run(self) -> None:
        while True:
            try:
                told = await self._runtime.hosts_folder()
                self.folder = Path(told) if told else DEFAULT_FOLDER
            except RuntimeCallFailed as error:
                log.debug("hosts_folder_not_told", error=error.details)
            await self._clock.sleep(ASK_AGAIN_S)

    def chain(self, registry: str) -> MirrorChain:
        return read_chain(self.folder, registry)

    def base_url(self, registry: str) -> str:
        """Where to ask a registry as the runtime does; empty where its hosts file says more than an address."""
        chain = self.chain(registry)
        return chain.only_url if chain.source else default_base_url(registry)
