# SPDX-License-Identifier: Apache-2.0
"""The proxy for people: what it did, what it holds, what its kubelet should change."""

from collections.abc import Sequence
from pathlib import Path

from agent.api.errors import FailureReason, not_found
from agent.api.messages import to_message
from agent.api.offers import own
from agent.model.finding import Advice
from agent.model.runtime.proxy_report import HoldReport, MethodReport, ProxyReport
from agent.proxy.gates.kubelet_advice import advise
from agent.proxy.run.plane import ProxyPlane
from agent.proxy.run.state import Hold
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb


class ProxyView:
    def __init__(self, plane: ProxyPlane, socket: Path, link: Path | None) -> None:
        self._plane = plane
        self._socket = socket
        self._link = link

    def report(self) -> ProxyReport:
        plane = self._plane
        methods = [
            MethodReport(
                name=name,
                calls=one.codes.total(),
                failures=one.codes.total() - one.codes["OK"],
                added_p50_s=plane.figures.added.quantile((name,), 0.5),
                added_p99_s=plane.figures.added.quantile((name,), 0.99),
                holds=one.held,
                held_s=one.held_s,
            )
            for name, one in sorted(plane.figures.methods.items())
        ]
        note = self._note()
        return ProxyReport(
            socket=str(self._socket),
            link=str(self._link or ""),
            connections=len(plane.server.links) if plane.server is not None else 0,
            pods=len(plane.state.ledger),
            masks=len(plane.state.masks),
            is_recovered=plane.is_recovered,
            queues_pulls=not note,
            note=note,
            methods=tuple(methods),
            holds=tuple(self.holds()),
        )

    def holds(self) -> Sequence[HoldReport]:
        now_s = self._plane.state.clock.now_s()
        return [_hold(one, now_s) for one in self._plane.state.holds.values()]

    def release(self, hold_id: str) -> bool:
        held_calls = self._plane.held_calls
        return held_calls is not None and held_calls.open_by_hand(hold_id)

    async def advice(self) -> Sequence[Advice]:
        await self._plane.read_kubelet()
        if self._plane.kubelet is None:
            text = "kepd cannot read whether pulls may be queued, so they pass; set proxy.kubeletConfig"
            return [Advice(subject="kubelet", found=self._plane.kubelet_error, wanted="its configuration", text=text)]
        endpoints = tuple(str(path) for path in (self._link, self._socket) if path is not None)
        return advise(self._plane.kubelet, endpoints)

    def _note(self) -> str:
        plane = self._plane
        if not plane.has_pulls:
            return "pulls pass: the images plane does not run in this process"
        if plane.kubelet is None:
            return f"pulls pass: the kubelet's configuration cannot be read: {plane.kubelet_error}"
        if not plane.kubelet.may_hold_pulls:
            return "pulls pass: the kubelet pulls one image at a time; set serializeImagePulls: false"
        return ""


def _hold(hold: Hold, now_s: float) -> HoldReport:
    return HoldReport(
        id=hold.id,
        method=hold.call.path.rpartition("/")[2],
        pod=hold.pod,
        container=hold.container,
        reason=hold.reason,
        waits_for=hold.waits_for,
        held_s=now_s - hold.since_s,
        ends_in_s=None if hold.until_s is None else max(0.0, hold.until_s - now_s),
    )


class CriProxyService:
    def __init__(self, view: ProxyView) -> None:
        self._view = view

        self.offers = {
            "proxy": own("ProxyMethod", lambda _: view.report().methods, lambda method: method.name, self._notes),
            "holds": own("Hold", lambda _: view.holds(), lambda hold: hold.id),
        }

    async def get_proxy(self, _request: pb.GetProxyRequest) -> pb.GetProxyResponse:
        return pb.GetProxyResponse(proxy=to_message(pb.Proxy, self._view.report()))

    def _notes(self) -> list[str]:
        report = self._view.report()
        counts = f"{report.pods} pods with annotations; {report.masks} masked exits"
        lines = [f"{report.connections} connections at {report.link or report.socket}; {counts}"]
        if not report.is_recovered:
            lines.append("the runtime has not reported what runs: all gates are open")
        if report.note:
            lines.append(report.note)
        return lines + [_told_hold(hold) for hold in report.holds]

    async def release_hold(self, request: pb.ReleaseHoldRequest) -> pb.ReleaseHoldResponse:
        if not self._view.release(request.id):
            text = f'no call is held as "{request.id}"; it may have continued by itself'
            raise not_found(FailureReason.NO_SUCH_OBJECT, text)
        return pb.ReleaseHoldResponse()


def _told_hold(hold: HoldReport) -> str:
    whose = " ".join(filter(None, (hold.pod, hold.container))) or "no pod"
    waits = f", waits for {', '.join(hold.waits_for)}" if hold.waits_for else ""
    ends = f", continues in {hold.ends_in_s:.1f} s at the latest" if hold.ends_in_s is not None else ""
    return f"held: {hold.id} {hold.method} of {whose} for {hold.held_s:.1f} s ({hold.reason}{waits}{ends})"
