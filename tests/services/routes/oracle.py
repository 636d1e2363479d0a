# SPDX-License-Identifier: Apache-2.0
"""Where Kubernetes' rules send a packet to a Service, written from the rules and from objects alone.

Owns: the smallest statement of them that a person can check by reading. Never: uses what it judges.
"""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple


class Sent(NamedTuple):
    """What becomes of it: `dnat` to one of the targets, `reject`, `drop` or `pass`."""

    verdict: str
    targets: frozenset[tuple[str, int]] = frozenset()


class Where(NamedTuple):
    """Node and zone of this node, and the networks of pods that it knows."""

    node: str
    zone: str
    pods: Sequence[str] = ()

    def is_pod(self, source: str) -> bool:
        return any(ip_address(source) in ip_network(one) for one in self.pods)


def endpoints(slices: Sequence[dict[str, Any]], port_name: str) -> list[dict[str, Any]]:
    """Of a port, by its name; without conditions an endpoint is ready."""
    found = []
    for one in slices:
        numbers = [port["port"] for port in one["ports"] if port["name"] == port_name]
        for number in numbers:
            for end in one["endpoints"]:
                state = end.get("conditions", {})
                found.append(
                    {
                        "target": (end["ip"], number),
                        "node": end.get("nodeName", ""),
                        "ready": state.get("ready") is not False,
                        "leaving": state.get("terminating") is True and state.get("serving") is not False,
                        "zones": [zone["name"] for zone in end.get("hints", {}).get("forZones", ())],
                        "nodes": [node["name"] for node in end.get("hints", {}).get("forNodes", ())],
                    }
                )
    return found


def anywhere(found: list[dict[str, Any]], here: Where) -> list[dict[str, Any]]:
    """Ready ones, of which hints choose where each has one and one is meant for us; else those on their way out."""
    ready = [one for one in found if one["ready"]]
    for kind, own in (("nodes", here.node), ("zones", here.zone)):
        meant = [one for one in ready if own and own in one[kind]]
        if meant and all(one[kind] for one in ready):
            return meant
    return ready or [one for one in found if one["leaving"]]


def on_this_node(found: list[dict[str, Any]], here: Where) -> list[dict[str, Any]]:
    mine = [one for one in found if one["node"] == here.node]
    return [one for one in mine if one["ready"]] or [one for one in mine if one["leaving"]]


def weighed(found: list[dict[str, Any]], weights: dict[str, int]) -> frozenset[tuple[str, int]]:
    """Weight 0 serves only where no other does."""
    heavy = [one for one in found if weights.get(one["target"][0], 1)]
    return frozenset(one["target"] for one in heavy or found)


def sent(
    service: dict[str, Any], slices: Sequence[dict[str, Any]], port: str, way: str, source: str, here: Where,
    *, is_from_host: bool,
) -> Sent:  # fmt: skip
    """`way`: clusterIP, externalIP, loadBalancer or nodePort."""
    found, notes = endpoints(slices, port), service["notes"]
    ranges = service["ranges"] if way == "loadBalancer" else ()
    is_open = not ranges or any(ip_address(source) in ip_network(one) for one in ranges)
    is_internal = way == "clusterIP"
    is_local = service["internal" if is_internal else "external"] == "Local"
    everybody, mine = anywhere(found, here), on_this_node(found, here)
    # A policy that is in no use keeps nobody: hints decide for traffic that may go anywhere.
    serving = [*everybody, *[one for one in found if one["ready"] or one["leaving"]]]
    if not serving:
        if notes.get("no-endpoints") == "pass":
            return Sent("pass")
        return Sent("reject" if is_open else "drop")
    if not is_open:
        return Sent("drop")
    if is_local and not is_internal and (is_from_host or here.is_pod(source)):
        # Who is inside of the cluster is not kept from other nodes by it.
        is_local = False
    chosen = weighed(mine if is_local else everybody, service["weights"])
    if chosen:
        return Sent("dnat", chosen)
    return Sent("reject" if notes.get("no-local-verdict") == "reject" else "drop")
