# SPDX-License-Identifier: Apache-2.0
"""Sidecars of a pod whose work is done: when they are ended, and which exits look like success from then on.

Never: masks a container that ended before we touched it.
"""

from collections.abc import Iterable

import msgspec

from agent.model.text.json_text import decode_json
from agent.proxy.gates.annotations import ON_SUCCESS
from agent.proxy.gates.ledger import GRACE, LedgerContainer, LedgerState, Sandbox

DEFAULT_GRACE_S = 30


class Masks(msgspec.Struct, frozen=True):
    """Containers whose exit is shown as a success, and the sandbox of each."""

    version: int = 1
    containers: dict[str, str] = {}


def sidecars_to_end(sandbox: Sandbox) -> tuple[LedgerContainer, ...]:
    """Those that run though all mains are done, the last one first; empty while there is work."""
    annotated = sandbox.annotated
    if not annotated.job_end or sandbox.is_ending:
        return ()
    for name in annotated.mains:
        current = sandbox.current(name)
        if current is None or current.state is not LedgerState.EXITED:
            return ()
        if annotated.job_end == ON_SUCCESS and current.exit_code != 0:
            return ()
    found = (sandbox.current(name) for name in reversed(annotated.sidecars))
    return tuple(one for one in found if one is not None and one.is_running)


def grace_of(container: LedgerContainer) -> int:
    """How long it may take to end, as its pod says."""
    text = container.annotations.get(GRACE, "")
    return int(text) if text.isdecimal() else DEFAULT_GRACE_S


def read_masks(content: bytes | None) -> dict[str, str]:
    """What lies on the disk. Raises msgspec.MsgspecError for a foreign file."""
    return dict(decode_json(content, Masks).containers) if content else {}


def written_masks(masks: dict[str, str]) -> bytes:
    return msgspec.json.encode(Masks(containers=masks))


def still_needed(masks: dict[str, str], present: Iterable[str]) -> dict[str, str]:
    """The masks that are still of use."""
    alive = set(present)
    return {container_id: home for container_id, home in masks.items() if container_id in alive}
