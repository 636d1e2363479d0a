# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a kubelet. Apart from the rest: with the client of an API server it costs eight MiB."""

from pathlib import Path

from agent.devices.attach.cluster import ApiCluster
from agent.devices.attach.wiring import changed_nodes, own_devices
from agent.devices.plan.records import ClaimRecord
from agent.devices.run.cdi_directories import CdiDirectories
from agent.devices.run.commands import DeviceCommands
from agent.devices.run.kubelet_driver import KubeletDriver
from agent.devices.run.local_driver import LocalDriver
from agent.drivers.plugin_sockets.serving import DriverSockets
from agent.drivers.state_files.driver import StateFiles
from agent.kit.outside import Outside


def wire_kubelet_drivers(outside: Outside, commands: DeviceCommands) -> tuple[list[KubeletDriver], StateFiles]:
    """kepd's own drivers beside a kubelet, which gives their devices to its pods."""
    configuration = outside.configuration()
    devices, node = configuration.devices, configuration.node.name
    files = StateFiles(Path(configuration.node.state_directory) / "devices" / "kubelet")
    output = Path(devices.cdi.output)
    cdi = CdiDirectories([output], output)
    cluster = ApiCluster(outside.kube(), node)
    found: list[KubeletDriver] = []

    def records() -> list[ClaimRecord]:
        return [record for one in found if one.local.name == devices.driver.name for record in one.records.values()]

    for own in own_devices(outside, records):
        local = LocalDriver(own, cdi, files, outside.tell, commands=commands)
        sockets = DriverSockets(Path(devices.driver.kubelet_directory), local.name)
        found.append(
            KubeletDriver(local, sockets, cluster, files, outside.clock, node, changed_nodes=changed_nodes(outside))
        )
    return found, files
