# SPDX-License-Identifier: Apache-2.0
"""What is wrong with claims, with what templates make, and with classes. All of it at once."""

import json

from agent.model.finding import shown
from kepd_devices.cel.parse import LONGEST
from kepd_devices.cel.program import program
from kepd_devices.cel.tree import Unreadable
from kepd_devices.manifest.faults import (
    LONGEST_CLASS,
    Fault,
    Faults,
    amount,
    driver_name,
    each,
    each_once,
    full_name,
    is_subdomain,
    label_name,
    label_value,
    one_of,
    required_label,
)
from kepd_devices.manifest.objects import (
    Claim,
    Config,
    Constraint,
    DeviceClass,
    DeviceRequest,
    Opaque,
    Selector,
    Toleration,
    Wish,
    Wishes,
)

MOST_REQUESTS = MOST_CONSTRAINTS = MOST_CONFIGS = MOST_SELECTORS = 32
MOST_ALTERNATIVES, MOST_TOLERATIONS = 8, 16
LONGEST_PARAMETERS = 10 * 1024
EFFECTS = ("NoSchedule", "NoExecute", "None")
Names = dict[str, frozenset[str]]


def claim_faults(claim: Claim) -> Faults:
    yield from wishes_faults(claim.spec.devices, "spec.devices")


def class_faults(one: DeviceClass) -> Faults:
    yield from each(one.spec.selectors, MOST_SELECTORS, "spec.selectors", _selector)
    yield from each(one.spec.config, MOST_CONFIGS, "spec.config", lambda config, at: _opaque(config.opaque, at))


def wishes_faults(wishes: Wishes, field: str) -> Faults:
    names = {one.name: frozenset(wish.name for wish in one.first_available) for one in wishes.requests}
    yield from each_once(wishes.requests, MOST_REQUESTS, f"{field}.requests", _request, lambda one: one.name)
    yield from each(
        wishes.constraints, MOST_CONSTRAINTS, f"{field}.constraints", lambda one, at: _constraint(one, at, names)
    )
    yield from each(wishes.config, MOST_CONFIGS, f"{field}.config", lambda one, at: _config(one, at, names))


def _request(one: DeviceRequest, field: str) -> Faults:
    yield from required_label(one.name, f"{field}.name")
    if one.first_available and one.exactly is not None:
        yield Fault(field, "Invalid", "has exactly and firstAvailable; expected one of them")
    elif one.first_available:
        place = f"{field}.firstAvailable"
        yield from each_once(one.first_available, MOST_ALTERNATIVES, place, _alternative, lambda wish: wish.name)
    elif one.exactly is not None:
        yield from _wish(one.exactly, f"{field}.exactly")
    else:
        yield Fault(field, "Required", "has neither exactly nor firstAvailable; expected one of them")


def _alternative(one: Wish, field: str) -> Faults:
    yield from required_label(one.name, f"{field}.name")
    yield from _wish(one, field)


def _wish(one: Wish, field: str) -> Faults:
    if not one.device_class_name:
        yield Fault(f"{field}.deviceClassName", "Required", "is missing; expected the name of a DeviceClass")
    elif not is_subdomain(one.device_class_name, LONGEST_CLASS):
        text = f"{shown(one.device_class_name)} is no name of a class; expected a DNS name"
        yield Fault(f"{field}.deviceClassName", "Invalid", text)
    yield from each(one.selectors, MOST_SELECTORS, f"{field}.selectors", _selector)
    if one.is_all and one.count:
        yield Fault(f"{field}.count", "Invalid", f"is {one.count}; expected none beside allocationMode All")
    elif one.allocation_mode == "ExactCount" and one.wanted <= 0:
        yield Fault(f"{field}.count", "Invalid", f"is {one.count}; expected 1 or more")
    yield from one_of(one.allocation_mode, ("ExactCount", "All"), f"{field}.allocationMode")
    yield from each(one.tolerations, MOST_TOLERATIONS, f"{field}.tolerations", _toleration)
    for name, value in one.amounts.items():
        yield from amount(value, f"{field}.capacity.requests[{name}]")[1]


def _selector(one: Selector, field: str) -> Faults:
    if one.cel is None:
        yield Fault(f"{field}.cel", "Required", "is missing; expected an expression")
        return
    place, text = f"{field}.cel.expression", one.cel.expression
    if len(text.encode(errors="replace")) > LONGEST:
        yield Fault(place, "TooLong", f"has {len(text)} signs; expected at most {LONGEST} bytes")
        return
    try:
        program(text)
    except Unreadable as error:
        yield Fault(place, "Invalid", f"{shown(text)} {error}")


def _toleration(one: Toleration, field: str) -> Faults:
    if one.key:
        yield from label_name(one.key, f"{field}.key")
    if one.operator == "Exists" and one.value:
        yield Fault(f"{field}.value", "Invalid", f"is {shown(one.value)}; expected none beside Exists")
    elif one.operator == "Equal":
        yield from label_value(one.value, f"{field}.value")
    yield from one_of(one.operator, ("Equal", "Exists"), f"{field}.operator")
    if one.effect:
        yield from one_of(one.effect, EFFECTS, f"{field}.effect")


def _constraint(one: Constraint, field: str, names: Names) -> Faults:
    yield from _references(one.requests, field, names)
    if one.match_attribute is not None:
        yield from full_name(one.match_attribute, f"{field}.matchAttribute")
        if one.distinct_attribute is not None:
            yield Fault(field, "Invalid", "has matchAttribute and distinctAttribute; expected one of them")
    elif one.distinct_attribute is not None:
        yield from full_name(one.distinct_attribute, f"{field}.distinctAttribute")
    else:
        yield Fault(field, "Required", "has neither matchAttribute nor distinctAttribute; expected one of them")


def _references(requests: tuple[str, ...], field: str, names: Names) -> Faults:
    def check(text: str, at: str) -> Faults:
        name, slash, alternative = text.partition("/")
        if name not in names or (slash and alternative not in names[name]):
            yield Fault(at, "Invalid", f"{shown(text)} is no request of this claim; expected REQUEST or REQUEST/PART")

    yield from each_once(requests, MOST_REQUESTS, f"{field}.requests", check, lambda one: one)


def _config(one: Config, field: str, names: Names) -> Faults:
    yield from _references(one.requests, field, names)
    yield from _opaque(one.opaque, field)


def _opaque(one: Opaque | None, field: str) -> Faults:
    place = f"{field}.opaque"
    if one is None:
        yield Fault(place, "Required", "is missing")
        return
    yield from driver_name(one.driver, f"{place}.driver")
    if one.parameters is None:
        yield Fault(f"{place}.parameters", "Required", "is missing")
    elif not isinstance(one.parameters, dict):
        yield Fault(f"{place}.parameters", "Invalid", "is no object")
    elif len(json.dumps(one.parameters, separators=(",", ":")).encode()) > LONGEST_PARAMETERS:
        yield Fault(f"{place}.parameters", "TooLong", f"has more than {LONGEST_PARAMETERS} bytes")
