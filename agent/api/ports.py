# SPDX-License-Identifier: Apache-2.0
"""What the API needs from the daemon and the planes."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent.config.check import Checked
from agent.config.diff import ReloadPlan
from agent.model.checkpoint import CheckpointReport, MadeCheckpoint
from agent.model.device_report import CdiReport, ClaimExplanationReport, ClaimReport, DeviceReport, DriverReport
from agent.model.dns_report import DnsReport, NameExplanation
from agent.model.ended_connections import EndedConnections
from agent.model.eviction_report import EvictionReport
from agent.model.feature import FeatureReport
from agent.model.feed import Feed
from agent.model.file_system import FileSystemReport
from agent.model.image_pull import ListedImage, PullOutcome, PullRequest
from agent.model.image_state import (
    CollectionState,
    ImageInspection,
    ImageState,
    LimitState,
    MirrorState,
    PrefetchedImage,
    PullExplanation,
    PullState,
)
from agent.model.manifest_report import AppliedObject, ListedObject
from agent.model.node_log import LogPart, LogReader, LogRequest, LogSource
from agent.model.placed import Walk
from agent.model.pod_fields import Container
from agent.model.pod_state import PodState
from agent.model.proxy_report import HoldReport, ProxyReport
from agent.model.service import ServiceKey
from agent.model.service_report import (
    EndpointReport,
    ProgrammedService,
    RuleChange,
    RuleReport,
    ServiceReport,
    TraceReport,
)
from agent.model.usage_report import UsageReport
from agent.wire.kepd.v1 import node_pb2


class NodeView(Protocol):
    def node(self) -> node_pb2.Node: ...

    def set_verbosity(self, verbosity: int | None, planes: Mapping[str, int]) -> None: ...


EvictionView = Callable[[], Awaitable[EvictionReport]]
FeatureView = Callable[[], Awaitable[FeatureReport]]


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
    def current(self) -> Checked: ...

    def files(self) -> Sequence[Path]: ...

    def reload(self) -> Checked | ReloadPlan: ...

    def set_values(self, values: Mapping[str, str], *, dry_run: bool) -> Checked | ReloadPlan: ...


class PodLog(Protocol):
    """Where a container writes; no path before it has begun. `goes_on`: more may come, also of a later instance."""

    @property
    def container(self) -> str: ...

    @property
    def path(self) -> Path | None: ...

    @property
    def goes_on(self) -> bool: ...


class PodView(Protocol):
    @property
    def pods(self) -> Feed[PodState]: ...

    async def looked(self) -> None:
        """Until it is known which there are."""

    def timeline(self, namespace: str, name: str) -> tuple[Sequence[object], Sequence[str]]:
        """Moments with the fields of the message `Moment`, and names of containers."""

    def now_s(self) -> float: ...

    def explain(self, namespace: str, name: str) -> tuple[str, list[str]]: ...

    def log_place(self, namespace: str, name: str, container: str, *, is_previous: bool) -> PodLog: ...


class PodActions(Protocol):
    """What people may ask of pods; Refused says why not."""

    async def apply(self, content: bytes, *, dry_run: bool) -> tuple[list[str], str]: ...

    async def delete(self, namespace: str, name: str, grace_s: float | None) -> None: ...

    def restart(self, namespace: str, name: str, container: str) -> list[str]: ...

    async def debug(self, namespace: str, name: str, fields: Container, profile: str, target: str) -> str: ...

    def clear_backoff(self, namespace: str, name: str) -> None: ...

    async def drain(self, grace_s: float, by: str) -> list[str]: ...

    async def uncordon(self) -> list[str]: ...

    async def checkpoint(self, namespace: str, name: str, container: str) -> MadeCheckpoint: ...

    @property
    def checkpoints(self) -> "CheckpointView": ...


class CheckpointView(Protocol):
    """Archives; Refused says why one cannot be deleted."""

    async def listed(self) -> Sequence[CheckpointReport]: ...

    async def delete(self, name: str) -> None: ...


class ObjectsView(Protocol):
    """Objects of the manifests by kind, namespace and name; Refused says why not."""

    async def listed(self, kind: str) -> Sequence[ListedObject]: ...

    async def manifest(self, key: tuple[str, str, str]) -> tuple[str, str]:
        """The text, and where it stands."""

    async def apply(self, content: bytes, *, dry_run: bool, create_only: bool) -> Sequence[AppliedObject]: ...

    async def delete(self, key: tuple[str, str, str], grace_s: float | None, *, dry_run: bool) -> str: ...


class PodStreams(Protocol):
    """Addresses of streams into pods, each good for one use; Refused says why there is none."""

    async def exec_url(
        self, target: tuple[str, str, str], command: Sequence[str], *, has_stdin: bool, is_tty: bool
    ) -> str: ...

    async def end_exec(self, target: tuple[str, str, str], command: Sequence[str], since_s: float) -> bool: ...

    async def attach_url(self, target: tuple[str, str, str], *, has_stdin: bool) -> tuple[str, bool]: ...

    async def port_forward_url(self, namespace: str, name: str, ports: Sequence[int]) -> str: ...


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


class ServiceProxyView(Protocol):
    """Services in the kernel, in lists that go on behind a place. `route` raises KeyError for what is not there,
    `trace` ValueError for no addresses."""

    @property
    def changes(self) -> Feed[ProgrammedService]: ...

    def services(self, after: str = "") -> Walk[ServiceReport]: ...

    def service(self, key: ServiceKey) -> ServiceReport: ...

    def endpoints(
        self, key: ServiceKey | None = None, after: str = "", port_name: str | None = None
    ) -> Walk[EndpointReport]: ...

    def route(self, key: ServiceKey, port_name: str | None = None) -> Sequence[str]: ...

    def desired_rules(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]: ...

    def rules(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]: ...

    def differences(self, after: str = "") -> Walk[RuleChange]: ...

    async def trace(self, source: str, target: str, protocol: str, port: int, *, in_kernel: bool) -> TraceReport: ...

    async def end_connections(self, key: ServiceKey, to: str, *, dry_run: bool) -> EndedConnections:
        """To the endpoint `to`, or to all that are gone. Raises KeyError, ValueError and Refused."""


class PullView(Protocol):
    @property
    def pulls(self) -> Feed[PullState]: ...

    def look(self) -> None: ...

    def limits(self) -> Sequence[LimitState]: ...

    def set_limit(self, registry: str, limit: int) -> None: ...

    async def request(self, request: PullRequest) -> PullOutcome: ...

    def order(self, request: PullRequest) -> None: ...

    def cancel(self, pull_id: str) -> bool: ...

    def retry(self, namespace: str, pod: str) -> int: ...

    def holds(self) -> Sequence[HoldReport]: ...

    def release_hold(self, hold_id: str) -> bool: ...


class ImageView(Protocol):
    async def images(self) -> Sequence[ImageState]: ...

    async def collect(self, *, dry_run: bool) -> CollectionState: ...

    async def prefetch(self, images: Sequence[ListedImage]) -> Sequence[PrefetchedImage]: ...

    async def mirrors(self) -> Sequence[MirrorState]: ...

    async def explain(self, image: str) -> PullExplanation: ...

    async def inspect(self, image: str) -> ImageInspection | None: ...


class DeviceView(Protocol):
    """`explain`, `reset` and `release` raise Refused."""

    def devices(self, after: str) -> Walk[DeviceReport]: ...

    def claims(self, after: str) -> Walk[ClaimReport]: ...

    def drivers(self) -> Sequence[DriverReport]: ...

    def explain(self, namespace: str, name: str, *, is_pod: bool) -> ClaimExplanationReport: ...

    def cdi(self, after: str) -> Walk[CdiReport]: ...

    async def explain_cdi(self, text: str, runtime: str) -> CdiReport: ...

    async def reset(self, name: str) -> None: ...

    async def release(self, uid: str) -> None: ...


class NamesView(Protocol):
    """`explain` and `flush` raise Refused."""

    async def report(self) -> DnsReport: ...

    async def explain(self, name: str, type_: str, pod: str, *, is_traced: bool = False) -> NameExplanation: ...

    async def flush(self, name: str, zone: str) -> int: ...


class CriProxyView(Protocol):
    def report(self) -> ProxyReport: ...

    def holds(self) -> Sequence[HoldReport]: ...

    def release(self, hold_id: str) -> bool: ...
