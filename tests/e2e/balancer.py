# SPDX-License-Identifier: Apache-2.0
"""A load balancer for the small cluster: Services of that type get an address of each of their families, which leads to
the nodes.

`python -m tests.e2e.balancer KUBECONFIG`, in the namespace that all nodes reach what is not theirs by. As one that
stands before real nodes it knows no pods: it leads to all nodes, by connection, or with `externalTrafficPolicy: Local`
to those whose health check of the Service says yes. Addresses pass as they are, of clients and of the Service.
"""

import ipaddress
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.names import Api

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
GIVEN = {"IPv4": "198.51.100.{}", "IPv6": "2001:db8:51::{:x}"}
# What leads to no node goes here, without a word, as with a balancer that drops it.
NOWHERE, RANGES = "nowhere", ("198.51.100.0/24", "2001:db8:51::/64")
# Clients here have an address of no node, so that one that was replaced on the way is noticed.
CLIENT = {"IPv4": "198.18.0.1", "IPv6": "2001:db8:18::1"}
PAUSE_S, CHECK_S = 0.5, 1.0
Routes = dict[str, tuple[str, ...]]


class Addresses:
    """A number for each Service, the smallest that is free."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, service: Mapping[str, Any]) -> dict[str, str]:
        """By family."""
        uid = service["metadata"]["uid"]
        if uid not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[uid] = next(number for number in range(1, 255) if number not in taken)
        return {family: GIVEN[family].format(self._numbers[uid]) for family in service["spec"]["ipFamilies"]}

    def keep(self, uids: Iterable[str]) -> None:
        """The others are free."""
        kept = set(uids)
        self._numbers = {uid: number for uid, number in self._numbers.items() if uid in kept}


def is_balanced(service: Mapping[str, Any]) -> bool:
    spec = service["spec"]
    is_ending = "deletionTimestamp" in service["metadata"]
    return spec.get("type") == "LoadBalancer" and "loadBalancerClass" not in spec and not is_ending


def is_held(service: Mapping[str, Any]) -> bool:
    return FINALIZER in service["metadata"].get("finalizers", ())


def patches(service: Mapping[str, Any], addresses: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """What to write, in order, with the part of the object that it goes to. Without addresses it is let go."""
    finalizers = [one for one in service["metadata"].get("finalizers", ()) if one != FINALIZER]
    wanted = [{"ip": one} for one in addresses.values()]
    shown = [{"ip": one.get("ip")} for one in service.get("status", {}).get("loadBalancer", {}).get("ingress", ())]
    status = [] if shown == wanted else [("/status", {"status": {"loadBalancer": {"ingress": wanted or None}}})]
    if addresses:
        held = [] if is_held(service) else [("", {"metadata": {"finalizers": [*finalizers, FINALIZER]}})]
        return [*held, *status]
    return [*status, ("", {"metadata": {"finalizers": finalizers}})] if is_held(service) else []


def gateways(service: Mapping[str, Any], healthy: Sequence[Mapping[str, str]], family: str) -> tuple[str, ...]:
    """Nodes that it leads to; one of them for a Service with affinity, since all clients here are one."""
    found = tuple(node[family] for node in healthy if family in node)
    return found[:1] if service["spec"].get("sessionAffinity") == "ClientIP" else found


def addresses_of(node: Mapping[str, Any]) -> dict[str, str]:
    listed = [one["address"] for one in node["status"].get("addresses", ()) if one["type"] == "InternalIP"]
    return {f"IPv{ipaddress.ip_address(one).version}": one for one in listed}


def passes(node: Mapping[str, str], port: int) -> bool:
    """Its health check of the Service."""
    with suppress(OSError), urllib.request.urlopen(f"http://{node['IPv4']}:{port}/healthz", timeout=CHECK_S) as answer:
        return bool(answer.status == 200)
    return False


def route(address: str, to: Sequence[str]) -> None:
    """Lead it to these from now on, or to none."""
    family = f"IPv{ipaddress.ip_address(address).version}"
    command = ["ip", f"-{family[-1]}", "route", "replace" if to else "del", address]
    hops = [word for one in to for word in ("nexthop", "via", one)]
    subprocess.run([*command, *(("src", CLIENT[family], *hops) if to else ())], check=True)


class Balancer:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._given = Addresses()
        self._routes: Routes = {}

    def turn(self) -> None:
        """Look at everything once, and do what is due."""
        nodes = [addresses_of(one) for one in self._api.get("/api/v1/nodes")["items"]]
        services = self._api.get("/api/v1/services")["items"]
        balanced = [one for one in services if is_balanced(one)]
        self._given.keep(one["metadata"]["uid"] for one in balanced)
        wanted: Routes = {}
        for service in balanced:
            port = service["spec"].get("healthCheckNodePort")
            healthy = [node for node in nodes if not port or passes(node, port)]
            for family, address in self._given.of(service).items():
                if to := gateways(service, healthy, family):
                    wanted[address] = to
        self._lead(wanted)
        for service in services:
            self._write(service, self._given.of(service) if is_balanced(service) else {})

    def _lead(self, wanted: Routes) -> None:
        for address in self._routes.keys() - wanted.keys():
            route(address, ())
        for address, to in wanted.items():
            if self._routes.get(address) != to:
                route(address, to)
        self._routes = wanted

    def _write(self, service: Mapping[str, Any], addresses: Mapping[str, str]) -> None:
        meta = service["metadata"]
        for part, patch in patches(service, addresses):
            self._api.patch(f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}{part}", patch)


def main(kubeconfig: str) -> None:
    for family, address in CLIENT.items():
        width = 32 if family == "IPv4" else 128
        subprocess.run(["ip", "address", "add", f"{address}/{width}", "dev", "lo"], check=True)
    # The other end stays down; a kernel without the module for dummies has these as well.
    subprocess.run(
        ["ip", "link", "add", NOWHERE, "up", "arp", "off", "type", "veth", "peer", "name", "dead"], check=True
    )
    for one in RANGES:
        subprocess.run(["ip", "route", "add", one, "dev", NOWHERE], check=True)
    # By connection, not by client.
    for family in ("ipv4", "ipv6"):
        Path(f"/proc/sys/net/{family}/fib_multipath_hash_policy").write_text("1")
    balancer = Balancer(Api(Path(kubeconfig)))
    while True:
        try:
            balancer.turn()
        except OSError as error:
            # The server is busy, or another program wrote the same object: the next turn sees.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
