# SPDX-License-Identifier: Apache-2.0
"""What one pass over the node found. Every reader of one pass gets the same value."""

from collections.abc import Sequence

import msgspec

from agent.observe.kernel.group_text import NO_FIGURES, GroupFigures
from agent.observe.kernel.node_text import Interface, NodeMemory
from agent.observe.kernel.pressure_text import NOTHING, PressureFigures
from agent.observe.sample.group_files import NO_FILES, GroupFiles


class ContainerSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One container, between two starts. `group` is its path below the mount. One that has ended keeps its counters for
    a while. `ooms` are kills of this instance for want of memory."""

    id: str
    name: str
    image: str
    group: str
    started_at_s: float = 0.0
    figures: GroupFigures = NO_FIGURES
    ooms: int = 0
    ended_s: float | None = None
    layer_bytes: int | None = None
    layer_inodes: int | None = None
    is_whole: bool = True
    attempt: int = 0
    files: GroupFiles = NO_FILES
    contents: Sequence[bytes | None] = ()
    """Of the files, as they were read."""


class PodSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sandbox with its containers. `figures` are of the pod's own group, which also holds what no container counts:
    the sandbox, volumes in memory, cache of containers that are gone."""

    namespace: str
    name: str
    uid: str
    sandbox: ContainerSample
    group: str
    figures: GroupFigures | None = None
    interfaces: tuple[Interface, ...] = ()
    containers: tuple[ContainerSample, ...] = ()
    is_ours: bool = True
    created_at_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class ParentSample(msgspec.Struct, frozen=True):
    """A group that pods are in, such as that of all Burstable ones."""

    group: str
    figures: GroupFigures


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    figures: GroupFigures = NO_FIGURES
    memory: NodeMemory = NodeMemory()
    interfaces: tuple[Interface, ...] = ()
    processors: int = 0
    cpu_pressure: PressureFigures = NOTHING
    memory_pressure: PressureFigures = NOTHING
    io_pressure: PressureFigures = NOTHING
    working_set: int | None = None
    oom_kills: int | None = None
    """Of all processes of the node since it started."""
    booted_at_s: int | None = None


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """`taken_s` is the clock of rates, `wall_s` that of pages; `duration_s` is how long the pass took."""

    taken_s: float
    wall_s: float
    duration_s: float = 0.0
    files: int = 0
    version: int = 1
    node: NodeFigures = NodeFigures()
    pods: tuple[PodSample, ...] = ()
    parents: tuple[ParentSample, ...] = ()


def node_working_set(memory: NodeMemory, root: GroupFigures, version: int) -> int | None:
    """The root of version 2 has no usage of its own."""
    if version == 1:
        return root.working_set
    if memory.total is None or memory.free is None or root.inactive_file is None:
        return None
    return max(memory.total - memory.free - root.inactive_file, 0)
