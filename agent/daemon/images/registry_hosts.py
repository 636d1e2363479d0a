# SPDX-License-Identifier: Apache-2.0
"""Where registries are asked: by the runtime's own hosts files.

Owns: finding their folder, which the runtime tells, and reading them anew for each question, as the runtime does.
"""

from pathlib import Path

import structlog

from agent.drivers.cri.driver import CriRuntime
from agent.drivers.registry.address import Trust, default_base_url
from agent.images.access.mirrors import MirrorChain, MirrorHost, default_chain, folder_names, read_hosts
from agent.model.clock import Clock
from agent.model.runtime_error import RuntimeCallFailed

__all__ = ["RegistryHosts"]

log = structlog.get_logger(plane="images")

DEFAULT_FOLDER = Path("/etc/containerd/certs.d")
ASK_AGAIN_S = 60.0


class RegistryHosts:
    """`folder` is the default one until the runtime has told another."""

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
        """All hosts that the runtime asks for a registry."""
        found = self._file(registry)
        return found if found is not None else default_chain(registry)

    def address(self, registry: str) -> str:
        """Where it is asked what a tag is."""
        host = self._resolver(registry)
        return host.url if host is not None else default_base_url(registry)

    def trust(self, registry: str) -> Trust:
        host = self._resolver(registry)
        return Trust(host.ca_files, host.skips_verification) if host is not None else Trust()

    def _resolver(self, registry: str) -> MirrorHost | None:
        chain = self._file(registry)
        hosts = chain.hosts if chain is not None else ()
        return next((host for host in hosts if "resolve" in host.capabilities), None)

    def _file(self, registry: str) -> MirrorChain | None:
        for name in folder_names(registry):
            path = self.folder / name / "hosts.toml"
            if path.is_file():
                return read_hosts(registry, path.read_bytes(), str(path))
        return None
