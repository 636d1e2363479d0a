# SPDX-License-Identifier: Apache-2.0
"""The API for drivers of devices, as a unit. Apart from the rest: its server costs eight MiB."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.kit.plane import PlaneInputs
from agent.model.component import Report
from agent.model.text.records import RecordFiles
from kepd_devices.drivers.driver_api.credentials import make_credentials, write_kubeconfigs
from kepd_devices.drivers.driver_api.server import DriverApiServer
from kepd_devices.plan.driver_store import ApiRefusal
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.drivers.driver_api import ApiRequest, DriverApi, refusal


def wire_driver_api(
    inputs: PlaneInputs, claims: DeviceClaims, files: RecordFiles
) -> Callable[[Report], Awaitable[None]]:  # fmt: skip
    configuration = inputs.configuration()
    given, node = configuration.devices.api, configuration.node
    api = DriverApi(files, inputs.clock, node.name, lambda: claims.records)
    claims.publishers.append(api.slices)

    def changed() -> None:  # who listens to claims is known later
        claims.changed()

    api.changed = changed
    state, run_directory = Path(node.state_directory) / "devices" / "api", Path(node.run_directory)
    server = DriverApiServer(api.answer, api.watch, ApiRequest, ApiRefusal, refusal, inputs.clock.now_s)

    async def run(report: Report) -> None:
        await api.load()
        claims.changed()
        credentials = await asyncio.to_thread(make_credentials, state, given.drivers)
        async with server.serving(given.address, run_directory / "drivers.sock", credentials):
            await asyncio.to_thread(write_kubeconfigs, run_directory / "drivers", given.address, credentials)
            report.ready(f"{given.address}, {len(given.drivers)} drivers")
            await asyncio.Event().wait()

    return run
