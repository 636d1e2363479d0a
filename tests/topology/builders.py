# SPDX-License-Identifier: Apache-2.0
"""Short ways to write down nodes, slices, pods and manifests in the tests of topology.

Owns: defaults that do not matter to a test. What matters is always an argument.
Never: computes an expected value.
"""

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL, Node
from agent.model.quantity import parse_quantity
from agent.model.selector import LabelSelector
from agent.topology.hints.capacity import ZoneCapacity, read_capacity
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists
from agent.topology.manifest.facts import PodFacts, SpreadConstraint

WEB = LabelSelector({"app": "web"})


def node(name, zone="a", cpu="4", ready="True", labels=None, **more):
    all_labels = {HOSTNAME_LABEL: name} | ({} if zone is None else {ZONE_LABEL: zone}) | (labels or {})
    return Node(name, all_labels, ready, None if cpu is None else parse_quantity(cpu), **more)


def nodes(**cpu_by_zone):
    """One node per zone: nodes(a="2", b="4")."""
    return tuple(node(f"n-{zone}", zone, cpu) for zone, cpu in cpu_by_zone.items())


def capacity(**cpu_by_zone) -> ZoneCapacity:
    usable = read_capacity(nodes(**cpu_by_zone)).capacity
    assert usable is not None
    return usable


def endpoint(address, zone="a", ready=True, hints=None, **more):
    """`hints` is a string of one-letter zones; None means no hints object."""
    return Endpoint((address,), zone=zone, ready=ready, hints=None if hints is None else Hints(tuple(hints)), **more)


def piece(name, zones, hints=None, start=1):
    """A slice with one ready endpoint per letter of `zones`, each hinted for the letter of `hints` at its place."""
    marks = hints if hints is not None else [None] * len(zones)
    return Slice(
        name,
        tuple(
            endpoint(f"{name}-{number}", zone, hints=mark)
            for number, (zone, mark) in enumerate(zip(zones, marks, strict=True), start)
        ),
    )


def new(*pieces):
    return SliceLists(to_create=pieces)


def stored(*pieces):
    return SliceLists(unchanged=pieces)


def hint_letters(slices):
    """Per endpoint the joined hint zones, '-' without a hints object; slices in the order given."""
    return ["-" if one.hints is None else "".join(one.hints.zones) for element in slices for one in element.endpoints]


def constraint(key=ZONE_LABEL, max_skew=1, action="DoNotSchedule", selector=WEB, **more):
    return SpreadConstraint(max_skew, key, action, selector, **more)


def pod(name="incoming", node_name=None, constraints=(), labels=None, **more):
    return PodFacts(
        "default", name, {"app": "web"} if labels is None else labels, node_name, constraints=constraints, **more
    )


def pods_on(**count_by_node):
    """Matching pods per node: pods_on(n1=2, n2=0)."""
    return tuple(pod(f"{name}-{number}", name) for name, count in count_by_node.items() for number in range(count))


def node_manifest(name, zone="a", cpu="4", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ZONE_LABEL: zone, HOSTNAME_LABEL: name}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def slice_manifest(zones, name="web-1", service="web", family="IPv4"):
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": [
            {"addresses": [f"10.0.0.{number}"], "zone": zone, "conditions": {"ready": True}}
            for number, zone in enumerate(zones, 1)
        ],
    }


def service_manifest(name="web", annotations=None, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"selector": {"app": "web"}} | spec,
    }


def pod_manifest(name="incoming", node_name=None, **spec):
    placed = {} if node_name is None else {"nodeName": node_name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "web"}]} | placed | spec,
    }


def constraint_manifest(**changes):
    return {
        "maxSkew": 1,
        "topologyKey": ZONE_LABEL,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    } | changes
