# SPDX-License-Identifier: Apache-2.0
"""Lists the endpoints of one slice for those of its ports that a Service has.

Made on demand and kept as long as the slice stays the same: one object of 160 KiB may hold three million pairs that are
never needed.
"""

from agent.model.services.service import Backend, PortKey, SliceFacts
from agent.services.objects.addresses import endpoint_key

_PORT_BYTES = 4


class SlicePorts:
    """One slice with several ports. Most have one, and need none of this."""

    __slots__ = ("_before", "_kept", "_numbers", "facts", "made")

    def __init__(self, facts: SliceFacts) -> None:
        self.facts = facts
        self._numbers: dict[PortKey, tuple[int, ...]] | None = None
        self.made: dict[int, tuple[Backend, ...]] | None = None
        self._before: dict[int, tuple[Backend, ...]] = {}
        self._kept: list[int] = []

    def numbers(self, port: PortKey) -> tuple[int, ...]:
        """What the slice says for this port; almost always one number or none."""
        if self._numbers is None:
            self._numbers = {}
            for key, number in self.facts.ports:
                self._numbers[key] = (*self._numbers.get(key, ()), number)
        return self._numbers.get(port, ())

    def backends(self, port: PortKey) -> list[tuple[Backend, ...]]:
        return [self._with(number) for number in self.numbers(port)]

    def take_over(self, before: "SlicePorts") -> None:
        """Pairs that were asked for of the slice as it was, of endpoints that stay as they were: of
        thousands one or two change."""
        if before.made is None or not self.facts.ports or before.facts.ports[0] != self.facts.ports[0]:
            return
        olds = before.facts.endpoints
        places = {one.key: place for place, one in enumerate(olds)}
        found = [places.get(one.key, -1) for one in self.facts.endpoints]
        pairs = zip(found, self.facts.endpoints, strict=True)
        self._kept = [place if place >= 0 and olds[place] is one else -1 for place, one in pairs]
        self._before = before.made

    def _with(self, number: int) -> tuple[Backend, ...]:
        if number == self.facts.ports[0][1]:
            return self.facts.endpoints
        if self.made is None:
            self.made = {}
        if number not in self.made:
            tail = number.to_bytes(2, "big") + bytes(2)
            made = self._before.get(number)
            self.made[number] = (
                tuple([_moved(one, number, tail) for one in self.facts.endpoints])
                if made is None
                else tuple(
                    [
                        made[place] if place >= 0 else _moved(one, number, tail)
                        for place, one in zip(self._kept, self.facts.endpoints, strict=True)
                    ]
                )
            )
        return self.made[number]


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
