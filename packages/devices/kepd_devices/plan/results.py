# SPDX-License-Identifier: Apache-2.0
"""What a claim's status says of what it got: devices, their configuration, and the nodes on which they are."""

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from agent.model.pods.affinity import NodeRequirement, NodeTerms
from kepd_devices.manifest.objects import Claim, Config
from kepd_devices.plan.search import Given, SearchAnswer
from kepd_devices.plan.wanted import Alternative, Asked

ON_THIS_NODE = "metadata.name"


def allocations(answer: SearchAnswer, node: str) -> list[dict[str, Any]]:
    """One for each claim, in order, as in `status.allocation`."""
    found = []
    for asked, given in zip(answer.asked, answer.given or (), strict=True):
        devices: dict[str, Any] = {"results": [_result(asked.claim, number, one) for number, one in enumerate(given)]}
        if config := _config(asked, given):
            devices["config"] = config
        allocation: dict[str, Any] = {"devices": devices}
        if selector := _node_selector(given, node):
            allocation["nodeSelector"] = selector
        found.append(allocation)
    return found


def _result(claim: Claim, number: int, one: Given) -> dict[str, Any]:
    device, wanted = one.offer.id, one.alternative
    found: dict[str, Any] = {
        "request": wanted.name, "driver": device.driver, "pool": device.pool, "device": device.device,
    }  # fmt: skip
    if wanted.is_admin:
        found["adminAccess"] = True
    if one.offer.is_shared:
        found["shareID"] = share_id(claim, wanted.name, number)
        if one.amounts:
            found["consumedCapacity"] = {name: str(amount) for name, amount in one.amounts.items()}
    if conditions := one.offer.device.binding_conditions:
        found["bindingConditions"] = list(conditions)
        found["bindingFailureConditions"] = list(one.offer.device.binding_failure_conditions)
    return found


def share_id(claim: Claim, request: str, number: int) -> str:
    """The same whenever it is asked for: a kepd that was killed gives the same share again."""
    words = f"{claim.metadata.uid or claim.key}\0{request}\0{number}"
    return str(UUID(bytes=hashlib.sha256(words.encode()).digest()[:16], version=4))


def _config(asked: Asked, given: Sequence[Given]) -> list[dict[str, Any]]:
    chosen = [_chosen(alternatives, given) for alternatives in asked.requests]
    return [*_of_classes(chosen), *_of_claim(asked.claim, chosen)]


def _chosen(alternatives: list[Alternative], given: Sequence[Given]) -> Alternative:
    return next((one for one in alternatives if any(it.alternative is one for it in given)), alternatives[0])


def _of_classes(chosen: list[Alternative]) -> list[dict[str, Any]]:
    """Each class once, for all requests that use it."""
    users: dict[str, list[str]] = {}
    classes = {}
    for one in chosen:
        users.setdefault(one.device_class.metadata.name, []).append(one.name)
        classes[one.device_class.metadata.name] = one.device_class
    return [
        _entry("FromClass", config, requests)
        for name, requests in users.items()
        for config in classes[name].spec.config
    ]


def _of_claim(claim: Claim, chosen: list[Alternative]) -> list[dict[str, Any]]:
    found = []
    for config in claim.spec.devices.config:
        named = [one for one in chosen if one.request in config.requests or one.name in config.requests]
        found += [_entry("FromClaim", config, list(config.requests))] * (len(named) if config.requests else 1)
    return found


def _entry(source: str, config: Config, requests: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"source": source}
    if requests:
        found["requests"] = requests
    if config.opaque is not None:
        found["opaque"] = {"driver": config.opaque.driver, "parameters": config.opaque.parameters}
    return found


def _node_selector(given: Sequence[Given], node: str) -> dict[str, Any] | None:
    """This node, where one of the devices is on no other; else what all slices ask of a node."""
    fields: list[NodeRequirement] = []
    expressions: list[NodeRequirement] = []
    for one in given:
        spec, device = one.offer.slice.spec, one.offer.device
        place = device if spec.per_device_node_selection else spec
        if place.node_name is not None or device.binds_to_node:
            found = {"key": ON_THIS_NODE, "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [found]}]}
        _merge(place.node_selector, fields, expressions)
    term = {
        name: [_written(one) for one in requirements]
        for name, requirements in (("matchExpressions", expressions), ("matchFields", fields))
        if requirements
    }
    return {"nodeSelectorTerms": [term]} if term else None


def _merge(selector: NodeTerms | None, fields: list[NodeRequirement], expressions: list[NodeRequirement]) -> None:
    for term in selector.node_selector_terms[:1] if selector is not None else ():
        for more, known in ((term.match_fields, fields), (term.match_expressions, expressions)):
            known += [one for one in more if not any(_is_same(one, other) for other in known)]


def _is_same(one: NodeRequirement, other: NodeRequirement) -> bool:
    return (one.key, one.operator, set(one.values)) == (other.key, other.operator, set(other.values))


def _written(one: NodeRequirement) -> dict[str, Any]:
    found: dict[str, Any] = {"key": one.key, "operator": one.operator}
    return {**found, "values": list(one.values)} if one.values else found
