# SPDX-License-Identifier: Apache-2.0
"""What pods are kept by: their section of the configuration, what this node makes of it, and what is wrong with it."""

from collections.abc import Iterator, Mapping

import msgspec

from agent.config.sections.pods import PodEviction, Pods
from agent.model.finding import Finding, shown, suggestion
from agent.model.nodes.control_group import GroupShape
from agent.pods.plan.admit import Capacity
from agent.pods.plan.drain import ShutdownRules
from agent.pods.plan.evict import SIGNALS, EvictionRules
from agent.pods.plan.restart import RestartCurve

GIBIBYTE = 1 << 30
KEY, EVICTION = "pods.shutdown.groups", "pods.eviction"


class PodNodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What pods learn of their node, and what their shares are measured by."""

    addresses: tuple[str, ...] = ()
    cpus: int = 1
    memory_bytes: int = GIBIBYTE
    boot_id: str = ""
    disk_bytes: int = 0
    # Paths of this machine that containers must not see, beyond those of every machine.
    masked: tuple[str, ...] = ()
    groups: GroupShape = msgspec.field(default_factory=GroupShape)
    has_kubelet: bool = False


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the section stands what comes from others, and what is worked out once and not at every step."""

    pods: Pods
    node: str
    instance: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    cluster_dns: tuple[str, ...] = ()
    seccomp_root: str = "/var/lib/kepd/seccomp"
    gives_devices: bool = False
    gives_plugins: bool = False
    curve: RestartCurve = msgspec.field(default_factory=RestartCurve)
    shutdown: ShutdownRules = ShutdownRules()
    eviction: EvictionRules | None = None
    facts: PodNodeFacts = PodNodeFacts()

    @property
    def copies_kubelet(self) -> bool:
        return self.pods.profile == "kubelet"

    @property
    def capacity(self) -> Capacity:
        """What pods may ask for together."""
        return Capacity(
            milli_cpus=self.facts.cpus * 1000 - round(self.pods.reserved.cpu * 1000),
            memory_bytes=self.facts.memory_bytes - self.pods.reserved.memory,
            pods=self.pods.max_pods,
        )


def pods_faults(pods: Pods, *, is_legacy: bool = False, memory_bytes: int = 0) -> Iterator[Finding]:
    """`is_legacy`: the control groups of this node are known to be of version 1. `memory_bytes` is what it has; 0 where
    it is unknown."""
    yield from _eviction_faults(pods.eviction, memory_bytes)
    if pods.memory_qos and is_legacy:
        text = "true has no effect with control groups of version 1, which this node has; expected false, or version 2"
        yield Finding("", "pods.memoryQos", text)
    known: dict[object, int] = {}
    for place, pairs in enumerate(pods.shutdown.groups):
        group = dict(pairs)
        priority = group["priority"]
        if priority in known:
            text = f"priority {priority} is already that of groups[{known[priority]}]; expected one group per priority"
            yield Finding("", f"{KEY}[{place}]", text)
        known.setdefault(priority, place)
        if not group["period"]:
            text = "period 0s would kill its pods at once; expected a second or more, or no group"
            yield Finding("", f"{KEY}[{place}]", text)


def _eviction_faults(eviction: PodEviction, memory_bytes: int) -> Iterator[Finding]:
    maps = (
        ("hard", eviction.hard),
        ("soft", eviction.soft),
        ("softGrace", eviction.soft_grace),
        ("minReclaim", eviction.min_reclaim),
    )
    for name, given in maps:
        for signal in given:
            if signal not in SIGNALS:
                hint = suggestion(signal, SIGNALS) or f"; expected one of {', '.join(SIGNALS)}"
                yield Finding("", f"{EVICTION}.{name}", f"{shown(signal)} is no signal{hint}")
    for signal in eviction.soft.keys() - eviction.soft_grace.keys():
        text = f"has no grace; expected {EVICTION}.softGrace with {signal}: DURATION, such as 1m"
        yield Finding("", f"{EVICTION}.soft.{signal}", text)
    for signal in eviction.soft_grace.keys() - eviction.soft.keys():
        text = f"belongs to no threshold; expected {EVICTION}.soft with {signal}, or no grace"
        yield Finding("", f"{EVICTION}.softGrace.{signal}", text)
    for signal, most in (("memory.available", memory_bytes),):
        for name, given in maps:
            text = str(given.get(signal, "0"))
            if name != "softGrace" and most and text.isdecimal() and int(text) > most:
                found = f"{int(text)} bytes are more than the {most} that this node has; expected less"
                yield Finding("", f"{EVICTION}.{name}.{signal}", found)
