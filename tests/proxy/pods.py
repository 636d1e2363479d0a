# SPDX-License-Identifier: Apache-2.0
"""Sandboxes as the gates see them, in few words."""

import json
from collections.abc import Mapping

from agent.proxy.gates.annotations import read_annotations
from agent.proxy.gates.ledger import GRACE, PRE_STOP, LedgerContainer, LedgerState, Sandbox

CREATED, RUNNING, EXITED = LedgerState.CREATED, LedgerState.RUNNING, LedgerState.EXITED


def sandbox(notes: Mapping[str, str], *containers: LedgerContainer, made_s: float = 0.0) -> Sandbox:
    """`notes` without their prefix."""
    wishes = read_annotations({f"kepd.dev/{key}": value for key, value in notes.items()})
    assert wishes.faults == ()
    made = Sandbox("s1", "uid1", "default", "pod", wishes, made_s)
    made.containers = {one.id: one for one in containers}
    made.has_started_main = any(one.name in wishes.mains and one.state is not CREATED for one in containers)
    return made


def container(
    name: str,
    state: LedgerState = RUNNING,
    *,
    attempt: int = 0,
    code: int | None = None,
    grace_s: int = 30,
    hook: Mapping[str, object] | None = None,
    is_ready: bool = True,
) -> LedgerContainer:
    notes = {GRACE: str(grace_s)}
    if hook is not None:
        notes[PRE_STOP] = json.dumps(hook)
    return LedgerContainer(f"{name}-{attempt}", name, attempt, state, notes, code, is_ready)
