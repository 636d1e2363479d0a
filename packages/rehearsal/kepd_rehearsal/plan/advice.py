# SPDX-License-Identifier: Apache-2.0
"""The smallest change that makes a goal hold, found by trying changes in the order of their size.

First another number of pods, one more or fewer at a time, then another policy of the Service, then one more node. What
is found is rehearsed as a whole: that is its proof, and the advice promises nothing that a rehearsal would not show.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from kepd_rehearsal.plan.changes import BadChange, Change, Changed, applied, first_to_go, made_for
from kepd_rehearsal.plan.cluster import Cluster, Crew, Member, Traffic, Written
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse, written_before
from kepd_rehearsal.plan.scheduling import Floor, place
from kepd_rehearsal.plan.serving import Crowd, Ground, Serving, serving
from kepd_rehearsal.plan.slices import endpoints_of, written_anew, written_first

OVERLOAD = re.compile(r"overload<(\d{1,4})%\Z")
GOALS = "hints, no-dark, overload<PERCENT%"
MOST_MORE = 30
NEAR = ("PreferSameZone", "PreferSameNode")
ACTIVE = ("active", "distribution")
Told = Callable[[str], None]
Tries = Generator[tuple[Change, Serving | None], None, None]


class Goal(msgspec.Struct, frozen=True):
    kind: str
    limit: float = 0.0

    def holds(self, one: Serving) -> bool:
        match self.kind:
            case "hints":
                return one.hints in ACTIVE
            case "no-dark":
                return not one.dark_nodes and not one.is_dead
        return not one.is_dead and one.overload < self.limit


class Advice(msgspec.Struct, frozen=True):
    """`change` None: nothing that was tried makes it hold."""

    service: str
    goal: str
    change: Change | None
    proof: Rehearsal | None = None
    tried: int = 0


def parse_goal(text: str) -> Goal:
    if text in ("hints", "no-dark"):
        return Goal(text)
    found = OVERLOAD.match(text)
    if found is None:
        raise BadChange(f"{text!r} is no goal; expected one of {GOALS}")
    return Goal("overload", int(found[1]) / 100)


def advise(
    cluster: Cluster, goal: Goal, text: str, services: Sequence[str] = (), told: Told = lambda _: None
) -> list[Advice]:
    """For each Service of which the goal does not hold. `told` hears which is looked at."""
    board = _Board(cluster)
    found = []
    for number, traffic in enumerate(cluster.traffic, 1):
        if (services and traffic.key not in services) or not traffic.service.selector:
            continue
        told(f"advice for {traffic.key}, {number} of {len(cluster.traffic)}")
        search = _Search(board, traffic)
        if not goal.holds(search.now):
            found.append(_found(board, search, goal, text))
    return found


class _Board:
    """What all tries share. The floor is as it was again after each Service."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ground, self.crowd = (
            Ground(cluster.hosts),
            Crowd(cluster.members, [one.service for one in cluster.traffic]),
        )
        self.floor = Floor(cluster.hosts, cluster.members)
        self.has_waiting = bool(self.floor.waiting())
        self._with_node: dict[str, tuple[Change, Changed, Ground]] = {}

    def one_more(self) -> Iterator[tuple[Change, Changed, Ground]]:
        for zone in sorted({one.node.zone for one in self.cluster.hosts} - {""}):
            if zone not in self._with_node:
                like = next(one.name for one in self.cluster.hosts if one.node.zone == zone)
                change = Change("add-node", like, value=zone)
                changed = applied(self.cluster, change)
                self._with_node[zone] = change, changed, Ground(changed.cluster.hosts)
            yield self._with_node[zone]


class _Search:
    """Tries for one Service: what its clients would find."""

    def __init__(self, board: _Board, traffic: Traffic) -> None:
        self.board, self.traffic = board, traffic
        self.members = board.crowd.of(traffic)
        self.before: Written = written_before(board.cluster, traffic, self.members, board.ground)
        self.now = serving(traffic, self.before, board.ground)

    def tries(self, goal: Goal) -> Tries:
        """None: a pod would wait."""
        crew = self._crew()
        if crew is not None:
            yield from self._counts(crew)
        policies = {"hints": NEAR, "no-dark": ("Cluster",), "overload": ("None", *NEAR)}[goal.kind]
        for policy in policies:
            change = Change("traffic", self.traffic.key, value=policy)
            (edited,) = applied(replace(self.board.cluster, traffic=(self.traffic,)), change).cluster.traffic
            yield change, self._served(self.members, self.board.ground, edited)
        for change, changed, ground in self.board.one_more():
            own = Crowd(changed.cluster.members[len(self.board.cluster.members) :], [self.traffic.service]).of(
                self.traffic
            )
            yield change, self._served([*self.members, *own], ground, self.traffic)

    def _counts(self, crew: Crew) -> Tries:
        namespace, name = crew.key[1:]
        own = [one for one in self.members if one.workload == crew.key]
        made = made_for(crew, MOST_MORE, {one.key for one in own})
        spare = [one.key for one in first_to_go(own, crew)]
        added: list[Member] = []
        try:
            for step in range(1, MOST_MORE + 1):
                if len(added) == step - 1:
                    added += self._placed(made[step - 1], crew)
                up = crew.replicas + step
                enough = len(own) == crew.replicas and len(added) == step
                members = [*self.members, *added]
                yield (
                    Change("scale", f"{namespace}/{name}", up, up),
                    self._served(members, self.board.ground, self.traffic) if enough else None,
                )
                down = crew.replicas - step
                if down > 0:
                    leaving = set(spare[: max(len(own) - down, 0)])
                    left = [one for one in self.members if one.key not in leaving]
                    yield (
                        Change("scale", f"{namespace}/{name}", down, down),
                        self._served(left, self.board.ground, self.traffic),
                    )
        finally:
            for one in added:
                self.board.floor.take(one.key)

    def _placed(self, member: Member, crew: Crew) -> list[Member]:
        done, where = place(self.board.cluster, self.board.floor, member, crew)
        if not where.node:
            return []
        done = replace(done, is_ready=True)
        self.board.floor.put(done)
        return [done]

    def _served(self, members: Sequence[Member], ground: Ground, traffic: Traffic) -> Serving:
        endpoints = endpoints_of(members, traffic, ground.zone_of)
        if not self.board.cluster.has_memory:
            return serving(traffic, written_first(traffic, endpoints, ground.reading), ground)
        is_edited = traffic is not self.traffic
        written = written_anew(traffic, endpoints, ground.zone_of, ground.reading, self.before, is_edited=is_edited)
        return serving(traffic, written, ground)

    def _crew(self) -> Crew | None:
        """The one workload that the Service's pods belong to."""
        owners = {one.workload for one in self.members}
        owner = next(iter(owners)) if len(owners) == 1 else None
        crew = self.board.cluster.crews.get(owner) if owner is not None else None
        return crew if crew is not None and crew.facts.kind != "DaemonSet" else None


def _found(board: _Board, search: _Search, goal: Goal, text: str) -> Advice:
    key, tried = search.traffic.key, 0
    tries = search.tries(goal)
    for change, after in tries:
        tried += 1
        if after is None or not goal.holds(after):
            continue
        tries.close()
        alone = replace(board.cluster, traffic=(search.traffic,))
        proof = rehearse(alone, [change])[0][0]
        if goal.holds(proof.services[0].after) and (board.has_waiting or not proof.pending):
            return Advice(key, text, change, proof, tried)
        break
    return Advice(key, text, None, None, tried)
