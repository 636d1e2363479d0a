# SPDX-License-Identifier: Apache-2.0
"""CriProxyService: the proxy between a kubelet and the runtime. Converts and delegates."""

from agent.api.errors import FailureReason, not_found, running
from agent.api.messages import to_message
from agent.api.ports import CriProxyView
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb


class CriProxyService:
    def __init__(self, view: CriProxyView | None) -> None:
        self._view = view

    async def get_proxy(self, _request: pb.GetProxyRequest) -> pb.GetProxyResponse:
        return pb.GetProxyResponse(proxy=to_message(pb.Proxy, running(self._view, "proxy").report()))

    async def list_holds(self, _request: pb.ListHoldsRequest) -> pb.ListHoldsResponse:
        held = running(self._view, "proxy").holds()
        return pb.ListHoldsResponse(holds=[to_message(pb.Hold, one) for one in held])

    async def release_hold(self, request: pb.ReleaseHoldRequest) -> pb.ReleaseHoldResponse:
        if not running(self._view, "proxy").release(request.id):
            text = f'no call is held as "{request.id}"; it may have continued by itself'
            raise not_found(FailureReason.NO_SUCH_OBJECT, text)
        return pb.ReleaseHoldResponse()
