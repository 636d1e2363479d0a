# SPDX-License-Identifier: Apache-2.0
"""Moving endpoints from zones that have too many to zones that have too few.

Never: rechecks that every zone reached its minimum; neither does Kubernetes. Where Kubernetes goes by the
order of a Go map, the lowest zone name decides here, so that every node agrees.
Source of behaviour: k8s.io/endpointslice/topologycache (getGivingAndReceivingZones, redistributeHints).
"""

from collections.abc import Mapping, Sequence

import msgspec

from agent.topology.hints.slices import Endpoint, Hints, Slice, with_hints

WORTH_MOVING = 1.0
TOO_LITTLE = 0.5


class Donations(msgspec.Struct, frozen=True, gc=False):
    """How many endpoints zones are to give and to receive; zones with nothing to do are not listed."""

    give: dict[str, int]
    receive: dict[str, int]


class Walked(msgspec.Struct, frozen=True, gc=False):
    """The work list with donated endpoints pointed elsewhere, and what was really moved."""

    slices: tuple[Slice, ...]
    donated: dict[str, int]
    received: dict[str, int]


def plan_donations(desired: Mapping[str, float], have: Mapping[str, int]) -> Donations:
    """Greatest surplus to greatest need, one endpoint at a time, until it is not worth it any more."""
    surplus: dict[str, float] = {}
    need: dict[str, float] = {}
    for zone, target in desired.items():
        held = float(have.get(zone, 0))
        if held > target:
            surplus[zone] = held - target
        elif held < target:
            need[zone] = target - held
    give: dict[str, int] = {}
    receive: dict[str, int] = {}
    while True:
        giver, receiver = _greatest(surplus), _greatest(need)
        if giver is None or receiver is None:
            break
        most = max(surplus[giver], need[receiver])
        less = min(surplus[giver], need[receiver])
        if most < WORTH_MOVING or less < TOO_LITTLE:
            break
        give[giver] = give.get(giver, 0) + 1
        receive[receiver] = receive.get(receiver, 0) + 1
        # Counting down keeps the noise of doubles that decides ties upstream; recomputing would lose it.
        surplus[giver] -= 1.0
        need[receiver] -= 1.0
    return Donations(give, receive)


def _greatest(values: Mapping[str, float]) -> str | None:
    """The zone with the greatest value above zero; the lowest name among equals."""
    best: str | None = None
    for zone in sorted(values):
        if values[zone] > (0.0 if best is None else values[best]):
            best = zone
    return best


def walk_donations(work: Sequence[Slice], plan: Donations) -> Walked:
    """Points the first ready endpoints of each giving zone at the lowest zone that still waits for one."""
    give, receive = dict(plan.give), dict(plan.receive)
    donated: dict[str, int] = {}
    received: dict[str, int] = {}

    def moved(endpoint: Endpoint) -> Endpoint:
        zone = endpoint.zone
        if not endpoint.is_ready or zone is None or zone not in give or not receive:
            return endpoint
        target = min(receive)
        for counts, name in ((give, zone), (receive, target)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        donated[zone] = donated.get(zone, 0) + 1
        received[target] = received.get(target, 0) + 1
        return with_hints(endpoint, Hints(zones=(target,)))

    slices = tuple(
        Slice(piece.name, tuple(moved(endpoint) for endpoint in piece.endpoints)) if give and receive else piece
        for piece in work
    )
    return Walked(slices, donated, received)
