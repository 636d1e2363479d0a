# SPDX-License-Identifier: Apache-2.0
"""Facts about this node, for the API, and what rows of features stand on."""

import asyncio
import os
import platform
import re
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from agent import __version__
from agent.api.messages import timestamp, to_message
from agent.config.diff import value_at
from agent.config.document import Configuration
from agent.config.effective import enabled_planes
from agent.config.keys import all_keys
from agent.drivers.cgroups.driver import ControlGroups
from agent.drivers.interfaces.default_route import default_addresses
from agent.drivers.pressure.driver import FOLDER
from agent.host.features import KEYS, feature_rows
from agent.host.node_amounts import allocatable, capacity, marks
from agent.host.tracing import has_extra
from agent.kit.configuration import RunningConfiguration
from agent.kit.kubelet_arrival import kubelet_beside
from agent.kit.logs import Levels
from agent.model.nodes.drain import NodeDrain
from agent.model.nodes.feature import FeatureFacts, FeatureRow
from agent.model.runtime.features import RuntimeFacts, RuntimeFeatures
from agent.observe.attach.node_logs import has_journalctl
from agent.wire.kepd.v1 import node_pb2

if TYPE_CHECKING:
    from agent.kit.runtime import Runtime

RELEASE = re.compile(r"(\d+)\.(\d+)")


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
        configuration, drained = self._configuration.configuration, self._drained()
        node = configuration.node
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
            capacity=capacity(configuration),
            allocatable=allocatable(configuration),
            **marks(),
        )

    def set_verbosity(self, verbosity: int | None, planes: Mapping[str, int]) -> None:
        if verbosity is not None:
            self._levels.verbosity = verbosity
        self._levels.planes = dict(planes)


async def node_features(
    running: RunningConfiguration, runtime: "Runtime | None", environment: Mapping[str, str]
) -> tuple[FeatureRow, ...]:
    known = await runtime.watch.features() if runtime is not None else RuntimeFeatures()
    facts = await asyncio.to_thread(_facts, running.configuration, known, environment)
    return tuple(feature_rows(facts))


def _facts(configuration: Configuration, runtime: RuntimeFeatures, environment: Mapping[str, str]) -> FeatureFacts:
    found = RELEASE.match(platform.release())
    return FeatureFacts(
        runtime=runtime,
        groups=ControlGroups().shape(),
        release=(int(found[1]), int(found[2])) if found else (0, 0),
        has_pressure=_has_pressure(),
        has_kubelet=bool(kubelet_beside(configuration, environment)),
        has_journalctl=has_journalctl(),
        can_trace=has_extra(),
        planes=frozenset(enabled_planes(configuration)),
        keys={path: value_at(configuration, all_keys(Configuration)[path]) for path in KEYS},
    )


def _has_pressure() -> bool:
    """With psi=0 the kernel has the files and refuses to read them."""
    try:
        return bool((FOLDER / "memory").read_bytes())
    except OSError:
        return False
