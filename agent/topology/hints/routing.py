# SPDX-License-Identifier: Apache-2.0
"""What a proxy makes of hints: the endpoints a node uses for Cluster-policy traffic.

Owns: A8, the consumer's reading of conditions included (a missing `ready` is true here and false in `slices.py`).
Never: reads annotations or trafficDistribution; only hints count. Local-policy traffic is not asked about (TOP-38).
Source of behaviour: `pkg/proxy/topology.go`; KEP-4444; TOP-38 to TOP-45.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from agent.topology.hints.slices import Endpoint

__all__ = ["HintRoute", "RouteLevel", "choose_endpoints", "is_usable_now", "zone_uses_hints"]

RouteLevel = Literal["node", "zone", "all", "terminating", "none"]


class HintRoute(msgspec.Struct, frozen=True, gc=False):
    """The chosen endpoints in input order, how close they are, and why not closer."""

    level: RouteLevel
    endpoints: tuple[Endpoint, ...]
    why: str


def is_usable_now(endpoint: Endpoint) -> bool:
    return endpoint.ready is not False


def choose_endpoints(endpoints: Sequence[Endpoint], node: str, zone: str | None) -> HintRoute:
    """One endpoint without a hint switches the whole level off; so does a hint list that nobody here is on."""
    ready = tuple(endpoint for endpoint in endpoints if is_usable_now(endpoint))
    if not ready:
        leaving = tuple(endpoint for endpoint in endpoints if _serves_while_terminating(endpoint))
        level: RouteLevel = "terminating" if leaving else "none"
        return HintRoute(level, leaving, "no endpoint is ready; those that still serve while terminating are left")
    for_node = _listed(ready, node, by_node=True)
    if for_node:
        return HintRoute("node", for_node, f"every ready endpoint has a node hint and {len(for_node)} name node {node}")
    # A node without the label has the empty name for a zone, which only a hint with an empty name would match (TOP-43).
    own_zone = zone or ""
    for_zone = _listed(ready, own_zone, by_node=False)
    if for_zone:
        why = f"every ready endpoint has a zone hint and {len(for_zone)} name zone {own_zone!r}"
        return HintRoute("zone", for_zone, why)
    return HintRoute("all", ready, _why_all(ready, own_zone))


def zone_uses_hints(endpoints: Sequence[Endpoint], zone: str) -> bool:
    """Whether nodes of this zone keep traffic in reach of the hints instead of going everywhere."""
    ready = [endpoint for endpoint in endpoints if is_usable_now(endpoint)]
    return bool(_listed(ready, zone, by_node=False))


def _serves_while_terminating(endpoint: Endpoint) -> bool:
    return endpoint.serving is not False and endpoint.terminating is True


def _listed(ready: Sequence[Endpoint], name: str, *, by_node: bool) -> tuple[Endpoint, ...]:
    """The endpoints hinted for `name`; nothing at all if one endpoint has no such hint."""
    chosen = []
    for endpoint in ready:
        names = _hint_names(endpoint, by_node=by_node)
        if not names:
            return ()
        if name in names:
            chosen.append(endpoint)
    return tuple(chosen)


def _hint_names(endpoint: Endpoint, *, by_node: bool) -> tuple[str, ...]:
    if endpoint.hints is None:
        return ()
    return endpoint.hints.nodes if by_node else endpoint.hints.zones


def _why_all(ready: Sequence[Endpoint], zone: str) -> str:
    unhinted = next((endpoint for endpoint in ready if not _hint_names(endpoint, by_node=False)), None)
    if unhinted is not None:
        return f"ready endpoint {unhinted.address} has no zone hint, which switches topology off on every node"
    return f"no ready endpoint is hinted for zone {zone!r}"
