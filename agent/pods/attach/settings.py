# SPDX-License-Identifier: Apache-2.0
"""The settings of pods: the configuration in force with the facts of this node, for the moment in which it is asked.

They are asked for at every step of every pod, so they are made anew only when a reload changed the configuration, or
when the default route leads from another address. Without a cluster nothing else tells that; it is looked at now and
then.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from msgspec.structs import replace

from agent.config.document import Configuration
from agent.config.sections.pods import PodEviction
from agent.drivers.interfaces.default_route import default_addresses
from agent.kit.configuration import BOOT_ID
from agent.model.nodes.control_group import GroupShape
from agent.pods.plan.admit import labels_of_node
from agent.pods.plan.drain import Group, ShutdownRules
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.plan.restart import RestartCurve
from agent.pods.settings import PodNodeFacts, PodSettings

MEMORY = Path("/proc/meminfo")
CPUS, THROTTLES = Path("/sys/devices/system/cpu"), "cpu[0-9]*/thermal_throttle"
REDUCED_FIRST_S, REDUCED_LONGEST_S = 1.0, 60.0
ADDRESSES_S = 10.0
Make = Callable[[Configuration, PodNodeFacts], PodSettings]
NameServers = Callable[[Configuration], tuple[str, ...]]
DEFAULT_HARD = {
    "memory.available": str(100 << 20),
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}


def own_addresses(configuration: Configuration) -> tuple[str, ...]:
    """What is configured counts; else what this machine sends from."""
    return tuple(configuration.node.addresses) or tuple(str(ip_address(one)) for one in default_addresses())


class CurrentSettings:
    def __init__(
        self,
        configuration: Callable[[], Configuration],
        facts: PodNodeFacts,
        make: Make,
        now_s: Callable[[], float],
        addresses: Callable[[Configuration], tuple[str, ...]] = own_addresses,
    ) -> None:
        self._configuration = configuration
        self._facts = facts
        self._make = make
        self._now_s = now_s
        self._addresses = addresses
        self._looked_s = now_s()
        self._made: tuple[Configuration, PodSettings] | None = None

    def kubelet_changed(self, sign: str) -> None:
        self._facts, self._made = replace(self._facts, has_kubelet=bool(sign)), None

    def __call__(self) -> PodSettings:
        now, now_s = self._configuration(), self._now_s()
        is_same = self._made is not None and self._made[0] is now
        if not is_same or now_s - self._looked_s >= ADDRESSES_S:
            self._looked_s = now_s
            # A node that is between two networks keeps what it last had.
            found = self._addresses(now) or self._facts.addresses
            is_same = is_same and found == self._facts.addresses
            self._facts = replace(self._facts, addresses=found)
        if self._made is None or not is_same:
            self._made = (now, self._make(now, self._facts))
        return self._made[1]


def pod_settings(
    configuration: Configuration, facts: PodNodeFacts, instance: str, name_servers: NameServers
) -> PodSettings:
    """`name_servers` are those of pods with ClusterFirst."""
    pods = configuration.pods
    first_s = REDUCED_FIRST_S if pods.reduced_backoff else RestartCurve().first_s
    longest_s = min(pods.max_restart_period, REDUCED_LONGEST_S if pods.reduced_backoff else pods.max_restart_period)
    return PodSettings(
        pods=pods,
        node=configuration.node.name,
        instance=instance,
        labels=labels_of_node(configuration.node.name, configuration.node.labels),
        cluster_dns=name_servers(configuration),
        seccomp_root=f"{configuration.node.state_directory}/seccomp",
        gives_devices=configuration.devices.manager.enabled,
        gives_plugins=configuration.devices.plugins.enabled,
        curve=RestartCurve(first_s=first_s, longest_s=longest_s),
        shutdown=shutdown_rules(configuration),
        eviction=eviction_rules(pods.eviction, has_kubelet=facts is not None and facts.has_kubelet),
        facts=facts,
    )


def shutdown_rules(configuration: Configuration) -> ShutdownRules:
    """A kubelet delays no shutdown unless it is configured to."""
    shutdown = configuration.pods.shutdown
    groups = [dict(one) for one in shutdown.groups]
    return ShutdownRules(
        groups=tuple(Group(priority=int(str(one["priority"])), period_s=float(str(one["period"]))) for one in groups),
        longest_s=shutdown.longest if configuration.pods.profile != "kubelet" else 0.0,
    )


def node_facts(configuration: Configuration, groups: GroupShape) -> PodNodeFacts:
    total_kib = next(
        (int(line.split()[1]) for line in MEMORY.read_text().splitlines() if line.startswith("MemTotal:")), 1 << 20
    )
    return PodNodeFacts(
        addresses=own_addresses(configuration),
        cpus=os.cpu_count() or 1,
        memory_bytes=total_kib << 10,
        boot_id=BOOT_ID.read_text().strip(),
        disk_bytes=disk_bytes(Path(configuration.pods.directory)),
        masked=tuple(sorted(map(str, CPUS.glob(THROTTLES)))),
        groups=groups,
    )


def disk_bytes(directory: Path) -> int:
    """The size of the file system that pods write to; 0 if nobody can tell."""
    for place in (directory, *directory.parents):
        with suppress(OSError):
            told = os.statvfs(place)
            return told.f_blocks * told.f_frsize
    return 0


def eviction_rules(eviction: PodEviction, *, has_kubelet: bool) -> EvictionRules | None:
    """None where kepd evicts no pods."""
    if eviction.mode == "off" or (eviction.mode == "auto" and has_kubelet):
        return None
    given = dict(eviction.min_reclaim)
    hard = [_threshold(signal, text, given) for signal, text in {**DEFAULT_HARD, **eviction.hard}.items()]
    soft = [
        _threshold(signal, text, given, eviction.soft_grace.get(signal, 0.0)) for signal, text in eviction.soft.items()
    ]
    return EvictionRules(
        thresholds=tuple(one for one in (*hard, *soft) if one.quantity or one.share),
        most_grace_s=eviction.max_grace,
        transition_s=eviction.transition,
        period_s=eviction.period,
        readmits=eviction.readmit,
    )


def _threshold(signal: str, text: str, min_reclaim: dict[str, str], grace_s: float = 0.0) -> Threshold:
    quantity, share = _amount(text)
    reclaim, reclaim_share = _amount(min_reclaim.get(signal, "0"))
    return Threshold(
        signal=signal,
        quantity=quantity,
        share=share,
        grace_s=grace_s,
        reclaim=reclaim,
        reclaim_share=reclaim_share,
    )


def _amount(text: str) -> tuple[int, float]:
    return (0, float(text[:-1]) / 100) if text.endswith("%") else (int(text), 0.0)
