# SPDX-License-Identifier: Apache-2.0
"""Lists the endpoints of one slice for those of its ports that a Service has.

Made on demand and kept as long as the slice stays the same: one object of 160 KiB may hold three million pairs that are
never needed (SY-12).
"""

from agent.model.service import Backend, PortKey, SliceFacts
from agent.services.objects.addresses import endpoint_key

_PORT_BYTES = 4


class SlicePorts:
    """One slice with several ports. Most have one, and need none of this."""

    __slots__ = ("_made", "_numbers", "facts")

    def __init__(self, facts: SliceFacts) -> None:
        self.facts = facts
        self._numbers: dict[PortKey, tuple[int, ...]] | None = None
        self._made: dict[int, tuple[Backend, ...]] | None = None

    def numbers(self, port: PortKey) -> tuple[int, ...]:
        """What the slice says for this port; almost always one number or none."""
        if self._numbers is None:
            self._numbers = {}
            for key, number in self.facts.ports:
                self._numbers[key] = (*self._numbers.get(key, ()), number)
        return self._numbers.get(port, ())

    def backends(self, port: PortKey) -> list[tuple[Backend, ...]]:
        return [self._with(number) for number in self.numbers(port)]

    def _with(self, number: int) -> tuple[Backend, ...]:
        if number == self.facts.ports[0][1]:
            return self.facts.endpoints
        if self._made is None:
            self._made = {}
        if number not in self._made:
            tail = number.to_bytes(2, "big") + bytes(2)
            self._made[number] = tuple([_moved(one, number, tail) for one in self.facts.endpoints])
        return self._made[number]


def _moved(one: Backend, number: int, tail: bytes) -> Backend:
    return Backend(
        endpoint_key(one.address, number),
        one.data[:-_PORT_BYTES] + tail,
        one.node,
        one.is_ready,
        one.is_serving,
        one.is_terminating,
        one.zones,
        one.nodes,
    )
