# SPDX-License-Identifier: Apache-2.0
"""All entries of a map of clients, from a kernel whose order changes while it tells them."""

from collections.abc import Iterator

import pytest

from agent.drivers.nft.kernel_table import _SET_COUNT, KernelTable
from agent.model.services.nft_table import AffineClient


def client(number: int) -> AffineClient:
    return AffineClient(bytes([10, 0, 0, number]), b"slotpair", 60_000)


class Growing(KernelTable):
    """Tells what each reading is to find; counts what there is."""

    def __init__(self, count: int, *readings: list[int]) -> None:
        super().__init__("IPv4", None, 1.0)  # type: ignore[arg-type]  # nothing is asked of a kernel
        self.count, self.left = count, list(readings)

    def _clients(self, name: str, *, is_paced: bool = True) -> Iterator[list[AffineClient]]:
        del name, is_paced
        yield [client(number) for number in self.left.pop(0)]

    def _facts_of(self, name: str) -> dict[int, bytes]:
        del name
        return {_SET_COUNT: self.count.to_bytes(4, "big")}


def keys(found: list[AffineClient]) -> list[int]:
    return sorted(one.key[-1] for one in found)


def test_what_comes_twice_and_what_never_came_is_read_again() -> None:
    table = Growing(3, [1, 2, 2], [3, 1, 2])

    assert keys(table.clients("clients", 0, None)) == [1, 2, 3]
    assert table.left == []


@pytest.mark.parametrize("count", [2, 0])
def test_what_is_whole_or_cannot_be_counted_is_read_once(count: int) -> None:
    table = Growing(count, [1, 2], [9])

    assert keys(table.clients("clients", 0, None)) == [1, 2]
    assert table.left == [[9]]


def test_a_map_that_never_stands_still_is_read_three_times() -> None:
    table = Growing(90, [1], [2], [3], [4])

    assert keys(table.clients("clients", 0, {client(number).pair for number in (1, 2, 3)})) == [1, 2, 3]
    assert table.left == [[4]]


def test_a_sample_is_read_once() -> None:
    assert keys(Growing(90, [1, 2, 3]).clients("clients", 2, None)) == [1, 2, 3]
