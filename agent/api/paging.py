# SPDX-License-Identifier: Apache-2.0
"""Lists in pages and with filters, the same for every kind of object.

Filters are `field=value,field=value` over fields that hold text, numbers or enum names. A page token names the last
object of a page, so that changes in between neither repeat nor skip others.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agent.api.errors import FailureReason, invalid
from agent.wire.kepd.v1 import list_pb2

Item = TypeVar("Item", bound=Message)
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


def page(
    items: Sequence[Item], options: list_pb2.ListOptions, key: Callable[[Item], str], kind: type[Item], version: int = 0
) -> tuple[list[Item], list_pb2.ListMeta]:
    """The objects of one page in the order of their keys, and where the next begins."""
    holds = parse_filter(options.filter, kind)
    after = _decode_token(options.page_token)
    rest = sorted((item for item in items if holds(item) and key(item) > after), key=key)
    token = ""
    if options.page_size and len(rest) > options.page_size:
        rest = rest[: options.page_size]
        token = base64.urlsafe_b64encode(key(rest[-1]).encode()).decode()
    return rest, list_pb2.ListMeta(next_page_token=token, resource_version=version)


def _decode_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise invalid(
            FailureReason.BAD_PAGE_TOKEN, "page_token is not from an earlier list; start without one"
        ) from error
