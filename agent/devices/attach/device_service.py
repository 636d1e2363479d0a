# SPDX-License-Identifier: Apache-2.0
"""DeviceService: devices, claims and drivers of this node. Converts and delegates."""

from functools import partial

from agent.api.errors import running
from agent.api.messages import to_message
from agent.api.paging import page, place_of
from agent.api.ports import DeviceView
from agent.wire.kepd.v1 import device_pb2 as pb

PLANE = "devices"


class DeviceService:
    def __init__(self, view: DeviceView | None) -> None:
        self._view = view

    async def list_devices(self, request: pb.ListDevicesRequest) -> pb.ListDevicesResponse:
        walk = running(self._view, PLANE).devices(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.Device), pb.Device)
        return pb.ListDevicesResponse(devices=items, meta=meta)

    async def list_claims(self, request: pb.ListClaimsRequest) -> pb.ListClaimsResponse:
        walk = running(self._view, PLANE).claims(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.Claim), pb.Claim)
        return pb.ListClaimsResponse(claims=items, meta=meta)

    async def list_drivers(self, _request: pb.ListDriversRequest) -> pb.ListDriversResponse:
        found = running(self._view, PLANE).drivers()
        return pb.ListDriversResponse(drivers=[to_message(pb.DeviceDriver, one) for one in found])

    async def list_cdi(self, request: pb.ListCdiRequest) -> pb.ListCdiResponse:
        walk = running(self._view, PLANE).cdi(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.CdiDevice), pb.CdiDevice)
        return pb.ListCdiResponse(devices=items, meta=meta)

    async def explain_claim(self, request: pb.ExplainClaimRequest) -> pb.ExplainClaimResponse:
        view = running(self._view, PLANE)
        found = view.explain(request.namespace or "default", request.name, is_pod=request.is_pod)
        return to_message(pb.ExplainClaimResponse, found)

    async def explain_cdi(self, request: pb.ExplainCdiRequest) -> pb.ExplainCdiResponse:
        found = await running(self._view, PLANE).explain_cdi(request.id, request.runtime)
        return to_message(pb.ExplainCdiResponse, found)

    async def reset_device(self, request: pb.ResetDeviceRequest) -> pb.ResetDeviceResponse:
        await running(self._view, PLANE).reset(request.name)
        return pb.ResetDeviceResponse()

    async def release_claim(self, request: pb.ReleaseClaimRequest) -> pb.ReleaseClaimResponse:
        await running(self._view, PLANE).release(request.uid)
        return pb.ReleaseClaimResponse()
