# SPDX-License-Identifier: Apache-2.0
"""How long topology takes at the size it is made for.

Owns: the inputs (made here, the same every time) and the targets. Run it with `python bench/topology.py`.
Never: asserts; the figures are for people and for the table of benchmarks.
Source of the targets: 1 000 nodes with 5 000 pods explained in a second, 1 000 endpoints over 8 zones in 20 ms.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL, Node, Taint
from agent.model.quantity import parse_quantity
from agent.model.selector import LabelSelector
from agent.topology.explain.hints import explain_family
from agent.topology.explain.spread import explain_question
from agent.topology.hints.by_cpu import assign_hints
from agent.topology.hints.capacity import read_capacity
from agent.topology.hints.mode import MODE_ANNOTATION
from agent.topology.hints.slices import Endpoint, Slice, SliceLists
from agent.topology.hints.standalone import FilledHints, fill_hints
from agent.topology.hints.zones import plan_zones
from agent.topology.manifest.facts import PodFacts, SelectingService, SpreadConstraint
from agent.topology.manifest.objects import Document
from agent.topology.spread.filter import SpreadQuestion, evaluate_spread
from kepd_rehearsal.plan.advice import Goal, advise
from kepd_rehearsal.plan.changes import Change
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import rehearse
from packages.rehearsal.tests.clusters import deployment, service
from packages.rehearsal.tests.clusters import node as node_object

ROUNDS = 5
ZONES = tuple(f"zone-{letter}" for letter in "abcdefgh")
SERVICE = SelectingService("default", "web", {MODE_ANNOTATION: "Auto"})

DRAIN, ZONE_LOST = Change("drain", "n0001"), Change("lose-zone", "a")
Figure = tuple[str, float, str, str]


def measure() -> list[Figure]:
    """(name, value, unit, target) for each measurement; the best of a few rounds."""
    nodes = make_nodes(1000)
    slices = make_slices(1000)
    capacity = read_capacity(nodes).capacity
    fits = make_question(nodes, 5000, is_full=False)
    full = make_question(nodes, 5000, is_full=True)
    lists = SliceLists(to_create=slices)
    dump = make_dump()
    big = read_cluster(dump).cluster
    return [
        ("spread: explain, 1 000 nodes x 5 000 pods", timed(lambda: explain_question(fits)), "ms", "<= 1000"),
        ("spread: explain with what to change", timed(lambda: explain_question(full)), "ms", "<= 1000"),
        ("spread: filter and score only", timed(lambda: evaluate_spread(fits)), "ms", ""),
        ("hints: assign 1 000 endpoints, 8 zones", timed(lambda: assign_hints(lists, capacity)), "ms", "<= 20"),
        ("hints: fill in, capacity of 1 000 nodes included", timed(lambda: fill(slices, nodes)), "ms", "<= 20"),
        ("hints: fill in and explain", timed(lambda: explain_family(fill(slices, nodes))), "ms", ""),
        ("what-if: read 1 000 nodes, 5 000 pods, 500 Services", timed(lambda: read_cluster(dump)), "ms", ""),
        ("what-if: drain one of the nodes", timed(lambda: rehearse(big, [DRAIN])), "ms", "<= 2000"),
        ("what-if: lose a zone of three", timed(lambda: rehearse(big, [ZONE_LOST]), 1), "ms", "<= 2000"),
        (
            "what-if: advice for all Services",
            timed(lambda: advise(big, Goal("overload", 0.05), ""), 1),
            "ms",
            "<= 20000",
        ),
        ("plan: 8 zones, 1 to 200 replicas", timed(lambda: plan_zones(read_capacity(nodes), 1, 200, ZONES)), "ms", ""),
    ]


def make_dump() -> list[Document]:
    """Pods lie anywhere, as years of changes leave them."""
    chance = Random(1)
    items: list[dict[str, Any]] = [node_object(f"n{place:04}", "abc"[place % 3], cpu="16") for place in range(1000)]
    for place in range(500):
        name = f"app{place}"
        nodes = [f"n{chance.randrange(1000):04}" for _ in range(10)]
        made = [*deployment(name, nodes, skew=None), service(name)]
        items += [{**one, "metadata": {**one["metadata"], "namespace": "shop"}} for one in made]
    return [Document("dump", {"apiVersion": "v1", "kind": "List", "items": items})]


def fill(slices: tuple[Slice, ...], nodes: tuple[Node, ...]) -> FilledHints:
    return fill_hints(SERVICE, "IPv4", slices, nodes)


def make_nodes(count: int) -> tuple[Node, ...]:
    """Nodes over all zones with unequal CPU; every fiftieth is tainted."""
    return tuple(
        Node(
            name=f"node-{number:04}",
            labels={HOSTNAME_LABEL: f"node-{number:04}", ZONE_LABEL: ZONES[number % len(ZONES)], "pool": "general"},
            ready="True",
            cpu=parse_quantity(f"{2000 + 500 * (number % 7)}m"),
            taints=(Taint("dedicated", "NoSchedule", "batch"),) if number % 50 == 0 else (),
        )
        for number in range(count)
    )


def make_slices(count: int, per_slice: int = 100) -> tuple[Slice, ...]:
    """Endpoints that are piled up in half of the zones, so that many have to be donated."""
    endpoints = [
        Endpoint(addresses=(f"10.0.{number // 250}.{number % 250}",), zone=ZONES[number % 4], ready=True)
        for number in range(count)
    ]
    return tuple(
        Slice(f"web-{start:05}", tuple(endpoints[start : start + per_slice])) for start in range(0, count, per_slice)
    )


def make_question(nodes: tuple[Node, ...], count: int, *, is_full: bool) -> SpreadQuestion:
    """A pod with a zone and a hostname constraint, hard and soft; on the full cluster no node is left for it."""
    labels = {"app": "web", "pod-template-hash": "6f7d"}
    selector = LabelSelector({"app": "web"})
    hard = SpreadConstraint(1, ZONE_LABEL, "DoNotSchedule", selector, match_label_keys=("pod-template-hash",))
    by_host = SpreadConstraint(1, HOSTNAME_LABEL, "DoNotSchedule", selector)
    soft = SpreadConstraint(1, ZONE_LABEL, "ScheduleAnyway", selector)
    # In the full cluster the tainted nodes stay empty and hold the minimum of the hostnames at 0.
    usable = [node.name for node in nodes if not (is_full and node.taints)]
    pods = tuple(
        PodFacts("default", f"web-{number}", labels, node_name=usable[number % len(usable)]) for number in range(count)
    )
    return SpreadQuestion(PodFacts("default", "incoming", labels, constraints=(hard, by_host, soft)), nodes, pods)


def timed(task: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Milliseconds of the fastest of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = perf_counter()
        task()
        best = min(best, perf_counter() - started)
    return best * 1000


def main() -> None:
    for name, value, unit, target in measure():
        print(f"{name:<52} {value:>9.2f} {unit:<3} {target}")


if __name__ == "__main__":
    main()
