# SPDX-License-Identifier: Apache-2.0
"""What the configuration means for devices: those of kepd's own drivers, their commands, what may be given."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from agent.config.document import Configuration
from agent.drivers.cgroups.commands import CommandGroups
from agent.drivers.folder_watch import FolderWatch
from agent.kit.configuration import instance_id, write_atomically
from agent.kit.plane import PlaneInputs
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.host_devices import DEV, HostDevices
from kepd_devices.run.known_devices import ManagerSettings
from kepd_devices.run.own_devices import ConfiguredDevices, FakeDevices
from kepd_devices.run.plugins import PluginSettings
from kepd_devices.settings import plugin_resets, pool_rules

# Longer than any call may take.
HANG_S = 86400.0


def own_devices(
    inputs: PlaneInputs, records: Callable[[], Iterable[ClaimRecord]]
) -> list[ConfiguredDevices | FakeDevices]:
    configuration = inputs.configuration()
    node, driver = configuration.node.name, configuration.devices.driver
    if not driver.enabled:
        return []

    found: list[ConfiguredDevices | FakeDevices] = [
        ConfiguredDevices(driver.name, node, lambda: pool_rules(inputs.configuration()), HostDevices(), records)
    ]
    if driver.fake.count:
        found.append(FakeDevices(node, driver.fake.count, HANG_S, inputs.clock.sleep))
    return found


def changed_nodes(inputs: PlaneInputs) -> Callable[[float], Awaitable[None]]:
    """Waits for a node that comes or goes, in /dev and where patterns look: not where terminals are."""
    host = HostDevices()
    return FolderWatch(DEV, 0, 0o755, lambda: host.directories(pool_rules(inputs.configuration()))).changed


def device_commands(configuration: Configuration) -> DeviceCommands:
    """One for the whole process: the first of them ends what an earlier life left."""
    state = Path(configuration.node.state_directory)
    note = state / "devices" / "commands"
    noted = note.read_text().strip() if note.exists() else ""
    return DeviceCommands(CommandGroups(instance_id(state), noted, lambda text: write_atomically(note, text.encode())))


def manager_settings(configuration: Configuration, boot_id: str) -> ManagerSettings:
    node, devices = configuration.node, configuration.devices
    return ManagerSettings(
        node=PoolNode(name=node.name, labels=node.labels),
        boot_id=boot_id,
        call_limit_s=devices.manager.call_timeout,
        admin_namespaces=devices.manager.admin_namespaces,
        always_merges=devices.cdi.merge == "always",
        private=_private(configuration),
    )


def _private(configuration: Configuration) -> tuple[str, ...]:
    """Places of the host that no container may see."""
    node, runtime = configuration.node, configuration.runtime
    sockets = sorted({one.removeprefix("unix://") for one in (runtime.endpoint, runtime.image_endpoint) if one})
    return (node.state_directory, node.run_directory, *sockets)


def plugin_settings(configuration: Configuration, boot_id: str) -> PluginSettings:
    plugins = configuration.devices.plugins
    return PluginSettings(
        boot_id=boot_id,
        allowed=(0, *plugins.allow),
        allocate_limit_s=plugins.allocate_timeout,
        resets=plugin_resets(configuration),
        private=_private(configuration),
    )
