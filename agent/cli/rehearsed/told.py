# SPDX-License-Identifier: Apache-2.0
"""All that is told of the pods that end and come by one change, and what of it a pipeline may fail on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.cli.rehearsed.connections import OpenConnections, open_connections
from agent.cli.rehearsed.ends import PodsEnd, ends_of
from agent.cli.rehearsed.pulls import PullRules, Pulls, pulls_of
from agent.kinds.amounts import span
from agent.topology.rehearsal.changes import BadChange
from agent.topology.rehearsal.cluster import Cluster, Member
from agent.topology.rehearsal.rehearse import Rehearsal

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
    ending = [one for one in before.members if one.key in keys] if keys else []
    known = asked.connections
    return Told(
        ends=() if verb in ABRUPT else ends_of(ending, _services(rehearsal) if ending else {}),
        ended_at_once=len(ending) if verb in ABRUPT else 0,
        pulls=pulls_of(before, after, _arrived(rehearsal, before, after), asked.rules),
        connections=None if known is None else open_connections(ending, known),
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
    if not new and not places:
        return ()
    found = [one for one in after.members if one.key in places or one.node in new]
    return sorted(found, key=lambda one: places.get(one.key, -1))


class PullLimit(msgspec.Struct, frozen=True):
    text: str
    seconds: float


def split_wanted(wanted: Iterable[str]) -> tuple[list[str], list[str | PullLimit]]:
    """What of --fail-on the topology knows, and what is known here. Raises BadChange."""
    rest: list[str] = []
    own: list[str | PullLimit] = []
    for name in wanted:
        if name == GRACE:
            own.append(name)
        elif (limit := PULL.match(name)) is not None:
            own.append(PullLimit(limit[1], _duration_s(limit[1], name)))
        else:
            rest.append(name)
    return rest, own


def _duration_s(text: str, whole: str) -> float:
    # Only who is given a duration pays for the import.
    from agent.config.kinds import DURATION

    try:
        return float(str(DURATION.read(text)))
    except ValueError as error:
        raise BadChange(f"{whole!r}: {error}") from error


def told_faults(change: str, told: Told, own: Iterable[str | PullLimit]) -> Iterator[str]:
    for wanted in own:
        if isinstance(wanted, str):
            for one in told.ends:
                yield from (f"{change}: {one.what}: {fault}" for fault in one.faults)
        else:
            yield from (f"{change}: {text}" for text in _slow(told.pulls, wanted))


def _slow(pulls: Pulls, limit: PullLimit) -> Iterator[str]:
    """A size that nobody tells may be any, so a limit cannot be kept by it."""
    late = [one for one in pulls.nodes if one.seconds > limit.seconds]
    if late:
        first = f"{late[0].node} pulls for {span(late[0].seconds)}, longer than {limit.text}"
        yield first + (f", and so do {len(late) - 1} more nodes" if len(late) > 1 else "")
    elif pulls.unknown:
        names = pulls.unknown
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        yield f"nobody tells the size of {names[0]}{more}, so pulls may take longer than {limit.text}; say --image-size"
    for one in pulls.nodes:
        if one.never:
            yield f"{one.node} lacks {one.never[0]}, and its policy Never lets nothing pull it"
