# SPDX-License-Identifier: Apache-2.0
"""Who has to be gone before whom, and who has to be there before whom.

The list order of Kubernetes, or the graph that `kepd.dev/depends-on.NAME` draws.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from agent.model.pods.pod import ContainerKind


class Dependency(msgspec.Struct, frozen=True):
    """A container needs another to be `started`, `ready` or `completed`."""

    name: str
    condition: str = "started"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ContainerKind
    needs: tuple[Dependency, ...] = msgspec.field(default=())


def waits_for_end(members: Sequence[Member]) -> Mapping[str, frozenset[str]]:
    """For each container those that must be gone before it is signalled. A sidecar outlives mains, inits and later
    sidecars; whoever is needed outlives those that need it."""
    waits: dict[str, set[str]] = {member.name: set() for member in members}
    for place, member in enumerate(members):
        if member.kind is ContainerKind.SIDECAR:
            later = members[place + 1 :]
            waits[member.name] |= {one.name for one in members if one.kind in (ContainerKind.MAIN, ContainerKind.INIT)}
            waits[member.name] |= {one.name for one in later if one.kind is ContainerKind.SIDECAR}
    _apply_needs(members, waits)
    return {name: frozenset(others) for name, others in waits.items()}


def _apply_needs(members: Sequence[Member], waits: dict[str, set[str]]) -> None:
    """What people wrote beats the order of the list where the two contradict each other."""
    for member in members:
        for need in member.needs:
            if need.name in waits and need.condition != "completed":
                waits[need.name].add(member.name)
                waits[member.name].discard(need.name)


def cycle(members: Sequence[Member]) -> tuple[str, ...]:
    """Names that wait for each other in a circle, the first again at the end; empty if there is none. Whatever is
    needed, init containers and sidecars start in the order of their list, and mains after all of them."""
    needs = {
        member.name: [*(need.name for need in member.needs), *before]
        for member, before in zip(members, _listed_before(members), strict=True)
    }
    done: set[str] = set()
    for first, others in needs.items():
        path = {first: iter(others)}
        while path and first not in done:
            name = next(reversed(path))
            other = next((other for other in path[name] if other in needs and other not in done), None)
            if other is None:
                done.add(name)
                del path[name]
            elif other in path:
                ring = [*path]
                return _shortened(members, ring[ring.index(other) :])
            else:
                path[other] = iter(needs[other])
    return ()


def _listed_before(members: Sequence[Member]) -> list[tuple[str, ...]]:
    """Of all that are listed before it the last, which itself waits for the others."""
    starters = [member.name for member in members if member.kind is not ContainerKind.MAIN]
    before = {name: starters[max(place - 1, 0) : place] for place, name in enumerate(starters)}
    return [tuple(before.get(member.name, starters[-1:])) for member in members]


def _shortened(members: Sequence[Member], ring: Sequence[str]) -> tuple[str, ...]:
    """Without those between two of which one is listed before the other."""
    places = {member.name: place for place, member in enumerate(members) if member.kind is not ContainerKind.MAIN}
    needs = {member.name: {need.name for need in member.needs} for member in members}
    kept = [ring[0]]
    for name, after in pairwise((*ring[1:], ring[0])):
        before = kept[-1]
        is_listed = after in places and places[after] < places.get(before, len(members))
        if after in needs[name] or not (after in needs[before] or is_listed):
            kept.append(name)
    return (*kept, ring[0])


def cycle_text(members: Sequence[Member], ring: Sequence[str]) -> str:
    """`a → b → a`: each waits for the next; where that is no need of its own the list says so."""
    needs = {one.name: {need.name for need in one.needs} for one in members}
    steps = (
        after if after in needs[before] else f"{after} (listed before {before})" for before, after in pairwise(ring)
    )
    return " → ".join((ring[0], *steps))
