# SPDX-License-Identifier: Apache-2.0
"""Hints from `spec.trafficDistribution`: every endpoint serves its own zone, or also its own node.

There is no capacity, no minimum, no donation and no refusal here.
Never: touches unready endpoints, except when the field is gone and all hints go with it.
Source of behaviour: k8s.io/endpointslice/trafficdist; KEP-4444, KEP-3015.
"""

from agent.topology.hints.mode import DISTRIBUTIONS
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists, strip_hints, with_hints

SAME_NODE = "PreferSameNode"


def distribute_hints(lists: SliceLists, traffic_distribution: str | None) -> SliceLists:
    """The slices with the hints that the value asks for; any other value takes all hints away."""
    if traffic_distribution not in DISTRIBUTIONS:
        return strip_hints(lists)
    by_node = traffic_distribution == SAME_NODE
    deviating = tuple(piece for piece in lists.unchanged if _deviates(piece, by_node=by_node))
    return SliceLists(
        to_create=tuple(_hinted(piece, by_node=by_node) for piece in lists.to_create),
        to_update=tuple(_hinted(piece, by_node=by_node) for piece in lists.to_update + deviating),
        unchanged=tuple(piece for piece in lists.unchanged if not _deviates(piece, by_node=by_node)),
    )


def _wanted(endpoint: Endpoint, *, by_node: bool) -> Hints:
    """A zone that is written down counts, even an empty one."""
    return Hints(
        zones=() if endpoint.zone is None else (endpoint.zone,),
        nodes=() if endpoint.node is None or not by_node else (endpoint.node,),
    )


def _deviates(piece: Slice, *, by_node: bool) -> bool:
    return any(
        (endpoint.hints or Hints()) != _wanted(endpoint, by_node=by_node)
        for endpoint in piece.endpoints
        if endpoint.is_ready
    )


def _hinted(piece: Slice, *, by_node: bool) -> Slice:
    def hinted(endpoint: Endpoint) -> Endpoint:
        if not endpoint.is_ready:
            return endpoint
        wanted = _wanted(endpoint, by_node=by_node)
        return with_hints(endpoint, wanted if wanted != Hints() else None)

    return Slice(piece.name, tuple(map(hinted, piece.endpoints)))
