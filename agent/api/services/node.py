# SPDX-License-Identifier: Apache-2.0
"""NodeService: node, planes, configuration. Converts and delegates."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from google.protobuf.json_format import MessageToDict
from google.rpc import code_pb2

from agent.api.call_quota import is_trusted
from agent.api.errors import ApiError, FailureReason, invalid
from agent.api.messages import to_message
from agent.api.offers import following, listed, own
from agent.api.paging import in_order, page, place_of
from agent.api.peer import CALLER
from agent.api.ports import ConfigurationView, EvictionView, FeatureView, NodeLogsView, NodeView, UsageView
from agent.api.watching import SharedStream
from agent.api.way_in import WayIn, closed
from agent.config.check import CheckedConfiguration
from agent.config.diff import KeyChange, ReloadPlan, value_at
from agent.config.document import PLANES, Configuration
from agent.config.keys import all_keys
from agent.config.reference import json_like
from agent.kinds.kube_shape import event_object, node_object
from agent.kinds.own_shape import fields_of
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object
from agent.model.component import Board
from agent.model.event import Event
from agent.model.feed import Feed
from agent.model.finding import Advice, printable, suggestion
from agent.model.nodes.feature import FeatureRow
from agent.model.nodes.file_system import FileSystemReport
from agent.model.nodes.log import LogReader, LogRequest
from agent.wire.kepd.v1 import node_pb2 as pb

MOST_VERBOSE = 9
LEAST_INTERVAL_S = 1.0
# Of one message of a stream.
PART_BYTES = 256 << 10


class NodeService:
    def __init__(
        self,
        node: NodeView,
        board: Board,
        configuration: ConfigurationView,
        events: Feed[Event],
        advisers: Sequence[Callable[[], Awaitable[Sequence[Advice]]]] = (),
        usage: UsageView | None = None,
        *,
        eviction: EvictionView | None = None,
        features: FeatureView | None = None,
        logs: NodeLogsView | None = None,
        way_in: WayIn | None = None,
    ) -> None:
        self._node = node
        self._board = board
        self._events = events
        self._advisers = advisers
        self._configuration = configuration
        self._usage = usage
        self._eviction = eviction
        self._features = features
        self._logs = logs
        self._way_in = way_in
        self._stats = SharedStream(self._sampled)
        self.offers = {
            "nodes": Offer(listed(lambda _: [MessageToDict(node.node())], lambda made: made["name"], node_object)),
            "planes": own("Plane", lambda _: [line for line in board.lines() if line.is_plane], lambda line: line.name),
            "filesystems": own("Filesystem", self._file_systems, _mount_name),
            "features": own("Feature", self._all_features, lambda row: row.keps or row.what),
            "events": Offer(
                listed(lambda _: events.items.values(), _event_order, _event_object),
                following(lambda: events, _event_object),
            ),
        }

    async def _file_systems(self, how: How) -> Iterable[FileSystemReport]:
        return await self._figures().file_systems(with_use=how.with_objects or how.is_wide)

    async def _all_features(self, _how: How) -> Iterable[FeatureRow]:
        return await self._features() if self._features is not None else ()

    async def get_node(self, _request: pb.GetNodeRequest) -> pb.GetNodeResponse:
        return pb.GetNodeResponse(node=self._node.node())

    async def get_kubeconfig(self, request: pb.GetKubeconfigRequest) -> pb.GetKubeconfigResponse:
        if self._way_in is None:
            raise closed()
        return pb.GetKubeconfigResponse(content=self._way_in.kubeconfig(request.level or "read"))

    async def get_config(self, _request: pb.GetConfigRequest) -> pb.GetConfigResponse:
        checked = self._configuration.current()
        values = []
        for path, entry in all_keys(Configuration).items():
            value = value_at(checked.configuration, entry) if checked.configuration else None
            values.append(
                pb.ConfigValue(
                    path=path,
                    value=json.dumps(json_like(entry.key.kind.show(value))),
                    origin=checked.origins[path],
                    needs_restart=entry.key.needs_restart,
                )
            )
        return pb.GetConfigResponse(values=values)

    async def set_config(self, request: pb.SetConfigRequest) -> pb.SetConfigResponse:
        """All of the values, or none."""
        outcome = self._configuration.set_values(dict(request.values), dry_run=request.dry_run)
        plan = _plan_or_refusal(outcome)
        if plan.waiting_for_restart:
            names = ", ".join(change.path for change in plan.waiting_for_restart)
            raise ApiError(
                code_pb2.FAILED_PRECONDITION,
                FailureReason.NEEDS_RESTART,
                f"{names}: takes effect only at a restart; put it into the configuration file and restart kepd",
            )
        return pb.SetConfigResponse(applied=[_change(change) for change in plan.applied])

    async def reload_config(self, _request: pb.ReloadConfigRequest) -> pb.ReloadConfigResponse:
        plan = _plan_or_refusal(self._configuration.reload())
        return pb.ReloadConfigResponse(
            applied=[_change(change) for change in plan.applied],
            waiting_for_restart=[_change(change) for change in plan.waiting_for_restart],
        )

    async def set_verbosity(self, request: pb.SetVerbosityRequest) -> pb.SetVerbosityResponse:
        """How much is logged from now on, until the next reload or restart."""
        for name, level in [("verbosity", request.verbosity), *request.planes.items()]:
            if level > MOST_VERBOSE:
                raise invalid(
                    FailureReason.BAD_CONFIGURATION, f"{name}: {level} is not a level from 0 to {MOST_VERBOSE}"
                )
        known = (*PLANES, "api", "daemon")
        for name in request.planes:
            if name not in known:
                raise invalid(FailureReason.NO_SUCH_PLANE, f'"{name}" is not a plane{suggestion(name, known)}')
        verbosity = request.verbosity if request.HasField("verbosity") else None
        self._node.set_verbosity(verbosity, dict(request.planes))
        return pb.SetVerbosityResponse()

    async def list_stats(self, request: pb.ListStatsRequest) -> pb.ListStatsResponse:
        report = await self._figures().usage(with_readings=request.with_readings)
        pods = in_order(report.pods, lambda pod: pod.key, place_of(request.options))
        items, meta = await page(pods, request.options, partial(to_message, pb.PodUsage))
        return to_message(pb.ListStatsResponse, report, pods=items, meta=meta)

    async def watch_stats(self, request: pb.WatchStatsRequest) -> AsyncIterator[bytes]:
        self._figures()
        interval_s = max(request.interval.ToMicroseconds() / 1e6, LEAST_INTERVAL_S)
        async with aclosing(self._stats.follow(interval_s)) as messages:
            async for packed in messages:
                yield packed

    async def _sampled(self, interval_s: float) -> AsyncIterator[pb.ListStatsResponse]:
        async for report in self._figures().watch(interval_s):
            yield to_message(pb.ListStatsResponse, report, meta=None)

    async def get_stats_summary(self, request: pb.GetStatsSummaryRequest) -> AsyncIterator[pb.GetStatsSummaryResponse]:
        text = await self._figures().summary(is_short=request.only_cpu_and_memory)
        for begin in range(0, len(text), PART_BYTES):
            yield pb.GetStatsSummaryResponse(json=text[begin : begin + PART_BYTES])

    async def explain_eviction(self, _request: pb.ExplainEvictionRequest) -> pb.ExplainEvictionResponse:
        if self._eviction is None:
            text = "this kepd runs no pods and evicts none"
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.PLANE_DISABLED, text)
        return to_message(pb.ExplainEvictionResponse, await self._eviction())

    async def list_log_sources(self, request: pb.ListLogSourcesRequest) -> pb.ListLogSourcesResponse:
        found = await self._logs.sources(_reader()) if self._logs is not None else ()
        walk = in_order(found, lambda one: f"{one.kind} {one.name}", place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.LogSource))
        return pb.ListLogSourcesResponse(sources=items, meta=meta)

    async def stream_node_logs(self, request: pb.StreamNodeLogsRequest) -> AsyncIterator[pb.StreamNodeLogsResponse]:
        if self._logs is None:
            raise ApiError(code_pb2.PERMISSION_DENIED, FailureReason.NODE_LOGS_OFF, "this kepd reads no logs")
        async with aclosing(self._logs.stream(_log_request(request), _reader())) as parts:
            async for part in parts:
                yield to_message(pb.StreamNodeLogsResponse, part)

    def _figures(self) -> UsageView:
        if self._usage is None:
            text = "this kepd has no runtime and knows no containers; ask one that has pods, images or the proxy"
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.PLANE_DISABLED, text)
        return self._usage

    async def diagnose(self, _request: pb.DiagnoseRequest) -> pb.DiagnoseResponse:
        """What should be changed: parts of ours that lack something, and what planes say about their surroundings."""
        # Of several daemons each has its files, and one that lacks something may have read another than was meant.
        read = f"configured by {', '.join(printable(str(one)) for one in self._configuration.files()) or 'no file'}"
        findings = [
            pb.Finding(subject=f"kepd {line.name}", found=line.message, wanted="ready", text=read)
            for line in self._board.lines()
            if not line.is_ready
        ]
        for ask in self._advisers:
            findings += [to_message(pb.Finding, one) for one in await ask()]
        return pb.DiagnoseResponse(findings=findings)


def _reader() -> LogReader:
    """Whoever calls. One that the kernel did not name would have been refused."""
    peer = CALLER.get()
    return LogReader(-1, is_root=False) if peer is None else LogReader(peer.uid, is_root=is_trusted(peer.uid))


def _log_request(request: pb.StreamNodeLogsRequest) -> LogRequest:
    return LogRequest(
        units=tuple(request.units),
        file=request.file,
        since_us=request.since.ToMicroseconds() if request.HasField("since") else None,
        until_us=request.until.ToMicroseconds() if request.HasField("until") else None,
        tail=request.tail if request.HasField("tail") else None,
        follow=request.follow,
        boot=request.boot,
        grep=request.grep,
        ignore_case=request.ignore_case,
        priority=request.priority if request.HasField("priority") else None,
        output=request.output,
        rotated=request.rotated,
    )


def _event_order(event: Event) -> str:
    return f"{event.last_seen_s:020.6f}{event.id}"


def _plan_or_refusal(outcome: CheckedConfiguration | ReloadPlan) -> ReloadPlan:
    if isinstance(outcome, ReloadPlan):
        return outcome
    findings = [str(finding) for finding in outcome.findings]
    raise invalid(
        FailureReason.BAD_CONFIGURATION,
        f"nothing was changed: {'; '.join(findings)}",
        [(finding.path, str(finding)) for finding in outcome.findings],
    )


def _change(change: KeyChange) -> pb.ConfigChange:
    return pb.ConfigChange(
        path=change.path, old_value=json.dumps(json_like(change.old)), new_value=json.dumps(json_like(change.new))
    )


def _event_object(event: Event) -> Object:
    return event_object(fields_of(event))


def _mount_name(report: FileSystemReport) -> str:
    """The last part of a path that is the root is empty."""
    return report.mount.strip("/").replace("/", ".") or "root"
