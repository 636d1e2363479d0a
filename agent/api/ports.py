# SPDX-License-Identifier: Apache-2.0
"""What the services of the process itself need; those of a plane lie beside what they ask."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent.config.check import CheckedConfiguration
from agent.config.diff import ReloadPlan
from agent.model.nodes.feature import FeatureRow
from agent.model.nodes.file_system import FileSystemReport
from agent.model.nodes.log import LogPart, LogReader, LogRequest, LogSource
from agent.model.nodes.manifest_report import AppliedObject, ListedObject
from agent.model.nodes.usage_report import UsageReport
from agent.model.pods.eviction_report import EvictionReport
from agent.wire.kepd.v1 import node_pb2


class NodeView(Protocol):
    def node(self) -> node_pb2.Node: ...

    def set_verbosity(self, verbosity: int | None, planes: Mapping[str, int]) -> None: ...


EvictionView = Callable[[], Awaitable[EvictionReport]]
FeatureView = Callable[[], Awaitable[Sequence[FeatureRow]]]


class UsageView(Protocol):
    """`watch` goes on until it is closed."""

    async def usage(self, *, with_readings: bool = False) -> UsageReport: ...

    def watch(self, interval_s: float) -> AsyncIterator[UsageReport]: ...

    async def summary(self, *, is_short: bool) -> bytes: ...

    async def file_systems(self, *, with_use: bool = False) -> Sequence[FileSystemReport]: ...


class NodeLogsView(Protocol):
    """Refused says why not. What is asked for has the name of the reader beside it."""

    async def sources(self, reader: LogReader) -> Sequence[LogSource]: ...

    def stream(self, request: LogRequest, reader: LogReader) -> AsyncGenerator[LogPart, None]: ...


class ConfigurationView(Protocol):
    def current(self) -> CheckedConfiguration: ...

    def files(self) -> Sequence[Path]: ...

    def reload(self) -> CheckedConfiguration | ReloadPlan: ...

    def set_values(self, values: Mapping[str, str], *, dry_run: bool) -> CheckedConfiguration | ReloadPlan: ...


class ObjectsView(Protocol):
    """Objects of the manifests by kind, namespace and name; Refused says why not."""

    @property
    def files(self) -> Callable[[], object]:
        """All files; the same value for as long as none of them looks otherwise. Asked in threads."""

    async def listed(self, kind: str, *, is_whole: bool) -> Sequence[ListedObject]: ...

    async def manifest(self, key: tuple[str, str, str]) -> tuple[str, str, str]:
        """The text, where it stands, and its version."""

    async def apply(
        self, content: bytes, *, dry_run: bool, create_only: bool, version: str
    ) -> Sequence[AppliedObject]: ...

    async def patch(
        self, key: tuple[str, str, str], patch: object, how: str, *, dry_run: bool, version: str
    ) -> AppliedObject: ...

    async def delete(
        self, key: tuple[str, str, str], grace_s: float | None, *, dry_run: bool, evicts: bool, version: str
    ) -> str: ...


class TopologyView(Protocol):
    """Explanations as JSON, and whether the answer is yes. LookupError for what is not there."""

    async def hints(self, service: str) -> tuple[str, bool]: ...

    async def spread(
        self,
        pod: str,
        *,
        honors_taints: bool,
        min_domains: int | None,
        dropped_nodes: frozenset[str],
        ignores_dead_domains: bool,
    ) -> tuple[str, bool]: ...
