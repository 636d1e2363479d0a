# SPDX-License-Identifier: Apache-2.0
"""The devices of slices as a search takes them: amounts read, attributes by their full names."""

from collections.abc import Mapping
from functools import cached_property

from agent.model.quantity import Quantity, parse_quantity
from kepd_devices.cel.values import Device as SeenDevice
from kepd_devices.cel.values import Domains, EvaluationFailed, read_semver
from kepd_devices.manifest.objects import Amount, Attribute, Capacity, DeviceOfSlice, Slice, Taint
from kepd_devices.plan.reasons import DeviceId

Values = frozenset[tuple[str, object]]


class ShareableCapacity:
    """A capacity: how much of it there is, and in which amounts it is given."""

    def __init__(self, one: Capacity) -> None:
        policy = one.request_policy
        valid = policy.valid_range if policy is not None else None
        self.value = _amount(one.value)
        self.default = _maybe(policy.default if policy is not None else None)
        self.values = tuple(_amount(text) for text in policy.valid_values) if policy is not None else ()
        self.least, self.most, self.step = (
            (_maybe(valid.min), _maybe(valid.max), _maybe(valid.step)) if valid is not None else (None, None, None)
        )
        self.has_range = valid is not None


def _amount(text: Amount) -> Quantity:
    return parse_quantity(str(text))


def _maybe(text: Amount | None) -> Quantity | None:
    return _amount(text) if text is not None else None


class Offer:
    """One device of one slice."""

    def __init__(self, slice_: Slice, device: DeviceOfSlice) -> None:
        spec = slice_.spec
        self.slice = slice_
        self.device = device
        self.id = DeviceId(spec.driver, spec.pool.name, device.name)
        self.is_shared = bool(device.allow_multiple_allocations)
        self.counters = [
            (one.counter_set, name, _amount(counter.value))
            for one in device.consumes_counters
            for name, counter in one.counters.items()
        ]

    @cached_property
    def rooms(self) -> Mapping[str, ShareableCapacity]:
        return {name: ShareableCapacity(one) for name, one in self.device.capacity.items()}

    @cached_property
    def has_lists(self) -> bool:
        return any(one.has_list for one in self.device.attributes.values())

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.device.taints

    def attribute(self, name: str) -> Attribute | None:
        """By its full name; a short one belongs to the driver's own domain."""
        found = self.device.attributes.get(name)
        domain, _, short = name.partition("/")
        return found if found is not None or domain != self.id.driver else self.device.attributes.get(short)

    @cached_property
    def _seen(self) -> SeenDevice:
        attributes, capacity = Domains(), Domains()
        for name, one in self.device.attributes.items():
            domain, _, short = name.rpartition("/")
            attributes.setdefault(domain or self.id.driver, {})[short] = _value(one)
        for name, room in self.rooms.items():
            domain, _, short = name.rpartition("/")
            capacity.setdefault(domain or self.id.driver, {})[short] = room.value
        return SeenDevice(
            driver=self.id.driver, attributes=attributes, capacity=capacity, allowMultipleAllocations=self.is_shared
        )

    def seen(self, *, takes_lists: bool) -> SeenDevice:
        """As expressions see it. Raises EvaluationFailed."""
        if self.has_lists and not takes_lists:
            name = next(name for name, one in self.device.attributes.items() if one.lists)
            raise EvaluationFailed(f"attribute {name} is a list; lists are not taken")
        return self._seen


def values_of(attribute: Attribute, *, takes_lists: bool) -> Values:
    """With their kinds; one value is as a list of it. Nothing where lists are not taken."""
    if takes_lists:
        return frozenset((kind, one) for kind, values in attribute.lists.items() for one in values) | frozenset(
            attribute.scalars.items()
        )
    return frozenset(attribute.scalars.items())


def _value(one: Attribute) -> object:
    for value in (one.whole, one.truth, one.text):
        if value is not None:
            return value
    if one.version is not None:
        return read_semver(one.version)
    for kind, values in one.lists.items():
        return [read_semver(str(value)) if kind == "version" else value for value in values]
    return None
