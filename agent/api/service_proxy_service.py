# SPDX-License-Identifier: Apache-2.0
"""ServiceProxyService: Services in the kernel of this node. Converts and delegates."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import fields, is_dataclass
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2

from agent.api.errors import ApiError, Reason, invalid
from agent.api.paging import page, parse_filter
from agent.api.ports import ServiceProxyView
from agent.api.service import Call
from agent.api.watching import watched
from agent.model.service import ServiceKey
from agent.model.service_report import ProgrammedService
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

__all__ = ["ServiceProxyService"]

M = TypeVar("M", bound=Message)
PROTOCOLS = ("TCP", "UDP", "SCTP")
HIGHEST_PORT = 65535


class ServiceProxyService:
    """kepd.v1.ServiceProxyService. `view` is None while the plane is off."""

    def __init__(self, view: ServiceProxyView | None) -> None:
        self._maybe_view = view

    async def list_services(self, request: pb.ListServicesRequest, _call: Call) -> pb.ListServicesResponse:
        """All Services, in pages if wanted."""
        view = self._view()
        items, token = page(_messages(pb.Service, await view.services()), request.options, _service_name, pb.Service)
        return pb.ListServicesResponse(services=items, meta=self._meta(token))

    async def list_endpoints(self, request: pb.ListEndpointsRequest, _call: Call) -> pb.ListEndpointsResponse:
        """All endpoints, or those of one Service."""
        key = _key(request.service) if request.service else None
        found = _messages(pb.Endpoint, self._view().endpoints(key))
        items, token = page(found, request.options, _endpoint_name, pb.Endpoint)
        return pb.ListEndpointsResponse(endpoints=items, meta=self._meta(token))

    async def watch_services(
        self, request: pb.WatchServicesRequest, _call: Call
    ) -> AsyncIterator[pb.WatchServicesResponse]:
        """All Services, then those that are programmed anew."""
        view = self._view()
        holds = parse_filter(request.filter, pb.Service)

        def convert(one: ProgrammedService) -> pb.Service:
            return _message(pb.Service, view.service(one.key))

        async for kind, service, version in watched(view.changes, convert, holds, _service_name):
            yield pb.WatchServicesResponse(type=kind, service=service, resource_version=version)

    async def list_rules(self, request: pb.ListRulesRequest, _call: Call) -> pb.ListRulesResponse:
        """The elements of our maps."""
        key = _key(request.service) if request.service else None
        view = self._view()
        found = _messages(pb.Rule, view.desired_rules(key) if request.desired else await view.rules(key))
        items, token = page(found, request.options, _rule_name, pb.Rule)
        return pb.ListRulesResponse(rules=items, meta=self._meta(token))

    async def diff_rules(self, _request: pb.DiffRulesRequest, _call: Call) -> pb.DiffRulesResponse:
        """Desired against actual."""
        return pb.DiffRulesResponse(differences=_messages(pb.RuleDifference, await self._view().differences()))

    async def trace_packet(self, request: pb.TracePacketRequest, _call: Call) -> pb.TracePacketResponse:
        """One packet's way."""
        protocol = (request.protocol or "TCP").upper()
        if protocol not in PROTOCOLS:
            text = f'protocol "{request.protocol}" is not known; expected {", ".join(PROTOCOLS)}'
            raise invalid(Reason.MALFORMED_REQUEST, text, [("protocol", text)])
        if not 0 < request.port <= HIGHEST_PORT:
            text = f"port {request.port} is out of range; expected 1 to {HIGHEST_PORT}"
            raise invalid(Reason.MALFORMED_REQUEST, text, [("port", text)])
        ends = (getattr(request, "from"), request.to)
        try:
            report = await self._view().trace(*ends, protocol, request.port, in_kernel=request.kernel)
        except ValueError as error:
            raise invalid(Reason.MALFORMED_REQUEST, str(error), [("to", str(error))]) from error
        return _message(pb.TracePacketResponse, report)

    async def explain_route(self, request: pb.ExplainRouteRequest, _call: Call) -> pb.ExplainRouteResponse:
        """Where traffic goes and why."""
        key = _key(request.service)
        try:
            report = self._view().route(key, request.port if request.HasField("port") else None)
        except KeyError as error:
            raise ApiError(code_pb2.NOT_FOUND, Reason.NO_SUCH_SERVICE, f"no Service {key} is known here") from error
        return _message(pb.ExplainRouteResponse, report)

    def _meta(self, token: str) -> list_pb2.ListMeta:
        return list_pb2.ListMeta(next_page_token=token, resource_version=self._view().changes.version)

    def _view(self) -> ServiceProxyView:
        if self._maybe_view is None:
            raise ApiError(
                code_pb2.FAILED_PRECONDITION,
                Reason.PLANE_DISABLED,
                "the services plane does not run here; set services.enabled to true and restart kepd",
                metadata={"plane": "services"},
            )
        return self._maybe_view


def _key(text: str) -> ServiceKey:
    """`name` alone is in namespace default."""
    namespace, sign, name = text.rpartition("/")
    if not name or "/" in namespace or (sign and not namespace):
        wrong = f'"{text}" is not the name of a Service; expected namespace/name'
        raise invalid(Reason.MALFORMED_REQUEST, wrong, [("service", wrong)])
    return ServiceKey(namespace or "default", name)


def _message(kind: type[M], report: object) -> M:
    """A report as its message: the fields have the same names."""
    values: dict[str, object] = {}
    known = kind.DESCRIPTOR.fields_by_name
    for field in fields(report):  # type: ignore[arg-type]
        if field.name not in known:
            continue
        value = getattr(report, field.name)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            inner = cast("Descriptor", known[field.name].message_type)
            value = [_message(GetMessageClass(inner), one) for one in value]
        values[field.name] = value
    return kind(**values)


def _messages(kind: type[M], reports: Iterable[object]) -> list[M]:
    return [_message(kind, one) for one in reports]


def _service_name(one: pb.Service) -> str:
    return f"{one.namespace}/{one.name}"


def _endpoint_name(one: pb.Endpoint) -> str:
    return f"{one.namespace}/{one.service}:{one.port}/{one.protocol}/{one.endpoint}"


def _rule_name(one: pb.Rule) -> str:
    return f"{one.family}/{one.map}/{one.key}"
