# SPDX-License-Identifier: Apache-2.0
"""Lines of `kepctl explain pod`: how each container ended last, what the runtime said, and what comes next."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from agent.model.finding import printable
from agent.model.pods.container_fields import Env
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.model.pods.state import TERMINATED, WAITING, PodState, Termination
from agent.model.quantity import parse_quantity
from agent.pods.plan.start_steps import WaitingContainer

LONGEST_WORDS = 400
GO = "GOMAXPROCS"


def container_lines(
    pod: PodState, waiting: Sequence[WaitingContainer], policy: str, now_s: float, wall_s: float
) -> Iterator[str]:
    """`now_s` is on the clock of `waiting`, `wall_s` on that of the pod."""
    is_over = pod.phase in ("Succeeded", "Failed")
    is_ending = is_over or pod.is_terminating
    due = {one.name: one.until_s for one in waiting if one.until_s is not None}
    for one in pod.containers:
        if one.state == WAITING and one.message and not is_ending:
            yield f"{one.name}: {one.reason}: {one.message}"
        ended = one.end if one.state == TERMINATED else one.last
        if ended is not None and ended.id:
            yield f"{one.name}: {_told(ended, wall_s)}"
        if is_ending:
            continue
        if one.name in due:
            left_s = max(due[one.name] - now_s, 0.0)
            when = datetime.fromtimestamp(wall_s + left_s, UTC)
            yield f"{one.name}: next it is started again, in {left_s:.0f} s, at {when:%H:%M:%S} UTC"
        elif one.state == TERMINATED and one.kind == "main" and (policy == "Never" or not one.exit_code):
            yield f"{one.name}: it is not started again: restartPolicy is {policy}"
    if is_over:
        ended_how = "All its containers have succeeded" if pod.phase == "Succeeded" else _failure(pod)
        yield f"{ended_how}; it is not tried again, for restartPolicy is {policy}" if not pod.reason else ended_how


def cpu_lines(pod: PodSpec, cpus: int) -> Iterator[str]:
    """Whether a program learns that it may use less than it can count."""
    for one in pod.containers:
        limit = one.fields.resources.limits.get("cpu")
        if limit is None or one.kind is ContainerKind.INIT:
            continue
        told = [each.name for each in one.fields.env if _is_cpu_limit(each)]
        told += [each.name for each in one.fields.env if each.name == GO and each.name not in told]
        if told:
            yield f"{one.name}: may use {limit} CPU, as {' and '.join(told)} tells it"
        elif parse_quantity(str(limit)).milli() < cpus * 1000:
            yield (
                f"{one.name}: may use {limit} CPU, while a program that counts processors finds {cpus}; Go 1.25 and"
                f" newer see the limit, others learn it by env {GO} with valueFrom.resourceFieldRef of limits.cpu"
            )


def _is_cpu_limit(one: Env) -> bool:
    source = one.value_from.resource_field_ref if one.value_from is not None else None
    return source is not None and source.resource == "limits.cpu"


def _told(ended: Termination, wall_s: float) -> str:
    ago = f" {max(wall_s - ended.finished_at_s, 0):.0f} s ago" if ended.finished_at_s else ""
    parts = [f"ended{ago} with exit code {ended.exit_code}" + (f" ({ended.reason})" if ended.reason else "")]
    if 0 < ended.started_at_s <= ended.finished_at_s:
        parts.append(f"after {ended.finished_at_s - ended.started_at_s:.1f} s")
    return ", ".join(parts) + (f": {_words(ended.message)}" if ended.message else "")


def _words(message: str) -> str:
    """On one line, and its end, which is where a program says why it gives up."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= LONGEST_WORDS else f"…{line[-LONGEST_WORDS:]}"


def _failure(pod: PodState) -> str:
    if pod.reason:
        return f"The pod has failed: {pod.reason}"
    bad = [f"{one.name} ({one.exit_code})" for one in pod.containers if one.state == TERMINATED and one.exit_code]
    return f"The pod has failed with {', '.join(bad)}" if bad else "The pod has failed"
