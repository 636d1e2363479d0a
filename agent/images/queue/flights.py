# SPDX-License-Identifier: Apache-2.0
"""Flights: real pulls, each shared by all requests that want the same thing.

What follows for a flight from its members (its class, its turn) is derived here; the queue replaces it by a new value.
"""

from typing import Self, TypeVar

import msgspec

from agent.model.images.pull import CRITICAL_PRIORITY, PullClass, PullPolicy


class FlightKey(msgspec.Struct, frozen=True, gc=False):
    """What makes two requests the same pull. `fingerprint` stands for the ordered credentials."""

    reference: str
    handler: str = ""
    fingerprint: str = "public"

    @property
    def image(self) -> tuple[str, str]:
        return self.reference, self.handler


class FlightMember(msgspec.Struct, frozen=True, gc=False):
    """One request in a flight. `pod` is any text that is equal for requests of one pod."""

    id: str
    index: int
    arrived_s: float
    pod: str
    priority: int = 0
    policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    is_prefetch: bool = False

    @property
    def is_critical(self) -> bool:
        """Whether the pod may take what is kept for critical ones."""
        return self.priority >= CRITICAL_PRIORITY and not self.is_prefetch


class SharedPull(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pull, waiting until `started_s` is set. Make one with `of`, which derives the last three fields. `orphaned_s`
    says since when it has no member. It is critical if one member is: joining raises a flight, leaving lowers it
    again."""

    number: int
    key: FlightKey
    registry: str
    members: tuple[FlightMember, ...]
    size_bytes: int | None = None
    started_s: float | None = None
    orphaned_s: float | None = None
    is_kept: bool = False
    is_critical: bool
    is_prefetch: bool
    counting_members: tuple[FlightMember, ...]
    """Who decides when it is its turn: members of pods, if there are any."""

    @classmethod
    def of(cls, number: int, key: FlightKey, registry: str, member: FlightMember, size_bytes: int | None) -> Self:
        return cls(
            number=number,
            key=key,
            registry=registry,
            members=(member,),
            size_bytes=size_bytes,
            is_critical=member.is_critical,
            is_prefetch=member.is_prefetch,
            counting_members=(member,),
        )

    @property
    def is_running(self) -> bool:
        return self.started_s is not None

    @property
    def pull_class(self) -> PullClass:
        if self.is_prefetch:
            return PullClass.PREFETCH
        return PullClass.CRITICAL if self.is_critical else PullClass.POD

    def with_member(self, member: FlightMember, size_bytes: int | None) -> Self:
        """An orphan that is joined has a home again."""
        known = self.size_bytes if self.size_bytes is not None else size_bytes
        joined = msgspec.structs.replace(self, size_bytes=known, orphaned_s=None, is_kept=False)
        return _of_members(joined, (*self.members, member))

    def without(self, gone: frozenset[str]) -> Self:
        return _of_members(self, tuple(one for one in self.members if one.id not in gone))


FlightType = TypeVar("FlightType", bound=SharedPull)


def _of_members(flight: FlightType, members: tuple[FlightMember, ...]) -> FlightType:
    of_pods = tuple(member for member in members if not member.is_prefetch)
    return msgspec.structs.replace(
        flight,
        members=members,
        is_critical=any(member.is_critical for member in of_pods),
        is_prefetch=not of_pods,
        counting_members=of_pods or members,
    )
