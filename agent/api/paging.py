# SPDX-License-Identifier: Apache-2.0
"""Lists in pages and with filters, the same for every kind of object.

Filters are `field=value,field=value` over fields that hold text, numbers or enum names. A page token names the place
where a page ended, so that changes in between neither repeat nor skip others. A page costs what it shows: the list goes
on from that place, and nothing before it or behind it is made into a message.

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

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid
from agent.model.placed import Walk
from agent.wire.kepd.v1 import list_pb2

Item = TypeVar("Item", bound=Message)
One = TypeVar("One")
PAGE_BYTES = 1 << 20
AT_A_TIME = 200
TEXT = FieldDescriptor.TYPE_STRING
ENUM = FieldDescriptor.TYPE_ENUM
WHOLE = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
)


def parse_filter(text: str, kind: type[Item]) -> Callable[[Item], bool]:
    terms = [_term(term, kind) for term in text.split(",") if term.strip()]

    def holds(item: Item) -> bool:
        return all(_shown(item, name) == value for name, value in terms)

    return holds


def _term(term: str, kind: type[Message]) -> tuple[str, str]:
    name, equals, value = term.strip().partition("=")
    fields = kind.DESCRIPTOR.fields_by_name
    usable = [known.name for known in fields.values() if known.type in (TEXT, ENUM, *WHOLE) and not known.is_repeated]
    if not equals or name not in usable:
        raise invalid(
            FailureReason.BAD_FILTER,
            f'filter term "{term.strip()}" is not field=value with one of the fields {", ".join(usable)}',
            [("filter", term.strip())],
        )
    return name, value


def _shown(item: Message, name: str) -> str:
    field = item.DESCRIPTOR.fields_by_name[name]
    value = getattr(item, name)
    if field.type == ENUM and field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return str(value)


async def in_order(items: Iterable[One], key: Callable[[One], str], after: str) -> Walk[One]:
    """Of few objects: those behind a place."""
    ordered = sorted(items, key=key)
    for one in ordered[bisect_right(ordered, after, key=key) :]:
        yield key(one), one


async def page(
    walk: Walk[One],
    options: list_pb2.ListOptions,
    convert: Callable[[One], Item],
    kind: type[Item],
    version: int = 0,
) -> tuple[list[Item], list_pb2.ListMeta]:
    """The objects of one page, and where the next begins. `walk` gives what is behind `place_of(options)` with its
    place, in the order of places, and does not mind what changes meanwhile."""
    holds = parse_filter(options.filter, kind)
    found: list[Item] = []
    size = looked = 0
    before = ""
    async with aclosing(walk):
        async for place, one in walk:
            looked += 1
            if looked % AT_A_TIME == 0:
                await asyncio.sleep(0)
            item = convert(one)
            if holds(item):
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
