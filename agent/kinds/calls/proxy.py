# SPDX-License-Identifier: Apache-2.0
"""Calls through the CRI proxy, by method, with what it added."""

from google.protobuf.duration_pb2 import Duration

from agent.kinds.calls.holds import seconds_text
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb


def _ms(duration: Duration) -> str:
    return f"≤ {duration.ToNanoseconds() / 1e6:g} ms"


COLUMNS: Columns[pb.ProxyMethod] = (
    Column("METHOD", lambda one: one.name),
    Column("CALLS", lambda one: str(one.calls)),
    Column("FAILED", lambda one: str(one.failures)),
    Column("ADDED P50", lambda one: _ms(one.added_p50)),
    Column("ADDED P99", lambda one: _ms(one.added_p99)),
    Column("HOLDS", lambda one: str(one.holds)),
    Column("HELD", lambda one: seconds_text(one.held)),
)


def _listing(answer: pb.GetProxyResponse) -> AnyListing:
    proxy = answer.proxy
    notes = _notes(proxy)
    none = "; ".join(["no calls yet", *notes])
    return Listing("ProxyMethod", proxy.methods, COLUMNS, lambda one: f"method/{one.name}", none, notes, whole=proxy)


def _notes(proxy: pb.Proxy) -> list[str]:
    counts = f"{proxy.pods} pods with annotations; {proxy.masks} masked exits"
    lines = [f"{proxy.connections} connections at {proxy.link or proxy.socket}; {counts}"]
    if not proxy.is_recovered:
        lines.append("the runtime has not reported what runs: all gates are open")
    if proxy.note:
        lines.append(proxy.note)
    return lines + [_hold(one) for one in proxy.holds]


def _hold(one: pb.Hold) -> str:
    whose = " ".join(part for part in (one.pod, one.container) if part) or "no pod"
    waits = f", waits for {', '.join(one.waits_for)}" if one.waits_for else ""
    ends = f", continues in {seconds_text(one.ends_in)} at the latest" if one.HasField("ends_in") else ""
    return f"held: {one.id} {one.method} of {whose} for {seconds_text(one.held)} ({one.reason}{waits}{ends})"


SHOWN = shown_by("kepd.v1.CriProxyService/GetProxy", pb.GetProxyRequest(), pb.GetProxyResponse, _listing)
