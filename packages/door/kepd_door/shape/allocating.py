# SPDX-License-Identifier: Apache-2.0
"""What an API server chooses for an object as it is written, and what it then lets nobody change: ports of the node for
Services, and the data of what is immutable. Pure but for the choice."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from agent.kinds.parts import items, part
from kepd_door.shape.defaults import OUTSIDE
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
PORTS = range(30000, 32768)
FIXED = ("data", "binaryData", "stringData")


def node_ports_of(service: Object) -> set[int]:
    spec = part(service, "spec")
    given = [port.get("nodePort") for port in items(spec, "ports")] + [spec.get("healthCheckNodePort")]
    return {port for port in given if isinstance(port, int) and port}


def with_node_ports(service: Object, before: Object | None, others: Iterable[Mapping[str, Any]]) -> Object:
    """`others` are Services, whose ports are taken; what this one had before, it has still. Raises Failure."""
    spec = part(service, "spec")
    ports = items(spec, "ports")
    if spec.get("type") not in OUTSIDE:
        was_outside = part(before, "spec").get("type") in OUTSIDE
        kept = node_ports_of(before) if before is not None and was_outside else set()
        bare = [{name: it for name, it in port.items() if name != "nodePort" or it not in kept} for port in ports]
        return {**service, "spec": {**spec, "ports": bare}} if kept and bare != ports else service
    if spec.get("allocateLoadBalancerNodePorts") is False and spec["type"] == "LoadBalancer":
        return service
    taken = {port for other in others for port in node_ports_of(dict(other))} | node_ports_of(service)
    known = {_place(port): port["nodePort"] for port in items(before, "spec", "ports") if port.get("nodePort")}
    made: list[Object] = []
    shared: dict[Any, int] = {}
    for port in ports:
        # TCP and UDP of one number have one port of the node as well.
        number = port.get("nodePort") or known.get(_place(port)) or shared.get(port.get("port")) or _free(taken)
        shared[port.get("port")] = number
        made.append({**port, "nodePort": number})
    more: Object = {"ports": made}
    if spec["type"] == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local":
        had = part(before, "spec").get("healthCheckNodePort")
        more["healthCheckNodePort"] = spec.get("healthCheckNodePort") or had or _free(taken)
    return {**service, "spec": {**spec, **more}}


def _place(port: Object) -> tuple[Any, Any]:
    return port.get("port"), port.get("protocol") or "TCP"


def _free(taken: set[int]) -> int:
    left = [port for port in PORTS if port not in taken]
    if not left:
        raise Failure(422, f"all ports of the node from {PORTS[0]} to {PORTS[-1]} are taken; name one in nodePort")
    taken.add(port := random.choice(left))  # noqa: S311 - it has to be free, not secret
    return port


def check_fixed(made: Object, before: Object) -> None:
    """Raises Failure where what is immutable would change."""
    if before.get("immutable") is not True or made.get("kind") not in ("ConfigMap", "Secret"):
        return
    changed = [name for name in FIXED if (made.get(name) or {}) != (before.get(name) or {})]
    if made.get("immutable") is not True:
        changed.append("immutable")
    if changed:
        text = "field is immutable when `immutable` is set; delete the object and make it anew"
        causes = [{"reason": "FieldValueForbidden", "message": text, "field": name} for name in changed]
        name = made["metadata"].get("name", "")
        raise Failure(422, f'{made["kind"]} "{name}" is invalid: {changed[0]}: Forbidden: {text}', causes=causes)
