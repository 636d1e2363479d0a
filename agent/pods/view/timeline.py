# SPDX-License-Identifier: Apache-2.0
"""The picture of a pod: what happened as bars and marks, one row per container, and the budget of its end.

The same picture is made from what happened and from what would happen; kepctl draws it as text or SVG.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from agent.pods.plan.remembered import Moment
from agent.pods.view.forecast import Happening

# What begins a bar, what ends it, and what the bar is called.
SPANS = {
    "pull_started": ("pull", ("pull_finished", "pull_failed")),
    "poststart_start": ("postStart", ("poststart_end", "exit")),
    "prestop_start": ("preStop", ("prestop_end", "exit")),
    "stop_signal": ("stopping", ("exit",)),
    "started": ("running", ("exit",)),
    "restart": ("running", ("exit",)),
}
MARKS = {
    "ready": "ready",
    "unready": "unready",
    "probe_failed": "probe failed",
    "probe_started": "started",
    "stop_signal": "signal",
    "sigkill": "SIGKILL",
    "exit": "exit",
    "restart": "restart",
    "created": "created",
    "sandbox_made": "sandbox",
    "sandbox_stop": "sandbox stopped",
    "stop_began": "end begins",
    "stop_shortened": "grace shortened",
    "pod_started": "all started",
}
ORDER = ("running", "pull", "postStart", "stopping", "preStop")
PULL_ENDS = ("pull_finished", "pull_failed")


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    begin_s: float
    end_s: float
    is_open: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    at_s: float
    text: str = ""


class PictureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One container, or the pod where `name` is empty."""

    name: str
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds after `origin_s`, which is wall time. `budgets` are (begin, deadline) of ends."""

    origin_s: float = 0.0
    end_s: float = 0.0
    rows: tuple[PictureRow, ...] = ()
    budgets: tuple[tuple[float, float], ...] = msgspec.field(default=())


def draw_picture(moments: Sequence[Moment], containers: Sequence[str], now_s: float) -> Picture:
    """From moments, oldest first; what has not ended lasts until `now_s`."""
    if not moments:
        return Picture(origin_s=now_s)
    origin_s = moments[0].at_s
    end_s = max(now_s, moments[-1].at_s) - origin_s
    names = dict.fromkeys(("", *containers, *(one.container for one in moments)))
    rows = tuple(_row(name, [one for one in moments if one.container == name], origin_s, end_s) for name in names)
    budgets = _budgets(moments, origin_s)
    longest_s = max((end for _, end in budgets), default=end_s)
    return Picture(
        origin_s=origin_s,
        end_s=max(end_s, min(longest_s, end_s * 2)),
        rows=tuple(row for row in rows if row.bars or row.marks),
        budgets=tuple(budgets),
    )


def _budgets(moments: Sequence[Moment], origin_s: float) -> list[tuple[float, float]]:
    """Of ends of the whole pod; a later request only shortens."""
    budgets: list[tuple[float, float]] = []
    for one in moments:
        at_s = one.at_s - origin_s
        if one.kind == "stop_began" and not one.container:
            budgets.append((at_s, at_s + one.seconds))
        elif one.kind == "stop_shortened" and budgets:
            begin_s, end_s = budgets[-1]
            budgets[-1] = (begin_s, min(end_s, at_s + one.seconds))
    return budgets


def _row(name: str, moments: Sequence[Moment], origin_s: float, end_s: float) -> PictureRow:
    bars = []
    for place, one in enumerate(moments):
        span = SPANS.get(one.kind)
        if span is None:
            continue
        kind, ends = span
        ended = next((later for later in moments[place + 1 :] if later.kind in ends), None)
        begin_s = one.at_s - origin_s
        if one.kind == "started":
            begin_s -= min(one.seconds, begin_s)
        bars.append(
            Bar(
                kind=kind,
                begin_s=begin_s,
                end_s=ended.at_s - origin_s if ended is not None else end_s,
                is_open=ended is None,
            )
        )
    marks = tuple(
        Mark(kind=MARKS[one.kind], at_s=one.at_s - origin_s, text=one.text) for one in moments if one.kind in MARKS
    )
    return PictureRow(name=name, bars=tuple(sorted(bars, key=lambda bar: ORDER.index(bar.kind))), marks=marks)


def moments_of_forecast(
    happenings: Iterable[Happening], running: Iterable[str], grace_s: float, lead_s: float = 0.0
) -> list[Moment]:
    """What would happen, as if it had: the containers run from the beginning, which is `lead_s` before the end's."""
    moments = [Moment(at_s=0.0, kind="started", container=name) for name in running]
    moments.append(Moment(at_s=lead_s, kind="stop_began", text="planned", seconds=grace_s))
    for one in happenings:
        text = str(one.result) if one.result else "" if one.code is None else str(one.code)
        moments.append(Moment(at_s=lead_s + one.at_s, kind=one.event, container=one.container, text=text))
    return moments


def own_start_s(moments: Sequence[Moment], inits: Collection[str], began_s: float, started_s: float) -> float:
    """What passes at once is left out once. A beginning whose moment is forgotten began when the pod was seen."""
    spans = [*_spans(moments, "pull_started", PULL_ENDS, None), *_spans(moments, "started", ("exit",), inits)]
    left_out_s, until_s = 0.0, began_s
    for begin_s, end_s in sorted(spans):
        first_s, last_s = max(begin_s, until_s), min(end_s, started_s)
        if last_s > first_s:
            left_out_s, until_s = left_out_s + last_s - first_s, last_s
    return max(started_s - began_s - left_out_s, 0.0)


def _spans(
    moments: Iterable[Moment], begin: str, ends: Collection[str], of: Collection[str] | None
) -> list[tuple[float, float]]:
    begun: dict[str, float] = {}
    found = []
    for one in moments:
        if of is not None and one.container not in of:
            continue
        if one.kind == begin:
            begun[one.container] = one.at_s
        elif one.kind in ends and one.container in begun:
            found.append((begun.pop(one.container), one.at_s))
    return found
