# SPDX-License-Identifier: Apache-2.0
"""May this container be made, or started, now? Mains after sidecars, sidecars one after another.

A wait that it asks for ends by itself, because a kubelet does not give up a call when its pod is deleted.
Source: KEP-753 is what a newer kubelet has instead.
"""

import msgspec

from agent.proxy.gates.ledger import LedgerState, Sandbox

# After this long a sidecar that never came is taken for a typo.
OPENS_S = 300.0
# Before the kubelet gives the call up, this much is left for the call itself.
LEFT_FOR_CALL_S = 15.0


class Go(msgspec.Struct, frozen=True):
    """It passes. `opened`: only because the gate gave up waiting for this sidecar."""

    opened: str = ""


class StartRefused(msgspec.Struct, frozen=True):
    """Refused: the kubelet is to go on with its next container and come again."""

    waits_for: str

    @property
    def text(self) -> str:
        return f"kepd: waiting for sidecar {self.waits_for}"


class HeldStart(msgspec.Struct, frozen=True):
    """Held until the sidecars are ready, or until then."""

    waits_for: tuple[str, ...]
    until_s: float


StartVerdict = Go | StartRefused | HeldStart


def judge_create(sandbox: Sandbox, name: str, now_s: float, arrived_s: float, deadline_s: float | None) -> StartVerdict:
    """For CreateContainer, now; asked again whenever something changed while it is held."""
    annotated = sandbox.annotated
    if sandbox.is_ending or not annotated.mains or not annotated.sidecars:
        return Go()
    is_overdue = not annotated.is_strict and now_s - sandbox.made_s >= OPENS_S
    if name in annotated.sidecars:
        before = annotated.sidecars[: annotated.sidecars.index(name)]
        absent = next((one for one in before if sandbox.current(one) is None), None)
        return Go() if absent is None else Go(absent) if is_overdue else StartRefused(absent)
    if name not in annotated.mains or sandbox.has_started_main:
        return Go()
    broken = next((one for one in annotated.sidecars if not _may_become_ready(sandbox, one)), None)
    if broken is not None:
        return Go(broken) if is_overdue else StartRefused(broken)
    unready = _unready(sandbox)
    if not unready:
        return Go()
    until_s = _until_s(sandbox, arrived_s, deadline_s)
    if now_s < until_s:
        return HeldStart(unready, until_s)
    return StartRefused(unready[0]) if annotated.is_strict else Go(unready[0])


def judge_start(
    sandbox: Sandbox, name: str, now_s: float, arrived_s: float, deadline_s: float | None
) -> Go | HeldStart:
    """For StartContainer: a refusal would leave a container behind each time, so this waits at most."""
    annotated = sandbox.annotated
    if sandbox.is_ending or name not in annotated.mains or not annotated.sidecars or sandbox.has_started_main:
        return Go()
    if not all(_may_become_ready(sandbox, one) for one in annotated.sidecars):
        # The kubelet, which would have to restart it, waits for this very call.
        return Go()
    unready = _unready(sandbox)
    until_s = _until_s(sandbox, arrived_s, deadline_s)
    if not unready:
        return Go()
    return HeldStart(unready, until_s) if now_s < until_s else Go(unready[0])


def _until_s(sandbox: Sandbox, arrived_s: float, deadline_s: float | None) -> float:
    until_s = arrived_s + sandbox.annotated.start_timeout_s
    return until_s if deadline_s is None else min(until_s, deadline_s - LEFT_FOR_CALL_S)


def _may_become_ready(sandbox: Sandbox, name: str) -> bool:
    """Whether only time is missing: it runs. Anything else takes the kubelet, which waits for us."""
    current = sandbox.current(name)
    return current is not None and current.state is LedgerState.RUNNING


def _unready(sandbox: Sandbox) -> tuple[str, ...]:
    annotated = sandbox.annotated
    current = ((name, sandbox.current(name)) for name in annotated.sidecars)
    return tuple(
        name
        for name, one in current
        if one is not None and not one.is_ready and annotated.ready_of(name).kind != "started"
    )
