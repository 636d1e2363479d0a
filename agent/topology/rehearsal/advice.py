# SPDX-License-Identifier: Apache-2.0
"""The smallest change that makes a goal hold, found by trying changes in the order of their size.

Each try is a rehearsal of its own, so the advice cannot promise what a rehearsal of it would not show: that is its
proof. First another number of pods, one more or fewer at a time, then another policy of the Service, then one more
node.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agent.topology.hints.mode import DISTRIBUTIONS
from agent.topology.rehearsal.changes import BadChange, Change
from agent.topology.rehearsal.cluster import Cluster, Crew
from agent.topology.rehearsal.rehearse import Rehearsal, rehearse
from agent.topology.rehearsal.serving import Crowd, Serving

OVERLOAD = re.compile(r"overload<(\d{1,4})%\Z")
GOALS = "hints, no-dark, overload<PERCENT%"
MOST_MORE = 30
Told = Callable[[str], None]
ACTIVE = ("active", "distribution", "manifest")


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
    found = []
    for number, traffic in enumerate(cluster.traffic, 1):
        if (services and traffic.key not in services) or not traffic.service.selector:
            continue
        told(f"advice for {traffic.key}, {number} of {len(cluster.traffic)}")
        alone = msgspec.structs.replace(cluster, traffic=(traffic,))
        now = rehearse(alone, [Change("traffic", traffic.key, value="None")])[0][0].services[0].before
        if not goal.holds(now):
            found.append(_for_service(alone, traffic.key, goal, text))
    return found


def _for_service(cluster: Cluster, key: str, goal: Goal, text: str) -> Advice:
    tried = 0
    for change in _tries(cluster, key, goal):
        tried += 1
        rehearsal = rehearse(cluster, [change])[0][0]
        after = next(one.after for one in rehearsal.services if one.after.service == key)
        if goal.holds(after) and not rehearsal.pending:
            return Advice(key, text, change, rehearsal, tried)
    return Advice(key, text, None, None, tried)


def _tries(cluster: Cluster, key: str, goal: Goal) -> Iterator[Change]:
    crew = _crew_behind(cluster, key)
    if crew is not None:
        namespace, name = crew.key[1:]
        for step in range(1, MOST_MORE + 1):
            for count in (crew.replicas + step, crew.replicas - step):
                if count > 0:
                    yield Change("scale", f"{namespace}/{name}", count, count)
    policies = {"hints": DISTRIBUTIONS, "no-dark": ("Cluster",), "overload": ("None", *DISTRIBUTIONS)}[goal.kind]
    yield from (Change("traffic", key, value=policy) for policy in policies)
    for zone in sorted({one.node.zone for one in cluster.hosts} - {""}):
        like = next(one.name for one in cluster.hosts if one.node.zone == zone)
        yield Change("add-node", like, value=zone)


def _crew_behind(cluster: Cluster, key: str) -> Crew | None:
    """The one workload that the Service's pods belong to."""
    traffic = next(one for one in cluster.traffic if one.key == key)
    owners = {one.workload for one in Crowd(cluster.members).of(traffic)}
    if len(owners) != 1:
        return None
    owner = next(iter(owners))
    crew = cluster.crews.get(owner) if owner is not None else None
    return crew if crew is not None and crew.facts.kind != "DaemonSet" else None
