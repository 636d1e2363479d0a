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
    needs = {one.name: [*(need.name for need in one.needs), *_listed_before(members, one)] for one in members}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if name in path:
            return (*path[path.index(name) :], name)
        if name in done:
            return ()
        for other in needs.get(name, ()):
            if found := walk(other, (*path, name)):
                return found
        done.add(name)
        return ()

    return next((found for name in needs if (found := walk(name, ()))), ())


def cycle_text(members: Sequence[Member], ring: Sequence[str]) -> str:
    """`a → b → a`: each waits for the next; where that is no need of its own the list says so."""
    needs = {one.name: {need.name for need in one.needs} for one in members}
    steps = (
        after if after in needs[before] else f"{after} (listed before {before})" for before, after in pairwise(ring)
    )
    return " → ".join((ring[0], *steps))


def _listed_before(members: Sequence[Member], member: Member) -> list[str]:
    others = members if member.kind is ContainerKind.MAIN else members[: members.index(member)]
    return [one.name for one in others if one.kind is not ContainerKind.MAIN]
