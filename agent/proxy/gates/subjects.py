# SPDX-License-Identifier: Apache-2.0
"""What a call is about, noted with its request and needed again with its answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.proxy.gates.ledger import LedgerContainer, Sandbox

__all__ = ["ContainerToMake", "ContainerToRemove", "KnownContainer", "Subject"]


@dataclass(frozen=True, slots=True)
class ContainerToMake:
    """CreateContainer: the runtime gives it an id with the answer."""

    sandbox: Sandbox
    name: str
    attempt: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """StartContainer and StopContainer of a pod in the ledger."""

    sandbox: Sandbox
    container: LedgerContainer


@dataclass(frozen=True, slots=True)
class ContainerToRemove:
    """RemoveContainer, of any pod."""

    container_id: str


Subject = Sandbox | ContainerToMake | KnownContainer | ContainerToRemove
"""A sandbox alone: RunPodSandbox, StopPodSandbox and RemovePodSandbox."""
