# SPDX-License-Identifier: Apache-2.0
"""What the throttle's control socket sees and changes: limits, active faults, recorded requests.

Owns: the choice of the fault that meets a request, and the commands of throttle.py.
Never: touches a connection; throttle_server.py reads this state while it serves. Used by one event loop's thread only.
"""

import asyncio
from collections import deque
from dataclasses import asdict, dataclass, field

from tests.lab.faults import Fault, Request
from tests.lab.pace import Pace

__all__ = ["ActiveFault", "State"]

KEPT_REQUESTS = 20_000


@dataclass(slots=True)
class ActiveFault:
    """A fault that is switched on; `cleared` releases those who hang."""

    fault: Fault
    left: int | None
    cleared: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class State:
    """One throttle's state."""

    upstream_port: int
    per_connection_bytes_s: int | None = None
    total_bytes_s: int | None = None
    faults: dict[int, ActiveFault] = field(default_factory=dict)
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=KEPT_REQUESTS))
    total: Pace = field(default_factory=Pace)
    next_id: int = 1

    def meet(self, request: Request) -> ActiveFault | None:
        """The oldest fault that wants this request; one that is used up stays known until it is cleared."""
        for active in self.faults.values():
            if active.left != 0 and active.fault.meets(request.method, request.path):
                active.left = None if active.left is None else active.left - 1
                request.fault = active.fault.kind
                return active
        return None

    def control(self, command: dict[str, object]) -> object:
        """Carry out one command of throttle.py."""
        match command:
            case {
                "do": "limit",
                "per_connection_bytes_s": int() | None as each,
                "total_bytes_s": int() | None as total,
            }:
                self.per_connection_bytes_s, self.total_bytes_s = each, total
            case {"do": "inject", "fault": dict() as described}:
                fault = Fault(**described)
                self.faults[self.next_id] = ActiveFault(fault, fault.times)
                self.next_id += 1
                return self.next_id - 1
            case {"do": "clear", "id": int() | None as wanted}:
                for number in [wanted] if wanted is not None else list(self.faults):
                    if active := self.faults.pop(number, None):
                        active.cleared.set()
            case {"do": "requests"}:
                return [asdict(request) for request in self.requests]
            case {"do": "forget"}:
                self.requests = deque((r for r in self.requests if r.is_in_flight), maxlen=KEPT_REQUESTS)
            case _:
                raise ValueError(f"unknown command {command}")
        return None
