# SPDX-License-Identifier: Apache-2.0
"""The door as a part of the daemon: what it is given, and what the process runs of it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from agent.api.http import open_listener
from agent.config.document import Door as DoorSection
from agent.model.component import Report
from kepd_door.run import changes_file
from kepd_door.run.api import Door
from kepd_door.run.calls import Calls
from kepd_door.run.keys import DoorKeys
from kepd_door.run.server import DoorServer
from kepd_door.shape.kubeconfig import kubeconfig

KEY = "api.door.address"
FOLDER = "door"


class DoorUnit:
    """`services` are those of the whole daemon, which are complete only when this is already made."""

    services: Mapping[ServiceDescriptor, object]

    def __init__(self, section: DoorSection, state: Path, node: str) -> None:
        self._address, self._node = section.address, node
        self._pods_socket = section.pods_socket
        self._folder = state / FOLDER
        self._keys = DoorKeys(state / FOLDER, section.address, section.client_ca_file)

    async def run(self, report: Report) -> None:
        calls, told = Calls(self.services), await asyncio.to_thread(changes_file.take, self._folder)
        async with asyncio.TaskGroup() as followed:
            tasks: list[asyncio.Task[Any]] = []
            door = Door(
                calls,
                lambda work: tasks.append(followed.create_task(work, name="door-kind")),
                self._address,
                self._node,
                told,
                self._authority,
            )
            tasks.append(followed.create_task(door.resume(), name="door-namespaces"))
            pods = door.store_of("pods")
            if self._pods_socket and pods is not None:
                # gRPC is loaded by nobody else where no client of it came yet.
                from kepd_door.run.pods_api import PodsApi

                opened = asyncio.Event()
                tasks.append(followed.create_task(PodsApi(Path(self._pods_socket), pods).run(opened), name="door-pods"))
                await opened.wait()
            listen = lambda: open_listener(self._address, KEY)  # noqa: E731
            try:
                await DoorServer(listen, self._address, self._keys, door.handle, door.ending).run(report)
            finally:
                changes_file.keep(self._folder, door.told())
                for task in tasks:
                    task.cancel()

    def _authority(self) -> str:
        """Known once the keys are."""
        return self._keys.authority.decode()

    def kubeconfig(self, level: str) -> str:
        return kubeconfig(self._address, self._node, level, self._keys.token(level), self._keys.authority)
