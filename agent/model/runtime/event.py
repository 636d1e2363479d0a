# SPDX-License-Identifier: Apache-2.0
"""News from the container runtime, the same whether CRI, containerd or a comparison of lists brought it."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol

import msgspec


class EventKind(StrEnum):
    """What happened. OOM: the kernel killed a process of a container for want of memory. LOST means that events may
    have been missed: look at everything once."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"
    OOM = "oom"
    LOST = "lost"


class RuntimeEvent(msgspec.Struct, frozen=True):
    """One change of one container or sandbox. `sandbox_id` is empty where the source does not know it."""

    kind: EventKind
    container_id: str = ""
    sandbox_id: str = ""
    exit_code: int | None = None


class RuntimeEvents(Protocol):
    def listen(self) -> AsyncIterator[RuntimeEvent]: ...
