# SPDX-License-Identifier: Apache-2.0
"""`kepctl get proxy`: calls per method with what was added, and what is held now."""

from google.protobuf.duration_pb2 import Duration

from agent.cli.client import Client
from agent.cli.table import Column, Columns, Listing
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb

SERVICE = "kepd.v1.CriProxyService"


def _ms(duration: Duration) -> str:
    return f"≤ {duration.ToNanoseconds() / 1e6:g} ms"


def _s(duration: Duration) -> str:
    return f"{duration.ToNanoseconds() / 1e9:.1f} s"


COLUMNS: Columns[pb.ProxyMethod] = (
    Column("METHOD", lambda one: one.name),
    Column("CALLS", lambda one: str(one.calls)),
    Column("FAILED", lambda one: str(one.failures)),
    Column("ADDED P50", lambda one: _ms(one.added_p50)),
    Column("ADDED P99", lambda one: _ms(one.added_p99)),
    Column("HOLDS", lambda one: str(one.holds)),
    Column("HELD", lambda one: _s(one.held)),
)


def list_proxy(daemon: Client) -> Listing[pb.ProxyMethod]:
    proxy = daemon.call(f"{SERVICE}/GetProxy", pb.GetProxyRequest(), pb.GetProxyResponse).proxy
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
    ends = f", continues in {_s(one.ends_in)} at the latest" if one.HasField("ends_in") else ""
    return f"held: {one.id} {one.method} of {whose} for {_s(one.held)} ({one.reason}{waits}{ends})"
