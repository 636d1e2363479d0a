# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a slice, that is with what a driver, or a person in its place, says that there is."""

from collections.abc import Mapping

from agent.model.finding import shown
from agent.model.pods.affinity import NodeTerms
from agent.model.quantity import Quantity
from kepd_devices.cel.values import read_semver
from kepd_devices.manifest.claim_faults import EFFECTS
from kepd_devices.manifest.faults import (
    Fault,
    Faults,
    amount,
    driver_name,
    each,
    each_once,
    is_subdomain,
    label,
    label_name,
    label_value,
    one_of,
    pool_name,
    qualified_name,
)
from kepd_devices.manifest.objects import (
    Attribute,
    Capacity,
    ConsumedCounters,
    Counter,
    CounterSet,
    DeviceOfSlice,
    RequestPolicy,
    Slice,
    SliceSpec,
    Taint,
    ValidRange,
)

MOST_DEVICES, MOST_RICH_DEVICES = 128, 64
MOST_ATTRIBUTES, MOST_VALUES = 32, 48
MOST_TAINTS, MOST_CONDITIONS = 16, 4
MOST_SETS, MOST_COUNTERS, MOST_SETS_OF_DEVICE = 8, 32, 2
MOST_VALID_VALUES, LONGEST_VALUE = 10, 64
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def slice_faults(one: Slice) -> Faults:
    spec = one.spec
    yield from driver_name(spec.driver, "spec.driver")
    yield from pool_name(spec.pool.name, "spec.pool.name")
    if spec.pool.resource_slice_count <= 0:
        yield Fault("spec.pool.resourceSliceCount", "Invalid", "is missing or not above 0")
    if spec.pool.generation < 0:
        yield Fault("spec.pool.generation", "Invalid", f"is {spec.pool.generation}; expected 0 or more")
    yield from _places(spec)
    if spec.shared_counters is not None and spec.devices is not None:
        yield Fault("spec", "Invalid", "has sharedCounters and devices; expected one of them")
    devices = spec.devices or ()
    is_rich = any(one.taints or one.consumes_counters or _has_lists(one) for one in devices)
    most = MOST_RICH_DEVICES if is_rich else MOST_DEVICES
    is_per_device = bool(spec.per_device_node_selection)
    yield from each_once(
        devices,
        most,
        "spec.devices",
        lambda one, at: _device(one, at, is_per_device=is_per_device),
        lambda one: one.name,
    )
    sets = spec.shared_counters or ()
    yield from each_once(sets, MOST_SETS, "spec.sharedCounters", _counter_set, lambda one: one.name)


def _has_lists(device: DeviceOfSlice) -> bool:
    return any(one.lists for one in device.attributes.values())


def _places(spec: SliceSpec) -> Faults:
    """Which nodes it is for."""
    yield from _node_name(spec.node_name, "spec.nodeName")
    yield from _node_selector(spec.node_selector, "spec.nodeSelector", is_single=True)
    yield from _true_or_unset(spec.all_nodes, "spec.allNodes")
    yield from _true_or_unset(spec.per_device_node_selection, "spec.perDeviceNodeSelection")
    given = (spec.node_name, spec.node_selector is not None, spec.all_nodes, spec.per_device_node_selection)
    yield from _one_place(given, PLACES, "spec")


def _one_place(given: tuple[object, ...], names: tuple[str, ...], field: str) -> Faults:
    if not any(given):
        yield Fault(field, "Required", f"says not which nodes it is for; expected one of {', '.join(names)}")
    elif sum(map(bool, given)) > 1:
        told = " and ".join(name for name, is_given in zip(names, given, strict=True) if is_given)
        yield Fault(field, "Invalid", f"has {told}; expected one of them")


def _node_name(name: str | None, field: str) -> Faults:
    if name is not None and not is_subdomain(name):
        yield Fault(field, "Invalid", f"{shown(name)} is no name of a node")


def _true_or_unset(value: bool | None, field: str) -> Faults:  # a field as it is written
    if value is False:
        yield Fault(field, "Invalid", "is false; expected true, or nothing")


def _node_selector(one: NodeTerms | None, field: str, *, is_single: bool) -> Faults:
    if one is None:
        return
    terms, place = one.node_selector_terms, f"{field}.nodeSelectorTerms"
    if not terms:
        yield Fault(place, "Required", "is empty; expected a term")
    if is_single and len(terms) != 1:
        yield Fault(place, "Invalid", f"has {len(terms)} terms; expected one")
    for number, term in enumerate(terms):
        for kind, requirements in (
            ("matchExpressions", term.match_expressions),
            ("matchFields", term.match_fields),
        ):
            for index, requirement in enumerate(requirements):
                at = f"{place}[{number}].{kind}[{index}]"
                yield from one_of(requirement.operator, OPERATORS, f"{at}.operator")


def _device(one: DeviceOfSlice, field: str, *, is_per_device: bool) -> Faults:
    yield from label(one.name, f"{field}.name")
    yield from _sizes(one, field)
    for name, attribute in one.attributes.items():
        yield from qualified_name(name, f"{field}.attributes")
        yield from _attribute(attribute, f"{field}.attributes[{name}]")
    for name, capacity in one.capacity.items():
        yield from qualified_name(name, f"{field}.capacity")
        yield from _capacity(capacity, f"{field}.capacity[{name}]", is_shared=bool(one.allow_multiple_allocations))
    yield from each(one.taints, MOST_TAINTS, f"{field}.taints", _taint)
    yield from each_once(
        one.consumes_counters, MOST_SETS_OF_DEVICE, f"{field}.consumesCounters", _consumed, lambda it: it.counter_set
    )
    places = (one.node_name, one.node_selector is not None, one.all_nodes)
    if is_per_device:
        yield from _node_name(one.node_name, f"{field}.nodeName")
        yield from _node_selector(one.node_selector, f"{field}.nodeSelector", is_single=False)
        yield from _true_or_unset(one.all_nodes, f"{field}.allNodes")
        yield from _one_place(places, PLACES[:3], field)
    elif one.node_name is not None or one.node_selector is not None or one.all_nodes is not None:
        text = "says which nodes it is for, which counts only with perDeviceNodeSelection of its slice"
        yield Fault(field, "Invalid", text)
    yield from _conditions(one, field)


def _sizes(one: DeviceOfSlice, field: str) -> Faults:
    count = len(one.attributes) + len(one.capacity)
    if count > MOST_ATTRIBUTES:
        text = f"has {count} attributes and capacities; expected at most {MOST_ATTRIBUTES}"
        yield Fault(field, "Invalid", text)
    values = sum(sum(map(len, it.lists.values())) or 1 for it in one.attributes.values())
    if values > MOST_VALUES:
        yield Fault(field, "Invalid", f"has {values} values of attributes; expected at most {MOST_VALUES}")


def _attribute(one: Attribute, field: str) -> Faults:
    names = {"int": "ints", "bool": "bools", "string": "strings", "version": "versions"}
    if one.text is not None:
        yield from _text(one.text, f"{field}.string")
    if one.version is not None:
        yield from _version(one.version, f"{field}.version")
    for kind, values in one.lists.items():
        place = f"{field}.{names[kind]}"
        if not values:
            yield Fault(place, "Invalid", "is empty; expected a value, or no list")
        for number, value in enumerate(values):
            if kind == "string":
                yield from _text(str(value), f"{place}[{number}]")
            elif kind == "version":
                yield from _version(str(value), f"{place}[{number}]")
    count = len(one.scalars) + len(one.lists)
    if count != 1:
        yield Fault(field, "Invalid", f"has {count} values; expected one of int, bool, string, version or a list")


def _text(value: str, field: str) -> Faults:
    if len(value.encode(errors="replace")) > LONGEST_VALUE:
        yield Fault(field, "TooLong", f"has {len(value)} signs; expected at most {LONGEST_VALUE}")


def _version(value: str, field: str) -> Faults:
    if read_semver(value) is None:
        yield Fault(field, "Invalid", f"{shown(value)} is no version; expected MAJOR.MINOR.PATCH as semver 2.0.0 says")
    yield from _text(value, field)


def _capacity(one: Capacity, field: str, *, is_shared: bool) -> Faults:
    value, faults = amount(one.value, f"{field}.value")
    yield from faults
    policy, place = one.request_policy, f"{field}.requestPolicy"
    if policy is None:
        return
    if not is_shared:
        yield Fault(place, "Forbidden", "counts only for a device with allowMultipleAllocations")
    elif policy.valid_values and policy.valid_range is not None:
        yield Fault(place, "Forbidden", "has validValues and validRange; expected one of them")
    elif value is not None:
        yield from _policy(policy, value, place)


def _policy(policy: RequestPolicy, most: Quantity, field: str) -> Faults:
    if not policy.valid_values and policy.valid_range is None:
        return
    if policy.default is None:
        what = "validValues" if policy.valid_values else "validRange"
        yield Fault(f"{field}.default", "Required", f"is missing; {what} needs one")
        return
    default, faults = amount(policy.default, f"{field}.default")
    yield from faults
    if default is None:
        return
    if policy.valid_values:
        yield from _valid_values(policy, default, most, f"{field}.validValues")
    elif policy.valid_range is not None:
        yield from _valid_range(policy.valid_range, default, most, f"{field}.validRange")


def _valid_values(policy: RequestPolicy, default: Quantity, most: Quantity, field: str) -> Faults:
    if len(policy.valid_values) > MOST_VALID_VALUES:
        yield Fault(field, "TooMany", f"has {len(policy.valid_values)} items; expected at most {MOST_VALID_VALUES}")
        return
    values: list[Quantity] = []
    for number, text in enumerate(policy.valid_values):
        value, faults = amount(text, f"{field}[{number}]")
        yield from faults
        if value is None:
            return
        if value > most:
            yield Fault(f"{field}[{number}]", "Invalid", f"{text} is more than the capacity, {most}")
        if values and value < values[-1]:
            yield Fault(f"{field}[{number}]", "Invalid", f"{text} stands behind a larger value")
        if value in values:
            yield Fault(f"{field}[{number}]", "Duplicate", f"{text} stands twice")
        values.append(value)
    if default not in values:
        yield Fault(field, "Invalid", f"has not the default, {policy.default}")


def _valid_range(one: ValidRange, default: Quantity, most: Quantity, field: str) -> Faults:
    if one.min is None:
        yield Fault(f"{field}.min", "Required", "is missing")
        return
    least, faults = amount(one.min, f"{field}.min")
    yield from faults
    if least is None:
        return
    if least > most:
        yield Fault(f"{field}.min", "Invalid", f"{one.min} is more than the capacity, {most}")
    if default < least:
        yield Fault(f"{field}.min", "Invalid", f"{one.min} is more than the default")
    largest = None
    if one.max is not None:
        largest, faults = amount(one.max, f"{field}.max")
        yield from faults
        if largest is None:
            return
        if least > largest:
            yield Fault(f"{field}.max", "Invalid", f"{one.max} is less than min")
        if largest > most:
            yield Fault(f"{field}.max", "Invalid", f"{one.max} is more than the capacity, {most}")
        if default > largest:
            yield Fault(f"{field}.max", "Invalid", f"{one.max} is less than the default")
    if one.step is not None:
        yield from _step(one.step, (least, default, largest), most, f"{field}.step")


def _step(text: str | float, steps: tuple[Quantity, Quantity, Quantity | None], most: Quantity, field: str) -> Faults:
    """Default and max lie whole steps above min."""
    step, faults = amount(text, field)
    yield from faults
    least, default, largest = steps
    if step is None:
        return
    if step.nanos <= 0:
        yield Fault(field, "Invalid", f"is {text}; expected more than 0")
        return
    if least + step > most:
        yield Fault(field, "Invalid", f"one step of {text} above min is more than the capacity, {most}")
    for name, value in (("default", default), ("max", largest)):
        if value is not None and (value.nanos - least.nanos) % step.nanos:
            yield Fault(field, "Invalid", f"{name} is no whole number of steps of {text} above min")


def _taint(one: Taint, field: str) -> Faults:
    yield from label_name(one.key, f"{field}.key")
    yield from label_value(one.value, f"{field}.value")
    if not one.effect:
        yield Fault(f"{field}.effect", "Required", "is missing")
    else:
        yield from one_of(one.effect, EFFECTS, f"{field}.effect")


def _counter_set(one: CounterSet, field: str) -> Faults:
    yield from _counters(one.name, one.counters, field, "name")


def _consumed(one: ConsumedCounters, field: str) -> Faults:
    yield from _counters(one.counter_set, one.counters, field, "counterSet")


def _counters(name: str, counters: Mapping[str, Counter], field: str, what: str) -> Faults:
    if not name:
        yield Fault(f"{field}.{what}", "Required", "is missing")
    else:
        yield from label(name, f"{field}.{what}")
    if not counters:
        yield Fault(f"{field}.counters", "Required", "is missing")
    elif len(counters) > MOST_COUNTERS:
        yield Fault(f"{field}.counters", "TooMany", f"has {len(counters)} items; expected at most {MOST_COUNTERS}")
    else:
        for key, counter in counters.items():
            yield from label(key, f"{field}.counters")
            yield from amount(counter.value, f"{field}.counters[{key}].value")[1]


def _conditions(one: DeviceOfSlice, field: str) -> Faults:
    wanted, failed = one.binding_conditions, one.binding_failure_conditions
    for name, conditions in (("bindingConditions", wanted), ("bindingFailureConditions", failed)):
        yield from each_once(conditions, MOST_CONDITIONS, f"{field}.{name}", label_name, lambda it: it)
    for number, condition in enumerate(failed):
        if condition in wanted:
            text = f"{shown(condition)} is one of bindingConditions too"
            yield Fault(f"{field}.bindingFailureConditions[{number}]", "Invalid", text)
    if failed and not wanted:
        yield Fault(f"{field}.bindingConditions", "Invalid", "is missing beside bindingFailureConditions")
    if wanted and not failed:
        yield Fault(f"{field}.bindingFailureConditions", "Invalid", "is missing beside bindingConditions")
