# SPDX-License-Identifier: Apache-2.0
"""What people ask and order of kepd in front of device plugins."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agent.model.devices.report import CdiReport, ClaimExplanationReport, ClaimReport, DeviceReport, DriverReport
from agent.model.placed import Walk
from agent.model.refused import Refused
from kepd_devices.plan.plugins.front import FrontDevice, Use
from kepd_devices.plan.plugins.plugin_choice import VERSION
from kepd_devices.run.front.proxy import PluginProxy
from kepd_devices.run.front.resource import FrontResource

NONE: tuple[Any, ...] = ()
STATES = {
    Use.CLEAN: "free", Use.GRANTED: "preparing", Use.USED: "held", Use.DIRTY: "resetting",
    Use.QUARANTINED: "quarantined",
}  # fmt: skip


class FrontView:
    def __init__(self, front: PluginProxy) -> None:
        self._front = front

    async def devices(self, after: str) -> Walk[DeviceReport]:
        for one in sorted(self._devices(), key=lambda it: it.name):
            if one.name > after:
                yield one.name, one

    def _devices(self) -> Iterator[DeviceReport]:
        for resource in self._front.resources.values():
            for name, device in resource.devices.items():
                known = resource.record.of(name)
                is_healthy = device.is_healthy and resource.vendor is not None and resource.vendor.is_connected
                state = STATES[known.use] if is_healthy or known.use is Use.QUARANTINED else "unhealthy"
                text = self._message(resource.resource, name, known)
                yield DeviceReport(name=f"{resource.resource}/{name}", state=state, pods=_pods(known), message=text)

    def _message(self, resource: str, device: str, known: FrontDevice) -> str:
        printed = self._front.commands.printed.get(f"{resource}/{device}", "")
        return "; ".join(filter(None, (known.why, printed)))

    async def claims(self, after: str) -> Walk[ClaimReport]:
        """Those are the API server's."""
        for one in NONE:
            yield after, one

    async def cdi(self, after: str) -> Walk[CdiReport]:
        """Those are the kubelet's."""
        for one in NONE:
            yield after, one

    def drivers(self) -> list[DriverReport]:
        return [_report(one) for _, one in sorted(self._front.resources.items())]

    async def explain(self, namespace: str, name: str, *, is_pod: bool) -> ClaimExplanationReport:
        """Raises Refused."""
        del is_pod
        raise Refused("precondition", f"{namespace}/{name} is the scheduler's; kepd gives no devices to pods here")

    async def explain_cdi(self, text: str, runtime: str) -> CdiReport:
        """Raises Refused."""
        del runtime
        raise Refused("precondition", f"{text} is the kubelet's; kepd gives no devices to pods here")

    async def reset(self, name: str) -> None:
        """A device in quarantine, by RESOURCE/DEVICE. Raises Refused."""
        for resource, one in self._front.resources.items():
            if name.startswith(f"{resource}/"):
                await one.reset(name.removeprefix(f"{resource}/"))
                return
        raise Refused("not_found", f"no plugin in front lists {name}; expected RESOURCE/DEVICE")

    async def release(self, uid: str) -> None:
        """Raises Refused."""
        raise Refused("precondition", f"kepd has no claim {uid}; it gives no devices to pods here")

    def count_devices(self) -> Counter[tuple[str, str]]:
        return Counter((one.name.rpartition("/")[0], one.state) for one in self._devices())

    def count_drivers(self) -> Counter[tuple[str, str]]:
        return Counter((one.kind, "away" if one.why_away else "ready") for one in self.drivers())


def _pods(known: FrontDevice) -> tuple[str, ...]:
    return (known.pod,) if known.pod and known.use is Use.USED else ()


def _report(one: FrontResource) -> DriverReport:
    is_there = one.vendor is not None and one.vendor.is_connected
    return DriverReport(
        name=one.resource,
        kind="front",
        versions=(VERSION,),
        endpoints=(one.vendor.endpoint,) if one.vendor is not None else (),
        devices=len(one.devices),
        why_away="" if is_there else f"plugin {one.resource} is away",
    )
