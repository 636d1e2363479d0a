# SPDX-License-Identifier: Apache-2.0
"""A table that others change all the time is read until it is whole: for most of a second, not three times."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from agent.drivers.nft import kernel_table
from agent.drivers.nft.kernel_table import KernelTable
from agent.model.services.nft_error import Interrupted


class Unsettled(KernelTable):
    """A kernel that moves elements about during so many readings."""

    def __init__(self, readings: int) -> None:
        super().__init__("IPv4", None, 1.0)  # type: ignore[arg-type]  # nothing is asked of a kernel
        self.left = readings

    def _dump(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def decoded(self, _answers: Iterable[Any]) -> dict[bytes, int] | None:
        self.left -= 1
        return None if self.left >= 0 else {b"key": 1}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep: Callable[[float], None] = lambda _s: None  # noqa: E731
    monkeypatch.setattr(kernel_table.time, "sleep", sleep)


@pytest.mark.parametrize("readings", [0, 3, 39])
def test_a_map_that_settles_late_is_read(readings: int) -> None:
    table = Unsettled(readings)

    assert table._whole("services", table.decoded) == {b"key": 1}


def test_one_that_never_settles_is_given_up_with_the_reason() -> None:
    table = Unsettled(1000)

    with pytest.raises(Interrupted, match="map services of table kepd did not settle in 40 readings"):
        table._whole("services", table.decoded)
