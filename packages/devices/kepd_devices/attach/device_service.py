# SPDX-License-Identifier: Apache-2.0
"""DeviceService: devices, claims and drivers of this node. Converts and delegates."""

from functools import partial

from agent.api.messages import to_message
from agent.api.paging import page, place_of
from agent.wire.kepd.v1 import device_pb2 as pb
from kepd_devices.run.front.view import FrontView
from kepd_devices.run.view import DeviceView


class DeviceService:
    def __init__(self, view: DeviceView | FrontView) -> None:
        self._view = view

    async def list_devices(self, request: pb.ListDevicesRequest) -> pb.ListDevicesResponse:
        walk = self._view.devices(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.Device), pb.Device)
        return pb.ListDevicesResponse(devices=items, meta=meta)

    async def list_claims(self, request: pb.ListClaimsRequest) -> pb.ListClaimsResponse:
        walk = self._view.claims(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.Claim), pb.Claim)
        return pb.ListClaimsResponse(claims=items, meta=meta)

    async def list_drivers(self, _request: pb.ListDriversRequest) -> pb.ListDriversResponse:
        found = self._view.drivers()
        return pb.ListDriversResponse(drivers=[to_message(pb.DeviceDriver, one) for one in found])

    async def list_cdi(self, request: pb.ListCdiRequest) -> pb.ListCdiResponse:
        walk = self._view.cdi(place_of(request.options))
        items, meta = await page(walk, request.options, partial(to_message, pb.CdiDevice), pb.CdiDevice)
        return pb.ListCdiResponse(devices=items, meta=meta)

    async def explain_claim(self, request: pb.ExplainClaimRequest) -> pb.ExplainClaimResponse:
        view = self._view
        found = await view.explain(request.namespace or "default", request.name, is_pod=request.is_pod)
        return to_message(pb.ExplainClaimResponse, found)

    async def explain_cdi(self, request: pb.ExplainCdiRequest) -> pb.ExplainCdiResponse:
        found = await self._view.explain_cdi(request.id, request.runtime)
        return to_message(pb.ExplainCdiResponse, found)

    async def reset_device(self, request: pb.ResetDeviceRequest) -> pb.ResetDeviceResponse:
        await self._view.reset(request.name)
        return pb.ResetDeviceResponse()

    async def release_claim(self, request: pb.ReleaseClaimRequest) -> pb.ReleaseClaimResponse:
        await self._view.release(request.uid)
        return pb.ReleaseClaimResponse()
