# SPDX-License-Identifier: Apache-2.0
"""The sections of the configuration about devices, as document.py has the others."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.keys import Words, key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    DNS_NAME,
    MAP,
    MAYBE_PATH,
    PATH,
    choice,
    duration,
    integer,
    list_of,
    map_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceManagerSection:
    enabled: bool = restart(BOOL, False, "Give devices to pods of manifests that claim them.")
    registry: str = restart(
        MAYBE_PATH,
        "/var/lib/kubelet/plugins_registry",
        "Directory in which drivers register, as with a kubelet; empty = none can.",
    )
    slices: str = restart(
        MAYBE_PATH,
        "/run/kepd/slices",
        "Directory in which drivers leave their slices, each in a directory with its name; empty = none do.",
    )
    call_timeout: float = key(duration(0.1, 3600.0), 45.0, "Timeout of a call of a driver.")
    trust_status: bool = restart(
        BOOL, False, "Claims in manifests may have a status: what it allocates is theirs. Else it is refused."
    )
    admin_namespaces: Words = key(
        list_of(DNS_NAME, "namespaces"), (), "Namespaces whose claims may ask for adminAccess, to devices in use too."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdi:
    """How containers get what drivers prepared."""

    merge: str = restart(
        choice("auto", "always"),
        "auto",
        "When kepd merges CDI files itself; `auto`: for runtimes that do not know CDI.",
    )
    directories: Words = restart(
        list_of(PATH, "directories"), ("/etc/cdi", "/var/run/cdi"), "Directories of CDI files, in rising order."
    )
    output: str = restart(PATH, "/var/run/cdi", "Directory into which kepd's own driver writes the files of claims.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeDevice:
    count: int = restart(integer(0, 128), 0, "Devices of driver fake.kepd.dev, to try claims with.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDriverSection:
    enabled: bool = restart(
        BOOL,
        False,
        "Run kepd's own driver, for devices named here: for its own pods with the manager, else for a kubelet.",
    )
    kubelet_directory: str = restart(
        PATH, "/var/lib/kubelet", "Where a kubelet finds the driver, without the manager: plugins and plugins_registry."
    )
    name: str = restart(DNS_NAME, "devices.kepd.dev", "Name of the driver.")
    pools: tuple[Mapping[str, object], ...] = key(list_of(MAP, "pools"), (), "Which nodes below /dev are devices.")
    fake: FakeDevice = FakeDevice()


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlugins:
    enabled: bool = restart(BOOL, False, "Let device plugins register, and give their devices by the limits of pods.")
    directory: str = restart(
        PATH, "/var/lib/kubelet/device-plugins", "Directory in which device plugins register, as with a kubelet."
    )
    allow: tuple[int, ...] = key(list_of(integer(0), "users"), (), "Users other than root allowed to run plugins.")
    allocate_timeout: float = key(duration(0.1, 3600.0), 60.0, "Timeout of a plugin's Allocate.")
    reset: Mapping[str, Mapping[str, object]] = key(
        map_of(MAP, "of resources"), {}, "Commands to run for each device of a resource after its pod."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFrontSection:
    """kepd between device plugins and a kubelet."""

    enabled: bool = restart(
        BOOL,
        False,
        "Stand between device plugins and a kubelet, which gets a used device only after a reset.",
    )
    resources: Mapping[str, Mapping[str, object]] = key(
        map_of(MAP, "of resources"),
        {},
        "Resources whose plugins may register there, each with the command of its reset.",
    )
    reset_timeout: float = key(
        duration(0.1, 600.0), 60.0, "How long a kubelet that gives a device waits for its reset, before its pod fails."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceApi:
    """For drivers made with Kubernetes' helper library, which ask an API server."""

    enabled: bool = restart(BOOL, False, "Serve drivers what they ask an API server for, with the manager.")
    address: str = restart(ADDRESS, "127.0.0.1:10244", "Where it is served with TLS; a Unix socket is beside it.")
    drivers: Words = restart(
        list_of(DNS_NAME, "drivers"), (), "Drivers that get a kubeconfig, in drivers below node.runDirectory."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    manager: DeviceManagerSection = DeviceManagerSection()
    api: DeviceApi = DeviceApi()
    cdi: Cdi = Cdi()
    driver: DeviceDriverSection = DeviceDriverSection()
    plugins: DevicePlugins = DevicePlugins()
    front: DeviceFrontSection = DeviceFrontSection()
    pod_resources: str = restart(
        MAYBE_PATH,
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "Socket that tells exporters which pod has which device, as a kubelet's; empty = none.",
    )

    @property
    def enabled(self) -> bool:
        return self.manager.enabled or self.plugins.enabled or self.driver.enabled or self.front.enabled
