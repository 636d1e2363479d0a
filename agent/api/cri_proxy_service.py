# SPDX-License-Identifier: Apache-2.0
"""CriProxyService: the proxy between a kubelet and the runtime. Converts and delegates."""

from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2

from agent.api.errors import ApiError, Reason
from agent.api.ports import CriProxyView
from agent.api.service import Call
from agent.model.proxy_report import HoldReport, MethodReport, ProxyReport
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb

__all__ = ["CriProxyService"]


class CriProxyService:
    """kepd.v1.CriProxyService. `view` is None while the plane is off."""

    def __init__(self, view: CriProxyView | None) -> None:
        self._maybe_view = view

    async def get_proxy(self, _request: pb.GetProxyRequest, _call: Call) -> pb.GetProxyResponse:
        """Everything at once."""
        return pb.GetProxyResponse(proxy=_proxy(self._view().report()))

    async def list_holds(self, _request: pb.ListHoldsRequest, _call: Call) -> pb.ListHoldsResponse:
        """What is held now."""
        return pb.ListHoldsResponse(holds=[_hold(one) for one in self._view().holds()])

    async def release_hold(self, request: pb.ReleaseHoldRequest, _call: Call) -> pb.ReleaseHoldResponse:
        """Let one go on."""
        if not self._view().release(request.id):
            text = f'no call is held as "{request.id}"; it may have continued by itself'
            raise ApiError(code_pb2.NOT_FOUND, Reason.NO_SUCH_OBJECT, text)
        return pb.ReleaseHoldResponse()

    def _view(self) -> CriProxyView:
        if self._maybe_view is None:
            raise ApiError(
                code_pb2.FAILED_PRECONDITION,
                Reason.PLANE_DISABLED,
                "the proxy plane does not run here; set proxy.enabled to true and restart kepd",
                metadata={"plane": "proxy"},
            )
        return self._maybe_view


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _proxy(report: ProxyReport) -> pb.Proxy:
    return pb.Proxy(
        socket=report.socket,
        link=report.link,
        connections=report.connections,
        pods=report.pods,
        masks=report.masks,
        is_recovered=report.is_recovered,
        queues_pulls=report.queues_pulls,
        note=report.note,
        methods=[_method(one) for one in report.methods],
        holds=[_hold(one) for one in report.holds],
    )


def _method(one: MethodReport) -> pb.ProxyMethod:
    return pb.ProxyMethod(
        name=one.name,
        calls=one.calls,
        failures=one.failures,
        added_p50=_duration(one.added_p50_s),
        added_p99=_duration(one.added_p99_s),
        holds=one.holds,
        held=_duration(one.held_s),
    )


def _hold(one: HoldReport) -> pb.Hold:
    return pb.Hold(
        id=one.id,
        method=one.method,
        pod=one.pod,
        container=one.container,
        reason=one.reason,
        waits_for=one.waits_for,
        held=_duration(one.held_s),
        ends_in=None if one.ends_in_s is None else _duration(one.ends_in_s),
    )
