# SPDX-License-Identifier: Apache-2.0
"""A cluster as a rehearsal sees it: nodes with their room, pods and what they ask for, workloads, Services, budgets."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.model.nodes.node import Node
from agent.model.selector import LabelSelector
from agent.topology.hints.slices import Endpoint, Slice, ready_endpoints
from agent.topology.hints.standalone import HintStatus
from agent.topology.manifest.facts import PodFacts, SelectingService
from agent.topology.manifest.pods import WorkloadFacts
from kepd_rehearsal.plan.neighbours import NOBODY, Neighbours, read_neighbours

Object = Mapping[str, Any]
Key = tuple[str, str, str]
HASH_LABEL = "pod-template-hash"
MOST_REPLICAS = 10_000


class Room(msgspec.Struct, frozen=True, gc=False):
    """`ranked_*` count at least a little for each container, as the scheduler ranks."""

    cpu_milli: int = 0
    memory: int = 0
    pods: int = 0
    ranked_cpu: int = 0
    ranked_memory: int = 0

    def __add__(self, other: "Room") -> "Room":
        return Room(
            self.cpu_milli + other.cpu_milli, self.memory + other.memory, self.pods + other.pods,
            self.ranked_cpu + other.ranked_cpu, self.ranked_memory + other.ranked_memory,
        )  # fmt: skip

    def __sub__(self, other: "Room") -> "Room":
        return Room(
            self.cpu_milli - other.cpu_milli, self.memory - other.memory, self.pods - other.pods,
            self.ranked_cpu - other.ranked_cpu, self.ranked_memory - other.ranked_memory,
        )  # fmt: skip


class Host(msgspec.Struct, frozen=True, gc=False):
    """`listed`: images as its status has them."""

    node: Node
    room: Room
    listed: Sequence[Object] = ()

    @property
    def name(self) -> str:
        return self.node.name


class Member(msgspec.Struct, frozen=True, gc=False):
    """A pod. `workload` is what makes another in its place; None: nobody does. `images` are in the order in which they
    are pulled, `policies` what each is pulled by; `made` is the object, or the template, as it was read."""

    facts: PodFacts
    asks: Room
    is_ready: bool = True
    workload: Key | None = None
    grace_s: int = 30
    is_mirror: bool = False
    images: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    made: Object = {}
    neighbours: Neighbours = NOBODY

    @property
    def key(self) -> str:
        return self.facts.key

    @property
    def node(self) -> str:
        return self.facts.node_name or ""


class Crew(msgspec.Struct, frozen=True, gc=False):
    """A workload. `surge` and `missing`: how many pods more and fewer a change may have. The last four are those of
    its pods."""

    facts: WorkloadFacts
    asks: Room
    replicas: int
    counts_itself: bool = True
    """The manifest says how many; without, an edit leaves the number as it is."""
    is_paused: bool = False
    is_on_delete: bool = False
    keeps_order: bool = False
    partition: int = 0
    first_ordinal: int = 0
    surge: str | int = "25%"
    missing: str | int = "25%"
    grace_s: int = 30
    images: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    made: Object = {}
    neighbours: Neighbours = NOBODY

    @property
    def key(self) -> Key:
        return self.facts.kind, self.facts.template.namespace, self.facts.template.name


class Traffic(msgspec.Struct, frozen=True, gc=False):
    """A Service and how it chooses endpoints."""

    service: SelectingService
    is_internal_local: bool = False
    is_external_local: bool = False
    publishes_unready: bool = False

    @property
    def key(self) -> str:
        return self.service.key


class Guard(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    selector: LabelSelector | None
    least: str | int | None = None
    most_missing: str | int | None = None
    lets_unready_go: bool = False
    """Always; else only while enough others are healthy."""


class Written(msgspec.Struct, frozen=True, gc=False):
    """What stands there of a Service for its proxies, and how its hints came about."""

    slices: tuple[Slice, ...]
    status: HintStatus
    why: str

    @property
    def endpoints(self) -> list[Endpoint]:
        return ready_endpoints(self.slices)


class Cluster(msgspec.Struct, frozen=True, gc=False):
    """`slices`: what the API server has, by Service; `written`: what a rehearsal made of them."""

    hosts: tuple[Host, ...] = ()
    members: tuple[Member, ...] = ()
    crews: Mapping[Key, Crew] = {}
    traffic: tuple[Traffic, ...] = ()
    guards: tuple[Guard, ...] = ()
    slices: Mapping[str, tuple[Slice, ...]] = {}
    written: Mapping[str, Written] = {}
    unhinted: frozenset[str] = frozenset()
    """Services of which nobody has looked at the slices."""
    has_memory: bool = True
    """Hints are a control plane's; those of a bare node are computed from scratch each time."""


def hashed(crew: Crew, value: str) -> Crew:
    """With the label that tells pods of one template of a Deployment from those of others."""
    template = replace(crew.facts.template, labels={**crew.facts.template.labels, HASH_LABEL: value})
    selector = crew.facts.selector or LabelSelector()
    selector = LabelSelector({**selector.match_labels, HASH_LABEL: value}, selector.match_expressions)
    spec = crew.made.get("spec", {})
    near = read_neighbours(spec, template, "", []) if crew.neighbours is not NOBODY else NOBODY
    return replace(crew, facts=replace(crew.facts, template=template, selector=selector), neighbours=near)


def part(made: Object, *names: str) -> Object:
    for name in names:
        found = made.get(name)
        made = found if isinstance(found, Mapping) else {}
    return made
