# SPDX-License-Identifier: Apache-2.0
"""Lists in pages, the same for every kind of object.

A page token names the place where a page ended, so that changes in between neither repeat nor skip others. A page costs
what it shows: the list goes on from that place, and nothing before it or behind it is made into a message.

A page has as many objects as fit into 1 MiB, and at least one, however many were asked for: what a caller does not read
stays in our memory. Objects are looked at in turns, since a node may have 100 000 endpoints and other work.
"""

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import TypeVar

from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid
from agent.model.placed import Walk
from agent.wire.kepd.v1 import list_pb2

Item = TypeVar("Item", bound=Message)
One = TypeVar("One")
PAGE_BYTES = 1 << 20
AT_A_TIME = 200


async def in_order(items: Iterable[One], key: Callable[[One], str], after: str) -> Walk[One]:
    """Of few objects: those behind a place."""
    ordered = sorted(items, key=key)
    for one in ordered[bisect_right(ordered, after, key=key) :]:
        yield key(one), one


async def page(
    walk: Walk[One],
    options: list_pb2.ListOptions,
    convert: Callable[[One], Item],
    version: int = 0,
) -> tuple[list[Item], list_pb2.ListMeta]:
    """The objects of one page, and where the next begins. `walk` gives what is behind `place_of(options)` with its
    place, in the order of places, and does not mind what changes meanwhile."""
    if options.filter:
        text = f'filter "{options.filter[:100]}": ObjectService/List alone takes one'
        raise invalid(FailureReason.BAD_FILTER, text, [("filter", text)])
    found: list[Item] = []
    size = looked = 0
    before = ""
    async with aclosing(walk):
        async for place, one in walk:
            looked += 1
            if looked % AT_A_TIME == 0:
                await asyncio.sleep(0)
            item = convert(one)
            size += item.ByteSize()
            if found and (size > PAGE_BYTES or len(found) == options.page_size):
                token = base64.urlsafe_b64encode(before.encode()).decode()
                return found, list_pb2.ListMeta(next_page_token=token, resource_version=version)
            found.append(item)
            before = place
    return found, list_pb2.ListMeta(resource_version=version)


def place_of(options: list_pb2.ListOptions) -> str:
    """Where the page before this one ended; empty: there was none."""
    try:
        return base64.b64decode(options.page_token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise invalid(
            FailureReason.BAD_PAGE_TOKEN, "page_token is not from an earlier list; start without one"
        ) from error
