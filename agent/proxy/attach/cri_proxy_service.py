# SPDX-License-Identifier: Apache-2.0
"""CriProxyService: the proxy between a kubelet and the runtime. Converts and delegates."""

from agent.api.errors import FailureReason, not_found
from agent.api.messages import to_message
from agent.proxy.attach.view import ProxyView
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb


class CriProxyService:
    def __init__(self, view: ProxyView) -> None:
        self._view = view

    async def get_proxy(self, _request: pb.GetProxyRequest) -> pb.GetProxyResponse:
        return pb.GetProxyResponse(proxy=to_message(pb.Proxy, self._view.report()))

    async def list_holds(self, _request: pb.ListHoldsRequest) -> pb.ListHoldsResponse:
        held = self._view.holds()
        return pb.ListHoldsResponse(holds=[to_message(pb.Hold, one) for one in held])

    async def release_hold(self, request: pb.ReleaseHoldRequest) -> pb.ReleaseHoldResponse:
        if not self._view.release(request.id):
            text = f'no call is held as "{request.id}"; it may have continued by itself'
            raise not_found(FailureReason.NO_SUCH_OBJECT, text)
        return pb.ReleaseHoldResponse()
