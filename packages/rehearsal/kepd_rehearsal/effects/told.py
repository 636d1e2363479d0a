# SPDX-License-Identifier: Apache-2.0
"""All that is told of the pods that end and come by one change, and what of it a pipeline may fail on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.kinds.amounts import span
from kepd_rehearsal.effects.connections import OpenConnections
from kepd_rehearsal.effects.ends import PodsEnd, ends_of
from kepd_rehearsal.effects.pulls import PullRules, Pulls, pulls_of
from kepd_rehearsal.plan.changes import BadChange
from kepd_rehearsal.plan.cluster import Cluster, Member
from kepd_rehearsal.plan.rehearse import Rehearsal

GRACE = "grace"
PULL = re.compile(r"pull>(.*)\Z", re.DOTALL)
NO_CONNECTIONS = "connections that are open (see --connections)"
ABRUPT = ("lose-node", "lose-zone")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is known besides the dump."""

    rules: PullRules = PullRules()
    connections: OpenConnections | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """`ended_at_once`: pods whose nodes are lost, so nothing tells them to end. `connections`: those that are open, by
    pods; None if nobody said."""

    ends: tuple[PodsEnd, ...]
    ended_at_once: int
    pulls: Pulls
    connections: Mapping[str, int] | None = None
    connections_left_out: int = 0


def told_of(rehearsal: Rehearsal, verb: str, before: Cluster, after: Cluster, asked: Asked) -> Told:
    keys = {one.pod for one in rehearsal.ending}
    # One that has no node yet ends in no time.
    ending = [one for one in before.members if one.key in keys and one.node]
    known = asked.connections
    return Told(
        ends=() if verb in ABRUPT else ends_of(ending, _services(rehearsal) if ending else {}),
        ended_at_once=len(ending) if verb in ABRUPT else 0,
        pulls=pulls_of(before, after, _arrived(rehearsal, before, after), asked.rules),
        connections=None if known is None else known.of(ending),
        connections_left_out=0 if known is None else known.left_out,
    )


def _services(rehearsal: Rehearsal) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in rehearsal.services:
        for endpoint in one.before.endpoints:
            found.setdefault(endpoint.pod, []).append(one.before.service)
    return found


def _arrived(rehearsal: Rehearsal, before: Cluster, after: Cluster) -> Sequence[Member]:
    """In the order in which they get a node; those that a new node has by itself come first."""
    new = {one.name for one in after.hosts} - {one.name for one in before.hosts}
    places = {one.pod: place for place, one in enumerate(rehearsal.placed)}
    found = [one for one in after.members if one.key in places or one.node in new]
    return sorted(found, key=lambda one: places.get(one.key, -1))


def split_wanted(wanted: Iterable[str]) -> tuple[list[str], list[str]]:
    """What of --fail-on the topology knows, and what is known here. Raises BadChange."""
    names = list(wanted)
    own = [one for one in names if one == GRACE or _limit_s(one) is not None]
    return [one for one in names if one not in own], own


def _limit_s(name: str) -> float | None:
    if (found := PULL.match(name)) is None:
        return None
    # Only who is given a duration pays for the import.
    from agent.config.kinds import DURATION

    try:
        return float(str(DURATION.read(found[1])))
    except ValueError as error:
        raise BadChange(f"{name!r}: {error}") from error


def told_faults(change: str, told: Told, own: Iterable[str]) -> Iterator[str]:
    for name in own:
        if (limit_s := _limit_s(name)) is not None:
            yield from (f"{change}: {text}" for text in _slow(told.pulls, limit_s))
        else:
            yield from (f"{change}: {one.what}: {fault}" for one in told.ends for fault in one.faults)


def _slow(pulls: Pulls, limit_s: float) -> Iterator[str]:
    """An unknown size may be any, so that no limit is sure to hold."""
    late = [one for one in pulls.nodes if one.seconds > limit_s]
    if late:
        more = f", and so do {len(late) - 1} more nodes" if len(late) > 1 else ""
        yield f"{late[0].node} pulls for {span(late[0].seconds)}, longer than {span(limit_s)}{more}"
    elif names := pulls.unknown:
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        yield f"no node says the size of {names[0]}{more}, so pulls may exceed {span(limit_s)}; say it by --image-size"
    for one in pulls.nodes:
        if one.never:
            yield f"{one.node} lacks {one.never[0]}, and its policy Never lets nothing pull it"
