# SPDX-License-Identifier: Apache-2.0
"""Facts about this node, for the API."""

import os
import platform
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address
from pathlib import Path

from agent import __version__
from agent.api.messages import timestamp, to_message
from agent.drivers.interfaces.default_route import default_addresses
from agent.kit.configuration import RunningConfiguration
from agent.kit.logs import Levels
from agent.model.node_drain import NodeDrain
from agent.model.runtime_features import RuntimeFacts
from agent.wire.kepd.v1 import node_pb2


class NodeAnswers:
    def __init__(
        self,
        configuration: RunningConfiguration,
        runtime: Callable[[], RuntimeFacts],
        levels: Levels,
        started_s: float,
        drained: Callable[[], NodeDrain | None],
        conditions: Callable[[], Collection[str]],
    ) -> None:
        self._configuration = configuration
        self._runtime = runtime
        self._levels = levels
        self._started_s = started_s
        self._drained = drained
        self._conditions = conditions

    def node(self) -> node_pb2.Node:
        node, drained = self._configuration.configuration.node, self._drained()
        return node_pb2.Node(
            name=node.name,
            addresses=node.addresses or [str(ip_address(one)) for one in default_addresses()],
            labels=dict(node.labels),
            kepd_version=__version__,
            started_at=timestamp(self._started_s),
            pid=os.getpid(),
            runtime=to_message(node_pb2.Runtime, self._runtime()),
            kernel_version=platform.release(),
            cgroup_version=2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
            conditions=sorted(self._conditions()),
            drain=None if drained is None else to_message(node_pb2.Drain, drained),
        )

    def set_verbosity(self, verbosity: int | None, planes: Mapping[str, int]) -> None:
        if verbosity is not None:
            self._levels.verbosity = verbosity
        self._levels.planes = dict(planes)
