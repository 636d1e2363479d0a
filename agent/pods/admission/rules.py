# SPDX-License-Identifier: Apache-2.0
"""What the rules of a namespace make of a pod that is to begin, and whether they let it. Pure.

A pod that is made has them as they are then. One of a manifest has them as if they stood in its manifest.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Amount, Container, Resources
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import PodSpec
from agent.model.quantity import Quantity, binary_quantity, parse_quantity
from agent.pods.admission.objects import (
    HELD,
    LIMITED,
    QUOTA,
    Key,
    LimitItem,
    LimitRule,
    PriorityRule,
    Quota,
    ScopeRequirement,
)
from agent.pods.runtime.qos import amount, pod_needs, qos_class

MILLI, BYTE = 10**6, 10**9
Problem = tuple[str, str]
"""A reason and what it is about."""


class Charge(msgspec.Struct, frozen=True):
    """What a pod counts for in the quotas of its namespace, in billionths."""

    namespace: str
    amounts: Mapping[str, int]
    scopes: frozenset[str]
    priority_class: str


class AdmissionRules(msgspec.Struct, frozen=True):
    classes: Mapping[str, PriorityRule] = {}
    limits: Mapping[str, tuple[LimitItem, ...]] = {}
    quotas: Mapping[Key, Quota] = {}

    def of(self, namespace: str) -> Iterator[Quota]:
        return (one for one in self.quotas.values() if one.namespace == namespace)


def rules_of(objects: Iterable[object]) -> AdmissionRules:
    classes: dict[str, PriorityRule] = {}
    limits: dict[str, tuple[LimitItem, ...]] = {}
    quotas: dict[Key, Quota] = {}
    for one in objects:
        match one:
            case PriorityRule():
                classes[one.name] = one
            case LimitRule():
                limits[one.namespace] = (*limits.get(one.namespace, ()), *one.limits)
            case Quota():
                quotas[one.key] = one
    return AdmissionRules(classes, limits, quotas)


def admitted(pod: PodSpec, rules: AdmissionRules) -> PodSpec:
    """With the priority of its class and the default resources of its namespace; the same where nothing changes."""
    spec = _with_defaults(pod.spec, [one for one in rules.limits.get(pod.namespace, ()) if one.type == "Container"])
    if not spec.priority and (value := _priority(spec.priority_class_name, rules)):
        spec = replace(spec, priority=value)
    return pod if spec is pod.spec else dataclasses.replace(pod, spec=spec)


def _priority(name: str, rules: AdmissionRules) -> int:
    if name:
        known = rules.classes.get(name)
        return known.value if known is not None else 0
    return max((one.value for one in rules.classes.values() if one.is_default), default=0)


def _with_defaults(spec: PodFields, items: list[LimitItem]) -> PodFields:
    if not items:
        return spec
    containers = tuple(_with_resources(one, items) for one in spec.containers)
    return replace(
        spec, containers=containers, init_containers=tuple(_with_resources(one, items) for one in spec.init_containers)
    )


def _with_resources(container: Container, items: list[LimitItem]) -> Container:
    given = container.resources
    limits: dict[str, Amount] = dict(given.limits)
    requests: dict[str, Amount] = dict(given.requests)
    for item in items:
        for name, value in (item.default_request or item.default).items():
            # A limit of its own is its request as well.
            if name not in given.limits:
                requests.setdefault(name, value)
        for name, value in item.default.items():
            limits.setdefault(name, value)
    return replace(container, resources=replace(given, limits=limits, requests=requests))


def why_out_of_limits(pod: PodSpec, rules: AdmissionRules) -> str:
    """Empty where its containers have what the namespace wants them to have."""
    for item in rules.limits.get(pod.namespace, ()):
        parts = [(f"container {one.name}", one.fields.resources) for one in pod.containers]
        for what, resources in parts if item.type == "Container" else [("the pod", _whole(pod))]:
            if item.type in ("Container", "Pod") and (why := next(_out_of(item, resources), "")):
                return f"{what}: {why}"
    return ""


def _whole(pod: PodSpec) -> Resources:
    needs = pod_needs(pod)
    figures = {
        "requests": {"cpu": f"{needs.cpu_request}m", "memory": str(needs.memory_request)},
        "limits": {"cpu": f"{needs.cpu_limit}m", "memory": str(needs.memory_limit)},
    }
    return Resources(
        requests={name: value for name, value in figures["requests"].items() if value not in ("0", "0m")},
        limits={name: value for name, value in figures["limits"].items() if value not in ("0", "0m")},
    )


def _out_of(item: LimitItem, resources: Resources) -> Iterator[str]:
    for name in LIMITED:
        limit = amount(resources.limits, name)
        request = amount(resources.requests, name) or limit
        least, most = amount(item.min, name), amount(item.max, name)
        ratio = amount(item.max_limit_request_ratio, name)
        if least and request < least:
            yield f"asks for {_text(name, request)} {name}, and the namespace wants at least {item.min[name]}"
        if most and not limit:
            yield f"has no limit of {name}, and the namespace allows at most {item.max[name]}"
        elif most and limit > most:
            yield f"may use {_text(name, limit)} {name}, and the namespace allows at most {item.max[name]}"
        if ratio and limit * BYTE > ratio * request:
            yield f"may use more than {item.max_limit_request_ratio[name]} times the {name} that it asks for"


def charge_of(pod: PodSpec) -> Charge:
    needs = pod_needs(pod)
    scopes = {"Terminating" if pod.spec.active_deadline_seconds is not None else "NotTerminating"}
    scopes.add("BestEffort" if qos_class(pod) == "BestEffort" else "NotBestEffort")
    amounts = {
        "pods": BYTE,
        "requests.cpu": needs.cpu_request * MILLI,
        "requests.memory": needs.memory_request * BYTE,
        "limits.cpu": needs.cpu_limit * MILLI,
        "limits.memory": needs.memory_limit * BYTE,
    }
    return Charge(pod.namespace, amounts, frozenset(scopes), pod.spec.priority_class_name)


def why_over_quota(charge: Charge, rules: AdmissionRules, others: Iterable[Charge]) -> str:
    """Empty where all quotas have room for it beside the pods that are there."""
    quotas = [one for one in rules.of(charge.namespace) if _concerns(one, charge)]
    there = [one for one in others if one.namespace == charge.namespace] if quotas else []
    for quota in quotas:
        used = _used(quota, there)
        for name, hard in quota.hard.items():
            held = HELD.get(name)
            if held is None:
                continue
            asked, most = charge.amounts[held], parse_quantity(str(hard)).nanos
            if not asked:
                return f"quota {quota.name}: pods have to say {held} there, and this one does not"
            if used[held] + asked > most:
                text = f"{_text(held, used[held])} of {hard} {name} are used, and {_text(held, asked)} more asked for"
                return f"quota {quota.name}: {text}"
    return ""


def quota_status(quota: Quota, others: Iterable[Charge]) -> Mapping[str, Any]:
    used = _used(quota, [one for one in others if one.namespace == quota.namespace])
    held = [name for name in quota.hard if name in HELD]
    return {
        "hard": {name: str(amount) for name, amount in quota.hard.items()},
        "used": {name: _text(HELD[name], used[HELD[name]]) for name in held},
    }


def quota_of(rules: AdmissionRules, key: Key) -> Quota | None:
    return rules.quotas.get(key) if key[0] == QUOTA else None


def _used(quota: Quota, there: Iterable[Charge]) -> dict[str, int]:
    counted = [one.amounts for one in there if _concerns(quota, one)]
    return {name: sum(amounts[name] for amounts in counted) for name in set(HELD.values())}


def _concerns(quota: Quota, charge: Charge) -> bool:
    return all(_is_in(scope, charge) for scope in quota.scopes)


def _is_in(scope: ScopeRequirement, charge: Charge) -> bool:
    if scope.scope_name != "PriorityClass":
        return (scope.scope_name in charge.scopes) == (scope.operator != "DoesNotExist")
    match scope.operator:
        case "In":
            return charge.priority_class in scope.values
        case "NotIn":
            return charge.priority_class not in scope.values
        case "Exists":
            return bool(charge.priority_class)
    return not charge.priority_class


def _text(name: str, nanos: int) -> str:
    return binary_quantity(nanos // BYTE) if "memory" in name or "storage" in name else str(Quantity(nanos=nanos))
