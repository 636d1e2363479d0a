# SPDX-License-Identifier: Apache-2.0
"""The zone plan of a pod on given nodes: spread decides where endpoints can be, CPU decides what hints want.

Never: invents placement; without a zone constraint it says that it assumes an even one.
Source of behaviour: `spread/filter.py` for the zones, `capacity.py` for the shares.
"""

from collections.abc import Iterator, Sequence

from agent.model.nodes.node import ZONE_LABEL, Node
from agent.topology.hints.allocation import OVERLOAD_THRESHOLD
from agent.topology.hints.capacity import read_capacity
from agent.topology.hints.zones import ZonePlan, plan_zones
from agent.topology.manifest.facts import PodFacts
from agent.topology.spread.constraints import PreparedConstraint, has_all_keys, includes, prepare_constraints
from agent.topology.spread.placement import stand


def plan_zones_for_pod(
    pod: PodFacts, nodes: Sequence[Node], replicas: range, threshold: float = OVERLOAD_THRESHOLD
) -> ZonePlan:
    """The plan with endpoints in the zones that the pod's zone constraint counts. Raises ValueError if it cannot."""
    prepared = prepare_constraints(pod)
    error = prepared.hard_error or prepared.soft_error
    if error is not None:
        raise ValueError(f"pod {pod.key}: {error}")
    reading = read_capacity(nodes)
    group = next(
        (group for group in (prepared.hard, prepared.soft) if any(one.topology_key == ZONE_LABEL for one in group)), ()
    )
    if group:
        counted = _counted_zones(pod, nodes, group)
        remarks = list(_differences(counted, reading.zones))
    else:
        counted = reading.zones
        remarks = [f"pod {pod.key} has no constraint on {ZONE_LABEL}; an even placement is assumed, not given"]
    placement = tuple(zone for zone in counted if zone)
    return plan_zones(reading, replicas[0], replicas[-1], placement, threshold, tuple(remarks))


def _counted_zones(pod: PodFacts, nodes: Sequence[Node], group: Sequence[PreparedConstraint]) -> tuple[str, ...]:
    """Zones with at least one eligible node; constraints of the same kind share the test for labels."""
    constraint = next(one for one in group if one.topology_key == ZONE_LABEL)
    standings = [stand(pod, node) for node in nodes]
    zones = {
        standing.node.labels[ZONE_LABEL]
        for standing in standings
        if has_all_keys(standing.node.labels, group) and includes(constraint, standing)
    }
    return tuple(sorted(zones))


def _differences(counted: Sequence[str], with_capacity: Sequence[str]) -> Iterator[str]:
    for zone in with_capacity:
        if zone not in counted:
            yield f"zone {zone} has capacity but no node that the constraint counts: it lives on donations alone"
    for zone in counted:
        if not zone:
            yield "a counted node has an empty zone label: an endpoint there has no zone and refuses hints"
        elif zone not in with_capacity:
            yield f"zone {zone} is counted but has no capacity: its endpoints serve no proxy that has capacity"
