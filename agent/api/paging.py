# SPDX-License-Identifier: Apache-2.0
"""Lists in pages and with filters, the same for every kind of object.

Filters are `field=value,field=value` over fields that hold text, numbers or enum names. A page token names the last
object of a page, so that changes in between neither repeat nor skip others.

A page has as many objects as fit into 1 MiB, and at least one, however many were asked for: what a caller does not read
stays in our memory. Objects are looked at in turns, since a node may have 100 000 endpoints and other work.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid
from agent.wire.kepd.v1 import list_pb2

Item = TypeVar("Item", bound=Message)
PAGE_BYTES = 1 << 20
AT_A_TIME = 200
MOST_KEPT = 20_000
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


async def page(
    items: Iterable[Item], options: list_pb2.ListOptions, key: Callable[[Item], str], kind: type[Item], version: int = 0
) -> tuple[list[Item], list_pb2.ListMeta]:
    """The objects of one page in the order of their keys, and where the next begins. `items` may make them one by one,
    and must not depend on what changes meanwhile."""
    holds = parse_filter(options.filter, kind)
    after = _decode_token(options.page_token)
    found: list[Item] = []
    is_cut, most_kept = False, MOST_KEPT
    for number, item in enumerate(items, 1):
        if number % AT_A_TIME == 0:
            await asyncio.sleep(0)
        if holds(item) and key(item) > after:
            found.append(item)
        if len(found) > most_kept:
            found, was_cut = _first(found, options.page_size, key)
            is_cut |= was_cut
            most_kept = max(MOST_KEPT, 2 * len(found))
    found, is_more = _first(found, options.page_size, key)
    token = base64.urlsafe_b64encode(key(found[-1]).encode()).decode() if found and (is_more or is_cut) else ""
    return found, list_pb2.ListMeta(next_page_token=token, resource_version=version)


def _first(found: list[Item], most: int, key: Callable[[Item], str]) -> tuple[list[Item], bool]:
    """Those of a page, and whether there are more."""
    found.sort(key=key)
    size = 0
    fits = 0
    for item in found[: most or None]:
        size += item.ByteSize()
        if fits and size > PAGE_BYTES:
            break
        fits += 1
    return found[:fits], fits < len(found)


def _decode_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise invalid(
            FailureReason.BAD_PAGE_TOKEN, "page_token is not from an earlier list; start without one"
        ) from error
