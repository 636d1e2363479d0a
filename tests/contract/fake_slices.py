# SPDX-License-Identifier: Apache-2.0
"""Slices in memory that keep what systemd keeps."""

from collections.abc import Sequence


class FakeSlices:
    """`held` has the properties of each slice; `refusal` is what the bus says to everything."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {}
        self.asked: list[str] = []
        self.refusal = ""

    async def hold(self, unit: str, properties: Sequence[tuple[str, int]], *, anew: bool = False) -> None:
        self._check()
        wanted = dict(properties)
        if anew or self.held.get(unit) != {**self.held.get(unit, {}), **wanted}:
            self.asked.append(unit)
        self.held.setdefault(unit, {}).update(wanted)

    async def stop(self, unit: str) -> None:
        self._check()
        self.held.pop(unit, None)

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.refusal:
            raise OSError(self.refusal)
