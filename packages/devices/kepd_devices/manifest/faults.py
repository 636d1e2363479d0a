# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a field of a claim, class or slice, and the checks that many fields share.

A fault has the type that an API server gives it, so that people find here what they know from there.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from agent.model.finding import shown
from agent.model.quantity import Quantity, QuantityError, parse_quantity

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LONGEST_DRIVER, LONGEST_POOL, LONGEST_CLASS, LONGEST_IDENTIFIER = 63, 253, 253, 32
Item = TypeVar("Item")


class Fault(msgspec.Struct, frozen=True, order=True):
    """`type` is Required, Invalid, NotSupported, Duplicate, TooLong, TooMany or Forbidden."""

    field: str
    type: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.field else self.text


Faults = Iterator[Fault]


def is_label(text: str) -> bool:
    return LABEL.fullmatch(text) is not None


def is_subdomain(text: str, longest: int = LONGEST_CLASS) -> bool:
    return len(text) <= longest and SUBDOMAIN.fullmatch(text) is not None


def label(text: str, field: str, what: str = "name") -> Faults:
    if not is_label(text):
        yield Fault(field, "Invalid", f"{shown(text)} is no {what}; expected a DNS label of at most 63 signs")


def required_label(text: str, field: str) -> Faults:
    if not text:
        yield Fault(field, "Required", "is missing")
    else:
        yield from label(text, field)


def driver_name(text: str, field: str) -> Faults:
    """Capital letters are let through, as by an API server."""
    if not text:
        yield Fault(field, "Required", "is missing; expected the name of a driver")
        return
    if len(text) > LONGEST_DRIVER:
        yield Fault(field, "TooLong", f"has {len(text)} signs; expected at most {LONGEST_DRIVER}")
    if not is_subdomain(text.lower(), len(text)):
        yield Fault(field, "Invalid", f"{shown(text)} is no name of a driver; expected one like gpu.example.com")


def pool_name(text: str, field: str) -> Faults:
    if not text:
        yield Fault(field, "Required", "is missing; expected the name of a pool")
        return
    if len(text) > LONGEST_POOL:
        yield Fault(field, "TooLong", f"has {len(text)} signs; expected at most {LONGEST_POOL}")
    if not all(is_subdomain(part) for part in text.split("/")):
        yield Fault(field, "Invalid", f"{shown(text)} is no name of a pool; expected DNS names with / between them")


def identifier(text: str, field: str) -> Faults:
    if len(text) > LONGEST_IDENTIFIER:
        yield Fault(field, "TooLong", f"{shown(text)} has {len(text)} signs; expected at most {LONGEST_IDENTIFIER}")
    if not IDENTIFIER.fullmatch(text):
        yield Fault(field, "Invalid", f"{shown(text)} is no name; expected letters, digits and _, a letter first")


def qualified_name(text: str, field: str) -> Faults:
    """`id`, which belongs to the driver, or `domain/id`."""
    domain, slash, name = text.partition("/")
    if not slash:
        yield from identifier(text, field)
        return
    if not domain or not name:
        yield Fault(field, "Invalid", f"{shown(text)} has an empty part; expected DOMAIN/NAME")
    if domain:
        yield from driver_name(domain, field)
    if name:
        yield from identifier(name, field)


def full_name(text: str, field: str) -> Faults:
    yield from qualified_name(text, field)
    if "/" not in text:
        yield Fault(field, "Invalid", f"{shown(text)} has no domain; expected DOMAIN/NAME")


def label_name(text: str, field: str) -> Faults:
    """As of a label of Kubernetes."""
    prefix, slash, name = text.rpartition("/")
    if not LABEL_NAME.fullmatch(name) or (slash and not is_subdomain(prefix)):
        yield Fault(field, "Invalid", f"{shown(text)} is no key; expected one like a label's")


def label_value(text: str, field: str) -> Faults:
    if text and not LABEL_NAME.fullmatch(text):
        yield Fault(field, "Invalid", f"{shown(text)} is no value; expected one like a label's")


def one_of(text: str, known: Sequence[str], field: str) -> Faults:
    if text not in known:
        yield Fault(field, "NotSupported", f"{shown(text)} is not known; expected {', '.join(known)}")


def amount(value: str | float, field: str) -> tuple[Quantity | None, Faults]:
    """The amount, or what is wrong with it."""
    try:
        return parse_quantity(str(value)), iter(())
    except QuantityError as error:
        return None, iter((Fault(field, "Invalid", str(error)),))


def each(items: Sequence[Item], most: int | None, field: str, check: Callable[[Item, str], Iterable[Fault]]) -> Faults:
    """Of a list that is too long nothing else is said."""
    if most is not None and len(items) > most:
        yield Fault(field, "TooMany", f"has {len(items)} items; expected at most {most}")
        return
    for place, item in enumerate(items):
        yield from check(item, f"{field}[{place}]")


def each_once(
    items: Sequence[Item],
    most: int | None,
    field: str,
    check: Callable[[Item, str], Iterable[Fault]],
    key: Callable[[Item], object],
) -> Faults:
    yield from each(items, most, field, check)
    if most is not None and len(items) > most:
        return
    known: set[object] = set()
    for place, item in enumerate(items):
        if key(item) in known:
            yield Fault(f"{field}[{place}]", "Duplicate", f"{shown(key(item))} stands twice")
        known.add(key(item))
