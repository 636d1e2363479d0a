# SPDX-License-Identifier: Apache-2.0
"""What the API needs from the daemon and the planes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from agent.config.check import Checked
from agent.config.diff import ReloadPlan
from agent.model.component import Component
from agent.model.feed import Feed
from agent.model.pod_state import PodState
from agent.wire.kepd.v1 import node_pb2

__all__ = ["ConfigurationView", "NodeView", "PodView"]


class NodeView(Protocol):
    """Facts about node and planes."""

    def node(self) -> node_pb2.Node: ...

    def components(self) -> Sequence[Component]: ...

    def set_verbosity(self, verbosity: int | None, planes: Mapping[str, int]) -> None: ...


class ConfigurationView(Protocol):
    """The configuration of the running process."""

    def current(self) -> Checked: ...

    def reload(self) -> Checked | ReloadPlan: ...

    def set_values(self, values: Mapping[str, str], *, dry_run: bool) -> Checked | ReloadPlan: ...


class PodView(Protocol):
    """Pods of this node."""

    @property
    def pods(self) -> Feed[PodState]: ...
