# SPDX-License-Identifier: Apache-2.0
"""ServiceProxyService: Services in the kernel of this node. Converts and delegates."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid, not_found
from agent.api.messages import to_message
from agent.api.offers import following, walked
from agent.api.paging import page, place_of
from agent.kinds.own_shape import fields_of, own_object
from agent.kinds.shown import Offer
from agent.kinds.table import FACTS, Object
from agent.model.services.outage import OutageReport
from agent.model.services.report import EndpointReport, ServiceReport
from agent.model.services.service import ServiceKey
from agent.services.run.view import ServicesView
from agent.wire.kepd.v1 import reason_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

M = TypeVar("M", bound=Message)
PROTOCOLS = ("TCP", "UDP", "SCTP")
HIGHEST_PORT = 65535


class ServiceProxyService:
    def __init__(
        self, view: ServicesView, outage: Callable[[], OutageReport] = lambda: OutageReport(mode="off")
    ) -> None:
        self._view = view
        self._outage = outage

        self.offers = {
            "services": Offer(
                # All Services, then those that are programmed anew.
                walked(view.services, _service_object),
                following(lambda: view.changes, lambda change: _service_object(view.service(change.key))),
            ),
            "endpoints": Offer(walked(lambda after: view.endpoints(None, after), _endpoint_object)),
            "rules": Offer(
                walked(lambda after: view.rules(None, after), lambda report: own_object("Rule", report.key, report))
            ),
        }

    async def list_rules(self, request: pb.ListRulesRequest) -> pb.ListRulesResponse:
        key = _key(request.service) if request.service else None
        view = self._view
        listed = view.desired_rules if request.desired else view.rules
        walk = listed(key, place_of(request.options))
        items, meta = await page(walk, request.options, _shown(pb.Rule), view.changes.version)
        return pb.ListRulesResponse(rules=items, meta=meta)

    async def diff_rules(self, request: pb.DiffRulesRequest) -> pb.DiffRulesResponse:
        view = self._view
        view.must_know()
        walk = view.differences(place_of(request.options))
        shown = _shown(pb.RuleDifference)
        items, meta = await page(walk, request.options, shown, view.changes.version)
        return pb.DiffRulesResponse(differences=items, meta=meta)

    async def trace_packet(self, request: pb.TracePacketRequest) -> pb.TracePacketResponse:
        protocol = (request.protocol or "TCP").upper()
        if protocol not in PROTOCOLS:
            text = f'protocol "{request.protocol}" is not known; expected {", ".join(PROTOCOLS)}'
            raise invalid(FailureReason.MALFORMED_REQUEST, text, [("protocol", text)])
        if not 0 < request.port <= HIGHEST_PORT:
            text = f"port {request.port} is out of range; expected 1 to {HIGHEST_PORT}"
            raise invalid(FailureReason.MALFORMED_REQUEST, text, [("port", text)])
        view, ends = self._view, (getattr(request, "from"), request.to)
        try:
            report = await view.trace(*ends, protocol, request.port, in_kernel=request.kernel)
        except ValueError as error:
            raise invalid(FailureReason.MALFORMED_REQUEST, str(error), [("to", str(error))]) from error
        return to_message(pb.TracePacketResponse, report)

    async def explain_route(self, request: pb.ExplainRouteRequest) -> pb.ExplainRouteResponse:
        key = _key(request.service)
        port = request.port if request.HasField("port") else None
        view, after = self._view, place_of(request.options)
        try:
            lines = view.route(key, port) if not after else []
        except KeyError as error:
            raise not_found(FailureReason.NO_SUCH_SERVICE, f"no Service {error.args[0]} is known here") from error
        walk = view.endpoints(key, after, port)
        items, meta = await page(walk, request.options, _shown(pb.Endpoint), view.changes.version)
        reasons = [to_message(reason_pb2.Reason, one) for one in view.reasons(key)] if not after else []
        return pb.ExplainRouteResponse(lines=lines, endpoints=items, meta=meta, reasons=reasons)

    async def explain_outage(self, _request: pb.ExplainOutageRequest) -> pb.ExplainOutageResponse:
        return to_message(pb.ExplainOutageResponse, self._outage())

    async def end_connections(self, request: pb.EndConnectionsRequest) -> pb.EndConnectionsResponse:
        key, view = _key(request.service), self._view
        try:
            done = await view.end_connections(key, request.to, dry_run=request.dry_run)
        except KeyError as error:
            raise not_found(FailureReason.NO_SUCH_SERVICE, f"no Service {key} is programmed here") from error
        except ValueError as error:
            raise invalid(FailureReason.MALFORMED_REQUEST, str(error), [("to", str(error))]) from error
        return to_message(pb.EndConnectionsResponse, done)


def _key(text: str) -> ServiceKey:
    """`name` alone is in namespace default."""
    namespace, sign, name = text.rpartition("/")
    if not name or "/" in namespace or (sign and not namespace):
        wrong = f'"{text}" is not the name of a Service; expected namespace/name'
        raise invalid(FailureReason.MALFORMED_REQUEST, wrong, [("service", wrong)])
    return ServiceKey(namespace or "default", name)


def _shown(kind: type[M]) -> Callable[[object], M]:
    return partial(to_message, kind)


def _service_object(report: ServiceReport) -> Object:
    metadata = {"name": report.name, "namespace": report.namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, FACTS: fields_of(report)}


def _endpoint_object(report: EndpointReport) -> Object:
    labels = {"kubernetes.io/service-name": report.service}
    return own_object("Endpoint", report.service, report, namespace=report.namespace, labels=labels)
