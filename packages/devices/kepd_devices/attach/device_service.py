# SPDX-License-Identifier: Apache-2.0
"""DeviceService: devices, claims and drivers of this node. Converts and delegates."""

from agent.api.messages import to_message
from agent.api.offers import own, walked
from agent.kinds.own_shape import own_object
from agent.kinds.shown import Offer
from agent.kinds.table import Object
from agent.model.devices.report import ClaimReport
from agent.wire.kepd.v1 import device_pb2 as pb
from kepd_devices.run.front.view import FrontView
from kepd_devices.run.view import DeviceView


class DeviceService:
    def __init__(self, view: DeviceView | FrontView) -> None:
        self._view = view

        self.offers = {
            "devices": Offer(walked(view.devices, lambda report: own_object("Device", report.name, report))),
            "claims": Offer(walked(view.claims, _claim_object)),
            "drivers": own("DeviceDriver", lambda _: view.drivers(), lambda report: report.name),
            "cdi": Offer(walked(view.cdi, lambda report: own_object("CdiDevice", report.id, report))),
        }

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


def _claim_object(report: ClaimReport) -> Object:
    return own_object("Claim", report.name, report, namespace=report.namespace)
