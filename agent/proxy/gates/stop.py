# SPDX-License-Identifier: Apache-2.0
"""When may a StopContainer go on, and with how much time?

Never: lengthens anything: what was spent here is taken off the time the container gets. Of more than 2 s at least 2 s
remain; less than that is never held. Who ends before whom is the pods plane's answer.
Source: KEP-753 and KEP-3960 are what newer kubelets have instead.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from math import ceil

import msgspec

from agent.proxy.gates.ledger import GRACE, PRE_STOP, LedgerContainer, Sandbox

LEAST_S = 2
# A kubelet sends the stops of a pod in the same millisecond; one that stands alone for this long is no end of a pod.
TOGETHER_S = 1.0
HIDDEN_HOOKS = ("httpGet", "tcpSocket", "sleep")


class StopCall(msgspec.Struct, frozen=True):
    """One StopContainer. For a second one of the same container, `since_s` is when the first one came."""

    container: LedgerContainer
    timeout_s: int
    arrived_s: float
    since_s: float
    budget_end_s: float
    """Until when the first of them, or this one, can be held: the earlier."""


class Forward(msgspec.Struct, frozen=True):
    """It goes on with this timeout. `expired`: the budget ended before those it waited for did."""

    timeout_s: int
    expired: tuple[str, ...] = ()


class HeldStop(msgspec.Struct, frozen=True):
    """Held. `reason` is order, evidence or sleep."""

    reason: str
    waits_for: tuple[str, ...]
    until_s: float


StopVerdict = Forward | HeldStop
# From sidecars in start order and mains: for each container those that must be gone before it is signalled.
StopOrder = Callable[[Sequence[str], Sequence[str]], Mapping[str, frozenset[str]]]


class StopRules(msgspec.Struct, frozen=True):
    """`order` is that of the pods plane, so that a pod ends alike under a kubelet and without one."""

    order: StopOrder
    assumes_hooks: bool = True


def judge_stop(sandbox: Sandbox, stop: StopCall, now_s: float, rules: StopRules) -> StopVerdict:
    """What to do now; asked again at `until_s` and whenever something changed."""
    container, name = stop.container, stop.container.name
    if stop.timeout_s <= LEAST_S or sandbox.is_ending or not container.is_running:
        return Forward(_remaining_s(sandbox, stop, now_s))
    waits_for = _before(sandbox, name, rules.order)
    if waits_for:
        if sandbox.evidence_s is None and not (rules.assumes_hooks and _has_hidden_hook(sandbox)):
            until_s = min(stop.since_s + TOGETHER_S, stop.budget_end_s)
            if now_s < until_s:
                return HeldStop("evidence", waits_for, until_s)
        elif now_s < stop.budget_end_s:
            return HeldStop("order", waits_for, stop.budget_end_s)
        else:
            return Forward(_remaining_s(sandbox, stop, now_s), waits_for)
    until_s = _sleeps_until_s(sandbox, stop, now_s)
    if now_s < until_s:
        return HeldStop("sleep", (), until_s)
    return Forward(_remaining_s(sandbox, stop, now_s))


def note_evidence(sandbox: Sandbox, now_s: float, *, is_known: bool = False) -> None:
    """Is this the end of the pod? Two stops at once say so, and so does a main's hook beside a sidecar's stop.
    `is_known`: who follows the pods of the node says so; then one stop is enough."""
    if sandbox.evidence_s is not None and now_s - sandbox.evidence_s > _grace_s(sandbox) + TOGETHER_S:
        sandbox.evidence_s = None
    if sandbox.evidence_s is not None:
        return
    recent = [at_s for at_s in (*sandbox.stops_s.values(), *sandbox.hooks_s.values()) if now_s - at_s <= TOGETHER_S]
    touched = {one for one, at_s in (*sandbox.stops_s.items(), *sandbox.hooks_s.items()) if now_s - at_s <= TOGETHER_S}
    if len(touched) > 1 or (is_known and touched):
        sandbox.evidence_s = min(recent)


def pre_stop_command(container: LedgerContainer) -> list[str] | None:
    """The command of its preStop hook, as the kubelet wrote it down."""
    handler = _handler(container).get("exec")
    command = handler.get("command") if isinstance(handler, dict) else None
    return command if isinstance(command, list) else None


def _before(sandbox: Sandbox, name: str, order: StopOrder) -> tuple[str, ...]:
    """Who has to be gone before a container is stopped, those that end first named first."""
    sidecars = sandbox.annotated.sidecars
    if name not in sidecars:
        return ()
    mains = sorted({one.name for one in sandbox.running_mains()})
    running = {one.name for one in sandbox.running()}
    waits = order(sidecars, mains).get(name, frozenset()) & running
    return tuple(one for one in (*mains, *reversed(sidecars)) if one in waits)


def _sleeps_until_s(sandbox: Sandbox, stop: StopCall, now_s: float) -> float:
    """A sidecar's sleep begins when its turn comes, and ends with the budget at the latest."""
    wanted_s = sandbox.annotated.sleeps_s.get(stop.container.name, 0.0)
    if not wanted_s or "sleep" in _handler(stop.container):
        return stop.since_s
    begins_s = sandbox.turns_s.get(stop.container.id, now_s)
    return min(begins_s + wanted_s, stop.budget_end_s)


def _remaining_s(sandbox: Sandbox, stop: StopCall, now_s: float) -> int:
    if stop.timeout_s <= LEAST_S:
        return stop.timeout_s
    left_s = max(LEAST_S, stop.timeout_s - ceil(now_s - stop.arrived_s))
    grace_s = _grace_s(sandbox, stop.container)
    if sandbox.evidence_s is None or GRACE not in stop.container.annotations or stop.timeout_s > grace_s:
        return left_s
    # Older kubelets grant the whole grace again after a hook; a pod with annotations of ours has one budget.
    return min(left_s, max(LEAST_S, grace_s - int(now_s - sandbox.evidence_s)))


def _grace_s(sandbox: Sandbox, container: LedgerContainer | None = None) -> int:
    texts = [one.annotations.get(GRACE, "") for one in ([container] if container else sandbox.containers.values())]
    return max((int(text) for text in texts if text.isdecimal()), default=30)


def _has_hidden_hook(sandbox: Sandbox) -> bool:
    """A main has a hook that no call shows, so its stop may come any time after."""
    return any(kind in _handler(one) for one in sandbox.running_mains() for kind in HIDDEN_HOOKS)


def _handler(container: LedgerContainer) -> dict[str, object]:
    try:
        handler = json.loads(container.annotations.get(PRE_STOP, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in handler.items() if value} if isinstance(handler, dict) else {}
