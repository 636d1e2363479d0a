# SPDX-License-Identifier: Apache-2.0
"""One object as one line: which columns each panel has, and what stands in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from agent.kinds.ages import age_of
from agent.kinds.amounts import rate, size
from agent.kinds.amounts import span as seconds
from agent.kinds.images.pulls import stage_line
from agent.kinds.pods.pods import POD_COLUMNS
from agent.kinds.services.services import COLUMNS as SERVICE_COLUMNS
from agent.wire.kepd.v1 import image_pb2, node_pb2, pod_pb2, service_proxy_pb2
from kepd_ui.board import STAGES_AT_WORK, key_of
from kepd_ui.cells import Line, Span, cut_line, fit, span

BAR = 20
ORDER = ("init", "sidecar", "main", "ephemeral")
ORDER_LEGEND = "○ waits  ◐ runs  ● ready  ✓ done  ✗ failed"


class PanelColumn(msgspec.Struct, frozen=True):
    """`width` 0: all that is left. `spans` makes the cell; the other columns have one span of exactly their width."""

    title: str
    width: int
    spans: Callable[[Any, "Look"], Sequence[Span]]


class Look(msgspec.Struct, frozen=True):
    """What rows are made with, beside their object."""

    now_s: float
    rates: Mapping[str, float] = {}


POD_CELLS = {column.title: column.cell for column in POD_COLUMNS}
SERVICE_CELLS = {column.title: column.cell for column in SERVICE_COLUMNS}
POD_STYLES = {"Running": "green", "Succeeded": "dim", "Completed": "dim", "Pending": "yellow", "Terminating": "yellow"}


def row_of(panel: str, item: Any, look: Look, width: int) -> Line:  # noqa: ANN401  # a message of the panel
    cells: list[Span] = []
    for column in COLUMNS[panel]:
        found = column.spans(item, look)
        if column.width:
            text, style = "".join(one.text for one in found), next((one.style for one in found), "")
            cells += [Span(fit(text, column.width), style), Span("  ")]
        else:
            cells += found
    return cut_line(cells, width)


def titles_of(panel: str, width: int) -> Line:
    text = "".join(f"{fit(one.title, one.width)}  " if one.width else one.title for one in COLUMNS[panel])
    return cut_line([Span(text, "dim")], width)


def text_of(panel: str, item: Any) -> str:  # noqa: ANN401  # a message of the panel
    """What a filter looks into: all that does not change with time."""
    found = (column.spans(item, Look(0.0)) for column in COLUMNS[panel])
    return " ".join(one.text for spans in found for one in spans)


def _age(stamp: Timestamp, look: Look) -> Sequence[Span]:
    return (span(age_of(stamp, look.now_s), "dim"),) if look.now_s else ()


def _status(pod: pod_pb2.Pod, _look: Look) -> Sequence[Span]:
    word = POD_CELLS["STATUS"](pod)
    is_whole = word != "Running" or all(one.ready for one in pod.containers if one.kind in ("main", "sidecar"))
    style = POD_STYLES.get(word, "yellow" if word.startswith("Init:") and "/" in word else "red")
    return (span(word, style if is_whole else "yellow"),)


def _containers(pod: pod_pb2.Pod, _look: Look) -> Sequence[Span]:
    """In the order in which they start, then what the pod waits for."""
    spans: list[Span] = []
    kind = ""
    for one in sorted(pod.containers, key=lambda one: ORDER.index(one.kind) // 2 if one.kind in ORDER else 1):
        sign, style = _sign(one)
        step = " › " if spans and (kind in ("init", "sidecar")) else " "
        spans += [Span(step if spans else ""), span(one.name), Span(sign, style)]
        kind = one.kind
    if pod.waits_for:
        spans += [Span("  "), span(pod.waits_for, "dim")]
    return spans


def _sign(one: pod_pb2.Container) -> tuple[str, str]:
    if one.state == "Terminated":
        return ("✓", "dim") if one.exit_code == 0 else ("✗", "red")
    if one.state != "Running":
        return ("✗", "red") if one.reason in ("CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff") else ("○", "dim")
    return ("●", "green") if one.ready else ("◐", "yellow")


def _plain(cell: Callable[[Any], str]) -> Callable[[Any, Look], Sequence[Span]]:
    return lambda item, _look: (span(cell(item)),)


def _progress(pull: image_pb2.Pull, _look: Look) -> Sequence[Span]:
    if pull.stage not in STAGES_AT_WORK:
        style = {"failed": "red", "queued": "yellow"}.get(pull.stage, "dim")
        return (span(stage_line(pull), style),)
    done = min(pull.done_bytes / pull.total_bytes, 1.0) if pull.total_bytes else 0.0
    full = int(done * BAR)
    bar = (Span("━" * full, "green"), Span("─" * (BAR - full), "dim"))
    words = [f"{int(done * 100):3d}%" if pull.total_bytes else "", stage_line(pull)]
    if pull.stage == "downloading":
        rough = "~" if pull.is_eta_rough else ""
        words += [
            f"{size(pull.done_bytes)} of {size(pull.total_bytes)}",
            rate(pull.rate_bytes_per_second),
            f"{rough}{seconds(pull.eta_seconds)} left" if pull.eta_seconds else "",
        ]
    return (*bar, span(" " + "  ".join(word for word in words if word)))


def _requesters(pull: image_pb2.Pull, _look: Look) -> Sequence[Span]:
    return (span(", ".join(sorted({f"{one.namespace}/{one.pod}" for one in pull.requesters if one.pod}))),)


def _rate(service: service_proxy_pb2.Service, look: Look) -> Sequence[Span]:
    found = look.rates.get(key_of("services", service))
    if found is None:
        return (Span("-", "dim"),)
    return (span(f"{found:.0f}" if found >= 10 or not found else f"{found:.1f}", "bold" if found else "dim"),)


def _service_state(service: service_proxy_pb2.Service, _look: Look) -> Sequence[Span]:
    word = SERVICE_CELLS["STATE"](service)
    spans = [span(word, "green" if word == "ok" else "yellow")]
    if service.findings:
        spans += [Span("  "), span("; ".join(service.findings), "yellow")]
    return spans


def _what(event: node_pb2.Event, _look: Look) -> Sequence[Span]:
    text = f"{event.message} (x{event.count})" if event.count > 1 else event.message
    return (span(text),)


def _reason(event: node_pb2.Event, _look: Look) -> Sequence[Span]:
    return (span(event.reason, "red" if event.type == "Warning" else ""),)


def _object(event: node_pb2.Event) -> str:
    return f"{event.namespace}/{event.object_name}" if event.object_name else "node"


COLUMNS: Mapping[str, Sequence[PanelColumn]] = {
    "pods": (
        PanelColumn("NAMESPACE", 12, _plain(lambda pod: pod.namespace)),
        PanelColumn("NAME", 28, _plain(lambda pod: pod.name)),
        PanelColumn("READY", 5, _plain(POD_CELLS["READY"])),
        PanelColumn("STATUS", 18, _status),
        PanelColumn("RESTARTS", 8, _plain(POD_CELLS["RESTARTS"])),
        PanelColumn("AGE", 5, lambda pod, look: _age(pod.created_at, look)),
        PanelColumn("CONTAINERS", 0, _containers),
    ),
    "pulls": (
        PanelColumn("IMAGE", 42, _plain(lambda pull: pull.image)),
        PanelColumn("FOR", 22, _requesters),
        PanelColumn("PROGRESS", 0, _progress),
    ),
    "services": (
        PanelColumn("NAMESPACE", 12, _plain(lambda one: one.namespace)),
        PanelColumn("NAME", 28, _plain(lambda one: one.name)),
        PanelColumn("TYPE", 12, _plain(lambda one: one.type)),
        PanelColumn("CLUSTER-IP", 16, _plain(SERVICE_CELLS["CLUSTER-IP"])),
        PanelColumn("PORTS", 20, _plain(SERVICE_CELLS["PORTS"])),
        PanelColumn("USED", 7, _plain(SERVICE_CELLS["USED"])),
        PanelColumn("CONN/S", 7, _rate),
        PanelColumn("STATE", 0, _service_state),
    ),
    "events": (
        PanelColumn("SEEN", 5, lambda event, look: _age(event.last_seen, look)),
        PanelColumn("REASON", 20, _reason),
        PanelColumn("OBJECT", 32, _plain(_object)),
        PanelColumn("MESSAGE", 0, _what),
    ),
}
