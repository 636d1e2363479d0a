# SPDX-License-Identifier: Apache-2.0
"""ServiceProxyService: Services in the kernel of this node. Converts and delegates."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid, not_found, running
from agent.api.messages import to_message
from agent.api.paging import page, parse_filter
from agent.api.ports import ServiceProxyView
from agent.api.watching import watched
from agent.model.service import ServiceKey
from agent.model.service_report import ProgrammedService
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

M = TypeVar("M", bound=Message)
PROTOCOLS = ("TCP", "UDP", "SCTP")
HIGHEST_PORT = 65535


class ServiceProxyService:
    def __init__(self, view: ServiceProxyView | None) -> None:
        self._view = view

    async def list_services(self, request: pb.ListServicesRequest) -> pb.ListServicesResponse:
        view = running(self._view, "services")
        found = _messages(pb.Service, await view.services())
        items, meta = await page(found, request.options, _service_name, pb.Service, view.changes.version)
        return pb.ListServicesResponse(services=items, meta=meta)

    async def list_endpoints(self, request: pb.ListEndpointsRequest) -> pb.ListEndpointsResponse:
        key = _key(request.service) if request.service else None
        view = running(self._view, "services")
        found = _messages(pb.Endpoint, view.endpoints(key))
        items, meta = await page(found, request.options, _endpoint_name, pb.Endpoint, view.changes.version)
        return pb.ListEndpointsResponse(endpoints=items, meta=meta)

    async def watch_services(self, request: pb.WatchServicesRequest) -> AsyncIterator[pb.WatchServicesResponse]:
        """All Services, then those that are programmed anew."""
        view = running(self._view, "services")
        holds = parse_filter(request.filter, pb.Service)

        def convert(one: ProgrammedService) -> pb.Service:
            return to_message(pb.Service, view.service(one.key))

        async for kind, service, version in watched(view.changes, convert, holds, _service_name):
            yield pb.WatchServicesResponse(type=kind, service=service, resource_version=version)

    async def list_rules(self, request: pb.ListRulesRequest) -> pb.ListRulesResponse:
        key = _key(request.service) if request.service else None
        view = running(self._view, "services")
        found = _messages(pb.Rule, view.desired_rules(key) if request.desired else await view.rules(key))
        items, meta = await page(found, request.options, _rule_name, pb.Rule, view.changes.version)
        return pb.ListRulesResponse(rules=items, meta=meta)

    async def diff_rules(self, _request: pb.DiffRulesRequest) -> pb.DiffRulesResponse:
        differences = await running(self._view, "services").differences()
        return pb.DiffRulesResponse(differences=_messages(pb.RuleDifference, differences))

    async def trace_packet(self, request: pb.TracePacketRequest) -> pb.TracePacketResponse:
        protocol = (request.protocol or "TCP").upper()
        if protocol not in PROTOCOLS:
            text = f'protocol "{request.protocol}" is not known; expected {", ".join(PROTOCOLS)}'
            raise invalid(FailureReason.MALFORMED_REQUEST, text, [("protocol", text)])
        if not 0 < request.port <= HIGHEST_PORT:
            text = f"port {request.port} is out of range; expected 1 to {HIGHEST_PORT}"
            raise invalid(FailureReason.MALFORMED_REQUEST, text, [("port", text)])
        view, ends = running(self._view, "services"), (getattr(request, "from"), request.to)
        try:
            report = await view.trace(*ends, protocol, request.port, in_kernel=request.kernel)
        except ValueError as error:
            raise invalid(FailureReason.MALFORMED_REQUEST, str(error), [("to", str(error))]) from error
        return to_message(pb.TracePacketResponse, report)

    async def explain_route(self, request: pb.ExplainRouteRequest) -> pb.ExplainRouteResponse:
        key = _key(request.service)
        try:
            report = running(self._view, "services").route(key, request.port if request.HasField("port") else None)
        except KeyError as error:
            raise not_found(FailureReason.NO_SUCH_SERVICE, f"no Service {key} is known here") from error
        return to_message(pb.ExplainRouteResponse, report)


def _key(text: str) -> ServiceKey:
    """`name` alone is in namespace default."""
    namespace, sign, name = text.rpartition("/")
    if not name or "/" in namespace or (sign and not namespace):
        wrong = f'"{text}" is not the name of a Service; expected namespace/name'
        raise invalid(FailureReason.MALFORMED_REQUEST, wrong, [("service", wrong)])
    return ServiceKey(namespace or "default", name)


def _messages(kind: type[M], reports: Iterable[object]) -> Iterator[M]:
    """One by one, of what there is now."""
    return (to_message(kind, one) for one in list(reports))


def _service_name(one: pb.Service) -> str:
    return f"{one.namespace}/{one.name}"


def _endpoint_name(one: pb.Endpoint) -> str:
    return f"{one.namespace}/{one.service}:{one.port}/{one.protocol}/{one.endpoint}"


def _rule_name(one: pb.Rule) -> str:
    return f"{one.family}/{one.map}/{one.key}"
