# SPDX-License-Identifier: Apache-2.0
"""What a node, its pods and its containers use, for people to read: rates of two looks, sizes of the later one.

None is a figure that nobody has; a limit of None is none.
"""

import msgspec


class Stalls(msgspec.Struct, frozen=True, kw_only=True):
    """Percent of the last ten seconds in which something waited."""

    cpu: float | None = None
    memory: float | None = None
    io: float | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """`throttled` is the share of the quota's periods in which it held the container back."""

    cpu_cores: float | None = None
    cpu_limit_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    swap_bytes: int | None = None
    disk_bytes: int | None = None
    throttled: float | None = None
    stalls: Stalls = Stalls()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One figure as the kernel's file has it, for who wants to look for themselves."""

    name: str
    value: str
    path: str


class ContainerUsage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    usage: Usage
    restarts: int = 0
    ooms: int = 0
    started_at_s: float = 0.0
    readings: tuple[Reading, ...] = ()


class PodUsage(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    usage: Usage
    restarts: int = 0
    ooms: int = 0
    created_at_s: float = 0.0
    containers: tuple[ContainerUsage, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    processors: int
    usage: Usage
    pods: int = 0
    ooms: int = 0
    disk_share: float | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """`window_s` is the time between the two looks."""

    node: NodeUsage
    pods: tuple[PodUsage, ...] = ()
    window_s: float = 0.0
    taken_at_s: float = 0.0
