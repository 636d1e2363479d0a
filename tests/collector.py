# SPDX-License-Identifier: Apache-2.0
"""A collector of traces in the process of the tests: an OTLP server that keeps what arrives."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

WITHIN_S = 30.0
KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass
class Arrived:
    """One span as a collector has it; times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    begin_s: float
    end_s: float
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    error: str = ""
    resource: dict[str, Any] = field(default_factory=dict)


def plain(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in pairs}


def seconds(nanos: int) -> float:
    whole, rest = divmod(nanos, 10**9)
    return whole + rest / 1e9


class Collector(TraceServiceServicer):
    """Serves while its block lasts; `code` is what it answers with."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Arrived] = []
        self.bytes = b""
        self.code: grpc.StatusCode | None = None
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def Export(self, request: Any, context: Any) -> pb.ExportTraceServiceResponse:  # noqa: N802  # gRPC's name
        if self.code is not None:
            context.abort(self.code, "the collector is ill")
        with self._lock:
            self.bytes += request.SerializeToString()
            for group in request.resource_spans:
                for scope in group.scope_spans:
                    self.spans += [self._arrived(one, plain(group.resource.attributes)) for one in scope.spans]
        return pb.ExportTraceServiceResponse()

    @staticmethod
    def _arrived(one: Any, resource: dict[str, Any]) -> Arrived:
        return Arrived(
            name=one.name,
            trace_id=one.trace_id.hex(),
            span_id=one.span_id.hex(),
            parent_id=one.parent_span_id.hex(),
            kind=KINDS[one.kind],
            begin_s=seconds(one.start_time_unix_nano),
            end_s=seconds(one.end_time_unix_nano),
            attributes=plain(one.attributes),
            events=[event.name for event in one.events],
            error=one.status.message if one.status.code == 2 else "",
            resource=resource,
        )

    def wait(self, condition: Callable[[list[Arrived]], Any], what: str) -> Any:
        """Until what has arrived is enough."""
        deadline_s = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline_s:
            with self._lock:
                found = condition(self.spans)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {[one.name for one in self.spans]}")

    def tree(self, root: str) -> dict[str, Any]:
        """Names below the last root with that name, as nested dictionaries."""
        (found,) = [one for one in self.spans if one.name == root][-1:]
        return tree_of(self.spans, found.span_id)


def tree_of(spans: list[Any], span_id: object) -> dict[str, Any]:
    return {
        f"{one.name} {one.attributes.get('k8s.container.name', '')}".strip(): tree_of(spans, one.span_id)
        for one in sorted(spans, key=lambda one: (one.begin_s, one.end_s))
        if one.parent_id == span_id
    }
