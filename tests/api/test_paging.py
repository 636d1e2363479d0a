# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent.api.errors import ApiError
from agent.api.paging import AT_A_TIME, PAGE_BYTES, in_order, page, place_of
from agent.wire.kepd.v1 import list_pb2, node_pb2

NODES = [node_pb2.Node(name=name) for name in ("b", "aa", "c")]


async def ask(**options: object) -> tuple[list[str], str]:
    found, meta = await pages_of(NODES, list_pb2.ListOptions(**options))  # type: ignore[arg-type]
    return [node.name for node in found], meta.next_page_token


async def pages_of(
    nodes: list[node_pb2.Node], options: list_pb2.ListOptions, convert: Callable[[Any], Any] = lambda one: one
) -> tuple[list[node_pb2.Node], list_pb2.ListMeta]:
    walk = in_order(nodes, lambda node: node.name, place_of(options))
    return await page(walk, options, convert)


async def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    """API-02."""
    first, token = await ask(page_size=2)
    second, end = await ask(page_size=2, page_token=token)

    assert (first, second, end) == (["aa", "b"], ["c"], "")
    assert (await ask())[0] == ["aa", "b", "c"]


@pytest.mark.parametrize("options", [{"filter": "name=b"}, {"page_token": "%"}])
async def test_wrong_options_are_told(options: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        await ask(**options)

    assert refused.value.code == 3


async def test_a_page_has_a_bound_whatever_was_asked_for() -> None:
    """FX-2: answers that are not read stay in memory. Together the pages have every object once, in order."""
    names = [f"{number:05}" for number in range(30_000)]
    nodes = [node_pb2.Node(name=name, kernel_version="x" * 200) for name in reversed(names)]
    found: list[str] = []
    made: list[str] = []
    token, turns, pages = "", 0, 0

    def convert(one: node_pb2.Node) -> node_pb2.Node:
        made.append(one.name)
        return one

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(beside())
    while token or not found:
        options = list_pb2.ListOptions(page_token=token)
        some, meta = await pages_of(nodes, options, convert)
        pages += 1
        assert sum(one.ByteSize() for one in some) <= PAGE_BYTES
        found += [one.name for one in some]
        token = meta.next_page_token
    other.cancel()

    assert found == names
    assert turns > len(names) / AT_A_TIME - 2 * pages, "others have their turns meanwhile"
    assert len(made) < len(names) + pages, "a page makes what it shows, and the first of the next"


async def test_an_object_larger_than_a_page_is_one() -> None:
    large = [node_pb2.Node(name=name, kernel_version="x" * (PAGE_BYTES + 1)) for name in "ab"]
    found, meta = await pages_of(large, list_pb2.ListOptions())

    assert [one.name for one in found] == ["a"]
    assert meta.next_page_token


async def test_changes_between_pages_neither_repeat_nor_skip_others() -> None:
    nodes = {name: node_pb2.Node(name=name) for name in "bdfh"}
    first, meta = await pages_of(list(nodes.values()), list_pb2.ListOptions(page_size=2))
    del nodes["d"], nodes["f"]
    nodes |= {name: node_pb2.Node(name=name) for name in "ag"}
    rest, _ = await pages_of(list(nodes.values()), list_pb2.ListOptions(page_token=meta.next_page_token))

    assert [one.name for one in (*first, *rest)] == ["b", "d", "g", "h"]
