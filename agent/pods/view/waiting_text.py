# SPDX-License-Identifier: Apache-2.0
"""One line that says what a pod waits for."""

from collections.abc import Iterable, Sequence

from agent.pods.plan.start import WaitingContainer
from agent.pods.plan.stop import blockers_of, kill_time_s
from agent.pods.plan.stop_state import ContainerEnding, HookPhase, Stop
from agent.pods.plan.work import EndingAlone, Launching, MakingSandbox, Work


def why_starting(waiting: Sequence[WaitingContainer], works: Iterable[Work], problem: str, now_s: float) -> str:
    parts = [problem] if problem else []
    for work in works:
        match work:
            case Launching(name) if not problem:
                parts.append(f"{name} to start")
            case EndingAlone(name):
                parts.append(f"{name} to end")
            case MakingSandbox():
                parts.append("its sandbox")
            case _:
                pass
    for one in waiting:
        if one.why == "activeDeadlineSeconds" or (problem and not one.name):
            continue
        left = f", again in {max(one.until_s - now_s, 0):.0f} s" if one.until_s is not None else ""
        parts.append(f"{one.name}: {one.why}{left}" if one.name else f"{one.why}{left}")
    return "; ".join(dict.fromkeys(parts))


def why_stopping(stop: Stop, now_s: float) -> str:
    parts = [text for one in stop.containers if (text := _why(stop, one, now_s))]
    left_s = stop.deadline_s - now_s
    parts.append(f"{left_s:.0f} s of its grace left" if left_s > 0 else "its grace is over")
    return "; ".join(parts)


def _why(stop: Stop, one: ContainerEnding, now_s: float) -> str:
    if one.is_starting:
        return f"{one.name} to be restarted, others need it"
    if not one.is_running:
        return ""
    if one.hook_phase is HookPhase.RUNNING:
        return f"preStop hook of {one.name}, running for {now_s - (one.hook_began_s or now_s):.0f} s"
    if one.killed_s is not None:
        return f"{one.name} to be killed"
    if one.signalled_s is not None:
        return f"{one.name} to end, killed in {max(kill_time_s(stop, one) - now_s, 0):.0f} s"
    blockers = blockers_of(stop, one.name)
    return f"{one.name}'s turn after {', '.join(blockers)}" if blockers else ""
