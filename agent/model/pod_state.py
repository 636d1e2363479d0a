# SPDX-License-Identifier: Apache-2.0
"""A pod as it is, for those who look: phase, address, containers.

Owns: the values, and how phase follows from containers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ContainerState", "PodState", "phase_of"]

WAITING = "Waiting"
RUNNING = "Running"
TERMINATED = "Terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One container."""

    name: str
    image: str
    id: str = ""
    state: str = WAITING
    reason: str = ""
    exit_code: int = 0
    started_at_s: float = 0.0
    restart_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod."""

    namespace: str
    name: str
    uid: str
    phase: str
    message: str = ""
    ip: str = ""
    sandbox_id: str = ""
    created_at_s: float = 0.0
    containers: tuple[ContainerState, ...] = ()


def phase_of(containers: Sequence[ContainerState]) -> str:
    """Pending until all have started; then Running, Succeeded or Failed, as Kubernetes counts."""
    states = {container.state for container in containers}
    if WAITING in states or not containers:
        return "Pending"
    if RUNNING in states:
        return "Running"
    return "Failed" if any(container.exit_code for container in containers) else "Succeeded"
