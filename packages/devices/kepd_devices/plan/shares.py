# SPDX-License-Identifier: Apache-2.0
"""How much of each capacity a request takes of a device, and whether that is left."""

from collections.abc import Mapping

from agent.model.quantity import NANOS_PER_UNIT, ZERO, Quantity, parse_quantity
from kepd_devices.manifest.objects import Amount
from kepd_devices.plan.offers import Offer, ShareableCapacity
from kepd_devices.plan.reasons import Reason

Amounts = Mapping[str, Quantity]


def read_amounts(asked: Mapping[str, Amount]) -> Amounts:
    return {name: parse_quantity(str(text)) for name, text in asked.items()}


def shortage(offer: Offer, asked: Amounts, given: Amounts) -> Reason | None:
    """What keeps the request from it, when so much of it is given already."""
    for name in asked:
        if name not in offer.rooms:
            return Reason("no-capacity", name)
    for name, room in offer.rooms.items():
        taken = taken_of(room, asked.get(name))
        if not _is_allowed(taken, room):
            return Reason("amount", f"{name} {taken} of {_allowed(room)}")
        left = Quantity(nanos=room.value.nanos - given.get(name, ZERO).nanos)
        if taken > left:
            word = "shares-full" if offer.is_shared else "amount"
            return Reason(word, f"{name} {taken} of {left}")
    return None


def taken_amounts(offer: Offer, asked: Amounts) -> Amounts:
    """What a share of it takes."""
    return {name: taken_of(room, asked.get(name)) for name, room in offer.rooms.items()}


def taken_of(room: ShareableCapacity, asked: Quantity | None) -> Quantity:
    """Rounded up to what can be had."""
    if asked is None:
        return room.default if room.default is not None else room.value
    if room.has_range and room.least is not None:
        if asked < room.least:
            return room.least
        return _stepped(asked, room.least, room.step) if room.step is not None else asked
    return next((value for value in room.values if asked <= value), asked)


def _stepped(asked: Quantity, least: Quantity, step: Quantity) -> Quantity:
    """Steps are of whole units."""
    size = _units(step)
    count = -(-(_units(asked) - _units(least)) // size) if size > 0 else 0
    return Quantity(nanos=(_units(least) + count * size) * NANOS_PER_UNIT)


def _units(amount: Quantity) -> int:
    return -(-amount.nanos // NANOS_PER_UNIT)


def _is_allowed(taken: Quantity, room: ShareableCapacity) -> bool:
    if room.default is not None and taken == room.default:
        return True
    if room.has_range:
        is_stepped = not room.step or not room.least or (_units(taken) - _units(room.least)) % _units(room.step) == 0
        return is_stepped and (room.most is None or taken <= room.most)
    return not room.values or taken in room.values


def _allowed(room: ShareableCapacity) -> str:
    if room.has_range:
        return f"{room.least} to {room.most}"
    return " ".join(map(str, room.values))
