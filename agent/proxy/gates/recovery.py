# SPDX-License-Identifier: Apache-2.0
"""From the runtime's lists to the ledger: what a proxy knows that has just started (REC-1, REC-2).

Exit codes are in no list; the caller asks for those it needs.
"""

from collections.abc import Sequence

from agent.proxy.gates.annotations import read_annotations
from agent.proxy.gates.ledger import Ledger, LedgerContainer, LedgerState, Sandbox
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["drop_absent", "merge", "rebuild"]

NANO = 1e-9
STATES = {
    pb.CONTAINER_CREATED: LedgerState.CREATED,
    pb.CONTAINER_RUNNING: LedgerState.RUNNING,
    pb.CONTAINER_EXITED: LedgerState.EXITED,
    pb.CONTAINER_UNKNOWN: LedgerState.EXITED,
}


def rebuild(
    ledger: Ledger, sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container], epoch_s: float
) -> None:
    """Fill an empty ledger. `epoch_s` is the wall time of monotonic zero."""
    for one in sandboxes:
        annotated = read_annotations(one.annotations)
        if annotated.is_empty:
            continue
        meta = one.metadata
        made_s = one.created_at * NANO - epoch_s
        sandbox = Sandbox(one.id, meta.uid, meta.namespace, meta.name, annotated, made_s)
        sandbox.is_ending = one.state != pb.SANDBOX_READY
        ledger.put(sandbox)
    merge(ledger, containers)


def drop_absent(ledger: Ledger, sandboxes: Sequence[pb.PodSandbox]) -> None:
    """Forget sandboxes that were removed behind our back."""
    present = {one.id for one in sandboxes}
    for sandbox_id in [one for one in ledger.sandboxes if one not in present]:
        ledger.remove_sandbox(sandbox_id)


def merge(ledger: Ledger, containers: Sequence[pb.Container]) -> list[str]:
    """Bring a ledger up to date with a list; answers with the sandboxes in which something changed."""
    changed = set()
    present = {one.id for one in containers}
    for sandbox, known in list(ledger.containers()):
        if known.id not in present:
            ledger.remove_container(known.id)
            changed.add(sandbox.id)
    for one in containers:
        home = ledger.sandboxes.get(one.pod_sandbox_id)
        if home is None:
            continue
        state = STATES.get(one.state, LedgerState.EXITED)
        container = home.containers.get(one.id)
        if container is None:
            container = LedgerContainer(one.id, one.metadata.name, one.metadata.attempt, state, dict(one.annotations))
            ledger.add(home, container)
            changed.add(home.id)
        elif container.state is not state:
            container.state = state
            changed.add(home.id)
        if state is not LedgerState.CREATED and container.name in home.annotated.mains:
            home.has_started_main = True
    return sorted(changed)
