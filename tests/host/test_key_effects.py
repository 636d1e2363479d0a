# SPDX-License-Identifier: Apache-2.0
"""Every key of the configuration has an effect, and one that a reload applies has it by reload.

The daemon is put together from a document that notes which of its keys are read, then it takes over another one.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from agent.config.document import Configuration
from agent.config.keys import KeyEntry, all_keys
from agent.host.compose import compose
from agent.host.joints.proxy_pods import stop_order
from agent.kit.logs import Levels
from agent.pods.attach.settings import pod_settings
from agent.proxy.attach.unit import proxy_settings
from agent.services.attach.manifests import hint_options
from agent.services.attach.settings import periods
from kepd_devices.attach.settings import manager_settings, plugin_settings
from kepd_dns.attach.settings import pod_servers, process_settings
from scripts.sources import FOLDERS

ROOT = Path(__file__).resolve().parents[2]
Path_ = tuple[str, ...]

# Asked for each time they are needed, so that a reload applies them.
PROJECTIONS: tuple[Callable[[Configuration], object], ...] = (
    lambda configuration: pod_settings(configuration, None, "", pod_servers),  # type: ignore[arg-type]
    lambda configuration: manager_settings(configuration, ""),
    lambda configuration: plugin_settings(configuration, ""),
    lambda configuration: proxy_settings(configuration, stop_order),
    periods,
    hint_options,
    lambda configuration: process_settings(configuration, (), (), ()),
)
READ_WHEN_NEEDED = {
    "devices.driver.pools": "kepd_devices/settings.py",
    "devices.front.resources": "kepd_devices/settings.py",
    "devices.front.resetTimeout": "kepd_devices/attach/front.py",
    "dns.allowFrom": "kepd_dns/attach/unit.py",
    "dns.upstreamService": "agent/host/joints/dns_services.py",
    "pods.allowedUnsafeSysctls": "agent/pods/run/admitting.py",
    "pods.claimClasses": "agent/pods/run/claims.py",
    "pods.claimDirectory": "agent/pods/run/claims.py",
    "images.alwaysCache": "agent/images/run/pulling/intake.py",
    "images.authScope": "agent/images/run/pulling/attempt.py",
    "images.drain": "agent/images/run/puller.py",
    "images.fallbackToPresent": "agent/images/run/pulling/outcomes.py",
    "images.gc.period": "agent/images/run/collector.py",
    "images.mirrorAuth": "agent/images/run/pulling/attempt.py",
    "images.progress.bytes": "agent/images/view/announce.py",
    "images.progress.every": "agent/images/view/announce.py",
    "images.progress.events": "agent/images/run/pulling/pull_display.py",
    "images.progress.percent": "agent/images/view/announce.py",
    "images.rewrite.auth": "agent/images/run/pulling/intake.py",
    "images.sizeProbe": "agent/images/run/sizes.py",
    "images.verify.signatures": "agent/images/attach/unit.py",
    "images.sizeProbeExcept": "agent/images/run/sizes.py",
    "kubernetes.qps": "agent/host/process.py",
    "kubernetes.burst": "agent/host/process.py",
    "manifests.rescan": "agent/objects/run/follower.py",
    "manifests.debounce": "agent/objects/run/follower.py",
    "manifests.groupWritable": "agent/objects/run/follower.py",
    "pods.checkpoints.keep": "agent/pods/plan/scarcity/checkpoints.py",
    "pods.checkpoints.maxAge": "agent/pods/plan/scarcity/checkpoints.py",
    "pods.checkpoints.maxBytes": "agent/pods/plan/scarcity/checkpoints.py",
    "pods.clusterDomain": "agent/pods/run/one_pod/container_setup.py",
    "pods.defaultSeccomp": "agent/pods/runtime/cri_security.py",
    "pods.gc.keepDead": "agent/pods/run/one_pod/removing_dead.py",
    "pods.gc.period": "agent/pods/run/one_pod/removing_dead.py",
    "pods.logs.interval": "agent/pods/run/housekeeping.py",
    "pods.logs.maxFiles": "agent/pods/run/housekeeping.py",
    "pods.logs.maxSize": "agent/pods/run/housekeeping.py",
    "pods.maxPods": "agent/pods/settings.py",
    "pods.memoryQos": "agent/pods/run/one_pod/container_setup.py",
    "pods.podPidsLimit": "agent/pods/run/one_pod/container_setup.py",
    "pods.postStartTimeout": "agent/pods/run/one_pod/starting.py",
    "pods.relist": "agent/pods/run/rounds.py",
    "pods.reserved.cpu": "agent/pods/settings.py",
    "pods.reserved.memory": "agent/pods/settings.py",
    "pods.resolvConf": "agent/pods/run/one_pod/container_setup.py",
    "pods.singleProcessOOMKill": "agent/pods/runtime/cri_config.py",
    "pods.swap": "agent/pods/runtime/cri_config.py",
    "pods.eviction.softGrace": "agent/pods/attach/settings.py",
    "services.counters.export": "agent/services/attach/settings.py",
    "services.tamperRepair": "agent/services/attach/assembly.py",
    "services.terminateEstablished": "agent/services/attach/settings.py",
    "services.terminateMax": "agent/services/attach/settings.py",
    "services.drainSeconds": "agent/services/attach/health.py",
    "services.drainTaints": "agent/services/attach/health.py",
    **{
        f"telemetry.containers.{name}": "agent/observe/attach/unit.py"
        for name in ("of", "psi", "oomWatch", "descriptors", "keepEnded", "maxSeries", "spaceEvery")
    },
    **{
        f"telemetry.nodeLogs.{name}": "agent/observe/attach/node_logs.py"
        for name in ("enabled", "units", "directories", "journal", "maxBytes")
    },
    "services.listDoubt": "agent/services/attach/outage.py",
    "services.listShrink": "agent/services/attach/outage.py",
    "telemetry.metricsCompat": "agent/kit/plane.py",
    "telemetry.perNamespace": "agent/pods/attach/unit.py",
    "telemetry.perService": "agent/services/attach/settings.py",
    "telemetry.tracing.ratio": "agent/host/tracing.py",
}
READ_AT_START = {
    **{f"api.door.{name}": "kepd_door/attach/unit.py" for name in ("clientCAFile", "podsSocket")},
    "dns.clusterDNSService": "kepd_dns/attach/unit.py",
    "dns.interceptClusterDNS": "kepd_dns/attach/unit.py",
    "kubernetes.kubeconfig": "agent/kit/kube.py",
    "kubernetes.servers": "agent/kit/kube.py",
    "kubernetes.compression": "agent/kit/kube.py",
    **{
        f"services.conntrack.{name}": "agent/drivers/conntrack/limits.py"
        for name in (
            "maxPerCore", "min", "tcpEstablishedTimeout", "tcpCloseWaitTimeout", "tcpBeLiberal", "udpTimeout",
            "udpStreamTimeout",
        )
    },
    "pods.cgroupRoot": "agent/pods/runtime/cri_config.py",
    "pods.nameSuffix": "agent/pods/run/wanted.py",
    "services.flowtable.devices": "agent/services/attach/assembly.py",
    "devices.api.address": "kepd_devices/attach/driver_api.py",
    "devices.api.drivers": "kepd_devices/attach/driver_api.py",
    "devices.driver.kubeletDirectory": "kepd_devices/attach/cluster.py",
    "devices.front.enabled": "kepd_devices/attach/unit.py",
    "services.proxyName": "agent/services/attach/assembly.py",
    "services.snapshot": "agent/services/attach/outage.py",
    "services.snapshotAge": "agent/services/attach/outage.py",
    "services.outage": "agent/services/attach/outage.py",
    "services.startupTaint": "agent/services/attach/assembly.py",
    "services.strictSourceRanges": "agent/services/attach/assembly.py",
    "services.taintWhenDown": "agent/services/attach/assembly.py",
    "services.writeEvents": "agent/services/attach/assembly.py",
    "telemetry.logFormat": "agent/host/main.py",
}  # fmt: skip


def noting(section: object, path: Path_, seen: set[Path_]) -> object:
    """The same values; every key that is read is added to `seen`."""
    names = {one.name for one in fields(section)}  # type: ignore[arg-type]
    values = {name: getattr(section, name) for name in names}
    inner = {name: noting(one, (*path, name), seen) if is_dataclass(one) else one for name, one in values.items()}

    def read(self: object, name: str) -> object:
        if name in names:
            seen.add((*path, name))
        return object.__getattribute__(self, name)

    kind = type(type(section).__name__, (type(section),), {"__getattribute__": read, "__slots__": ()})
    return kind(**inner)


class Running:
    """A configuration in force."""

    def __init__(self, configuration: object) -> None:
        self.configuration = configuration
        self.listeners: list[Callable[[object, object], None]] = []

    async def advice(self) -> list[object]:
        return []


def everything_on(folder: Path) -> Configuration:
    plain = Configuration()
    (folder / "manifests").mkdir()
    return replace(
        plain,
        node=replace(plain.node, name="n", state_directory=str(folder / "state"), run_directory=str(folder / "run")),
        api=replace(plain.api, socket=str(folder / "kepd.sock"), read_group="", http_address="127.0.0.1:0"),
        manifests=replace(plain.manifests, directory=str(folder / "manifests")),
        pods=replace(plain.pods, enabled=True, log_directory=str(folder / "logs")),
        devices=replace(
            plain.devices,
            manager=replace(plain.devices.manager, enabled=True),
            driver=replace(plain.devices.driver, enabled=True),
            plugins=replace(plain.devices.plugins, enabled=True),
        ),
        proxy=replace(plain.proxy, enabled=True),
        services=replace(plain.services, enabled=True, source="manifests", metrics_address="127.0.0.1:0"),
        dns=replace(plain.dns, enabled=True, directory=str(folder / "dns")),
    )


@pytest.fixture
async def read_keys(short_path: Path) -> tuple[set[Path_], set[Path_]]:
    """What is read to start, and what is read again after a reload."""
    seen: set[Path_] = set()
    configuration = noting(everything_on(short_path), (), seen)
    running = Running(configuration)
    seen.clear()
    daemon = compose(running, Levels(2, {}), {})  # type: ignore[arg-type]
    at_start = set(seen)
    seen.clear()
    for listener in running.listeners:
        listener(configuration, None)
    for projection in PROJECTIONS:
        projection(configuration)  # type: ignore[arg-type]
    again = set(seen)
    await daemon.close()
    return at_start, again


def names_the_key(place: str, entry: KeyEntry) -> bool:
    found = next(path for path in (folder.parent / place for folder in FOLDERS) if path.exists())
    return f".{entry.fields[-1]}" in found.read_text("utf-8")


async def test_every_key_has_an_effect(read_keys: tuple[set[Path_], set[Path_]]) -> None:
    """FH-1: a key that nothing reads is a promise that nothing keeps."""
    at_start, again = read_keys
    later = {**READ_WHEN_NEEDED, **READ_AT_START}
    idle = [
        entry.path
        for entry in all_keys(Configuration).values()
        if entry.fields not in at_start | again and not names_the_key(later.get(entry.path, "agent/__init__.py"), entry)
    ]

    assert idle == []


async def test_what_a_reload_is_said_to_apply_is_read_again(read_keys: tuple[set[Path_], set[Path_]]) -> None:
    """FH-2: a key that only a new process reads says so."""
    _, again = read_keys
    stale = [
        entry.path
        for entry in all_keys(Configuration).values()
        if not entry.key.needs_restart
        and entry.fields not in again
        and not names_the_key(READ_WHEN_NEEDED.get(entry.path, "agent/__init__.py"), entry)
    ]

    assert stale == []


def test_the_lists_of_this_test_name_keys() -> None:
    known = set(all_keys(Configuration))

    assert set(READ_WHEN_NEEDED) | set(READ_AT_START) <= known
