# SPDX-License-Identifier: Apache-2.0
"""`kepctl get proxy`: calls per method with what was added, and what is held now. `kepctl get holds`: all that is."""

from google.protobuf.duration_pb2 import Duration

from agent.cli.client import Client
from agent.cli.session import CommandFailed
from agent.cli.table import Column, Columns, Listing
from agent.model.exit_codes import NOT_FOUND
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb

SERVICE, IMAGES = "kepd.v1.CriProxyService", "kepd.v1.ImageService"


def _ms(duration: Duration) -> str:
    return f"≤ {duration.ToNanoseconds() / 1e6:g} ms"


def _s(duration: Duration) -> str:
    return f"{duration.ToNanoseconds() / 1e9:.1f} s"


HOLDS = (f"{SERVICE}/ListHolds", f"{IMAGES}/ListPullHolds")
RELEASES = (f"{SERVICE}/ReleaseHold", f"{IMAGES}/ReleasePullHold")
WHY_SIGNS = 80

COLUMNS: Columns[pb.ProxyMethod] = (
    Column("METHOD", lambda one: one.name),
    Column("CALLS", lambda one: str(one.calls)),
    Column("FAILED", lambda one: str(one.failures)),
    Column("ADDED P50", lambda one: _ms(one.added_p50)),
    Column("ADDED P99", lambda one: _ms(one.added_p99)),
    Column("HOLDS", lambda one: str(one.holds)),
    Column("HELD", lambda one: _s(one.held)),
)


HOLD_COLUMNS: Columns[pb.Hold] = (
    Column("ID", lambda one: one.id),
    Column("REASON", lambda one: one.reason),
    Column("HELD", lambda one: _s(one.held)),
    Column("ENDS IN", lambda one: _s(one.ends_in) if one.HasField("ends_in") else "with an event"),
    Column("WHAT", lambda one: " ".join(part for part in (one.method, one.pod, one.container) if part)),
    Column("WAITS FOR", lambda one: ", ".join(one.waits_for)),
    Column("WHY", lambda one: one.why if len(one.why) <= WHY_SIGNS else f"{one.why[:WHY_SIGNS]}…"),
)


def list_holds(daemon: Client) -> Listing[pb.Hold]:
    """Everything that waits because kepd makes it wait: calls of a kubelet, and pulls from a registry that asked for a
    pause."""
    held: list[pb.Hold] = []
    off: list[CommandFailed] = []
    for method in HOLDS:
        try:
            held += daemon.call(method, pb.ListHoldsRequest(), pb.ListHoldsResponse).holds
        except CommandFailed as error:
            # A node may have only one of the two planes.
            off.append(error)
    if len(off) == len(HOLDS):
        raise off[0]
    notes = ["kepctl release hold ID lets one go on"] if held else []
    return Listing("Hold", held, HOLD_COLUMNS, lambda one: f"hold/{one.id}", "nothing is held", notes)


def release_hold(daemon: Client, hold_id: str) -> None:
    """Whoever holds it. Raises CommandFailed where none does."""
    failed: list[CommandFailed] = []
    for method in RELEASES:
        try:
            daemon.call(method, pb.ReleaseHoldRequest(id=hold_id), pb.ReleaseHoldResponse)
        except CommandFailed as error:
            failed.append(error)
    if len(failed) == len(RELEASES):
        raise next((one for one in failed if one.exit_code == NOT_FOUND), failed[0])


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
