# SPDX-License-Identifier: Apache-2.0
"""What stands behind a node port on localhost, where packets are not led elsewhere but a program passes them on.

A connection of this host is led as the kernel leads it to the node's other addresses: by the list of the whole
cluster, by weights, and where clients come back, to the endpoint of the one client that there is.
Never: listens or connects; run/localhost_relay.py does.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from agent.model.services.nft_table import Family
from agent.model.services.service import Address, ServiceKey
from agent.services.nftables.elements import NO_SLOTS, slots_of
from agent.services.routes.frontends import Frontend, PortPlan, ServicePlan

LOCALHOST = "localhost"
"""The word in `services.nodePortAddresses`."""
LOOPBACK: dict[Family, Address] = {
    "IPv4": Address("IPv4", "127.0.0.1", b"\x7f\x00\x00\x01"),
    "IPv6": Address("IPv6", "::1", bytes(15) + b"\x01"),
}


class RelayedPort(msgspec.Struct, frozen=True):
    """A node port and where its connections may go, as often as each is to be chosen."""

    service: ServiceKey
    port: PortPlan
    slots: tuple[bytes, ...]


class Returning(msgspec.Struct, frozen=True):
    """The endpoint to which this host comes back, and until when."""

    endpoint: bytes
    until_s: float


def node_ports(plan: ServicePlan) -> Iterator[tuple[Frontend, PortPlan]]:
    for port in plan.ports:
        for one in port.frontends:
            if one.kind == "nodePort":
                yield one, port


def relayed_ports(plan: ServicePlan, family: Family, own: Sequence[Address]) -> Iterator[tuple[int, RelayedPort]]:
    """By number. `own` are addresses of this node: whoever may come from one of them may come from localhost."""
    for frontend, port in node_ports(plan):
        if frontend.protocol == "TCP":
            slots = slots_of(port, NO_SLOTS, plan.options).cluster if _may_enter(frontend, family, own) else ()
            yield frontend.port, RelayedPort(plan.key, port, slots)


def unrelayed_ports(plan: ServicePlan) -> Iterator[Frontend]:
    """Only a stream can be passed on without the client's address."""
    for frontend, _ in node_ports(plan):
        if frontend.protocol != "TCP":
            yield frontend


def _may_enter(frontend: Frontend, family: Family, own: Sequence[Address]) -> bool:
    if not frontend.is_restricted:
        return True
    here = (LOOPBACK[family], *own)
    return any(one.first <= address.packed <= one.last for one in frontend.ranges for address in here)


def choose(
    relayed: RelayedPort,
    returning: Returning | None,
    tried: Collection[bytes],
    now_s: float,
    draw: Callable[[int], int],
) -> bytes | None:
    """One endpoint that was not tried yet; None: there is none. `draw` gives a number below the one it is given."""
    if returning is not None and returning.until_s > now_s and not tried and returning.endpoint in relayed.slots:
        return returning.endpoint
    rest = [one for one in relayed.slots if one not in tried]
    return rest[draw(len(rest))] if rest else None
