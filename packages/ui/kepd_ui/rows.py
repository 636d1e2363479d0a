# SPDX-License-Identifier: Apache-2.0
"""One object as one line: which columns each panel has, and what stands in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agent.kinds.ages import age_of
from agent.kinds.amounts import rate, size
from agent.kinds.amounts import span as seconds
from agent.kinds.images.pulls import pods_of, stage_line
from agent.kinds.node.events import COLUMNS as EVENT_COLUMNS
from agent.kinds.pods.pod_parts import RUNNING, TERMINATED, containers, created, own, state_of, status_word
from agent.kinds.pods.pods import POD_COLUMNS
from agent.kinds.services.services import COLUMNS as SERVICE_COLUMNS
from agent.kinds.table import FACTS, Object
from kepd_ui.board import STAGES_AT_WORK, key_of
from kepd_ui.cells import Line, Span, cut_line, fit, span

BAR = 20
FAILING = ("CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff")
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
EVENT_CELLS = {column.title: column.cell for column in EVENT_COLUMNS}
SERVICE_CELLS = {column.title: column.cell for column in SERVICE_COLUMNS}
POD_STYLES = {"Running": "green", "Succeeded": "dim", "Completed": "dim", "Pending": "yellow", "Terminating": "yellow"}


def row_of(panel: str, item: Object, look: Look, width: int) -> Line:
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


def text_of(panel: str, item: Object) -> str:
    """What a filter looks into: all that does not change with time."""
    found = (column.spans(item, Look(0.0)) for column in COLUMNS[panel])
    return " ".join(one.text for spans in found for one in spans)


def _age(at: str, look: Look) -> Sequence[Span]:
    return (span(age_of(at, look.now_s), "dim"),) if look.now_s else ()


def _status(pod: Object, _look: Look) -> Sequence[Span]:
    word = status_word(pod)
    is_whole = word != "Running" or all(
        status.get("ready") for kind, status in containers(pod) if kind in ("main", "sidecar")
    )
    style = POD_STYLES.get(word, "yellow" if word.startswith("Init:") and "/" in word else "red")
    return (span(word, style if is_whole else "yellow"),)


def _containers(pod: Object, _look: Look) -> Sequence[Span]:
    """In the order in which they start, then what the pod waits for."""
    spans: list[Span] = []
    before = ""
    for kind, status in containers(pod):
        sign, style = _sign(status)
        step = " › " if spans and (before in ("init", "sidecar")) else " "
        spans += [Span(step if spans else ""), span(status["name"]), Span(sign, style)]
        before = kind
    if waits_for := own(pod, "waitsFor"):
        spans += [Span("  "), span(waits_for, "dim")]
    return spans


def _sign(status: Object) -> tuple[str, str]:
    state, detail = state_of(status)
    if state == TERMINATED:
        return ("✓", "dim") if detail.get("exitCode", 0) == 0 else ("✗", "red")
    if state != RUNNING:
        return ("✗", "red") if detail.get("reason") in FAILING else ("○", "dim")
    return ("●", "green") if status.get("ready") else ("◐", "yellow")


def _plain(cell: Callable[[Any], str]) -> Callable[[Any, Look], Sequence[Span]]:
    return lambda item, _look: (span(cell(item)),)


def _progress(made: Object, _look: Look) -> Sequence[Span]:
    pull = made["status"]
    stage = pull["stage"]
    if stage not in STAGES_AT_WORK:
        style = {"failed": "red", "queued": "yellow"}.get(stage, "dim")
        return (span(stage_line(pull), style),)
    total, eta_s = pull.get("totalBytes"), pull.get("etaSeconds")
    done = min(pull["doneBytes"] / total, 1.0) if total else 0.0
    full = int(done * BAR)
    bar = (Span("━" * full, "green"), Span("─" * (BAR - full), "dim"))
    words = [f"{int(done * 100):3d}%" if total else "", stage_line(pull)]
    if stage == "downloading":
        rough = "~" if pull["isEtaRough"] else ""
        words += [
            f"{size(pull['doneBytes'])} of {size(total or 0)}",
            rate(pull["rateBytesPerSecond"]),
            f"{rough}{seconds(eta_s)} left" if eta_s else "",
        ]
    return (*bar, span(" " + "  ".join(word for word in words if word)))


def _rate(service: Object, look: Look) -> Sequence[Span]:
    found = look.rates.get(key_of(service))
    if found is None:
        return (Span("-", "dim"),)
    return (span(f"{found:.0f}" if found >= 10 or not found else f"{found:.1f}", "bold" if found else "dim"),)


def _service_state(service: Object, _look: Look) -> Sequence[Span]:
    word = SERVICE_CELLS["STATE"](service)
    spans = [span(word, "green" if word == "ok" else "yellow")]
    if findings := service[FACTS]["findings"]:
        spans += [Span("  "), span("; ".join(findings), "yellow")]
    return spans


def _reason(event: Object, _look: Look) -> Sequence[Span]:
    return (span(event["reason"], "red" if event["type"] == "Warning" else ""),)


def _object(event: Object) -> str:
    facts = event[FACTS]
    return f"{facts['namespace']}/{facts['objectName']}" if facts["objectName"] else "node"


COLUMNS: Mapping[str, Sequence[PanelColumn]] = {
    "pods": (
        PanelColumn("NAMESPACE", 12, _plain(POD_CELLS["NAMESPACE"])),
        PanelColumn("NAME", 28, _plain(POD_CELLS["NAME"])),
        PanelColumn("READY", 5, _plain(POD_CELLS["READY"])),
        PanelColumn("STATUS", 18, _status),
        PanelColumn("RESTARTS", 8, _plain(POD_CELLS["RESTARTS"])),
        PanelColumn("AGE", 5, lambda pod, look: _age(created(pod), look)),
        PanelColumn("CONTAINERS", 0, _containers),
    ),
    "pulls": (
        PanelColumn("IMAGE", 42, _plain(lambda pull: pull["status"]["image"])),
        PanelColumn("FOR", 22, _plain(pods_of)),
        PanelColumn("PROGRESS", 0, _progress),
    ),
    "services": (
        PanelColumn("NAMESPACE", 12, _plain(SERVICE_CELLS["NAMESPACE"])),
        PanelColumn("NAME", 28, _plain(SERVICE_CELLS["NAME"])),
        PanelColumn("TYPE", 12, _plain(SERVICE_CELLS["TYPE"])),
        PanelColumn("CLUSTER-IP", 16, _plain(SERVICE_CELLS["CLUSTER-IP"])),
        PanelColumn("PORTS", 20, _plain(SERVICE_CELLS["PORTS"])),
        PanelColumn("USED", 7, _plain(SERVICE_CELLS["USED"])),
        PanelColumn("CONN/S", 7, _rate),
        PanelColumn("STATE", 0, _service_state),
    ),
    "events": (
        PanelColumn("SEEN", 5, lambda event, look: _age(event["lastTimestamp"] or "", look)),
        PanelColumn("REASON", 20, _reason),
        PanelColumn("OBJECT", 32, _plain(_object)),
        PanelColumn("MESSAGE", 0, _plain(EVENT_CELLS["MESSAGE"])),
    ),
}
