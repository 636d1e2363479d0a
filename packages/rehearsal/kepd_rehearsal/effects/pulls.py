# SPDX-License-Identifier: Apache-2.0
"""What each node pulls for the pods that a change gives it, and how long that takes by the queue.

The pull queue of the images plane decides which is next, first come first served as a kubelet has it. Pods of a node
come at once, each asks for one image after the other, and pulls of one time share the bandwidth. An image is there if
the node lists it or a ready pod of it runs from it. An unknown size counts as 0. Never: asks a registry.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count, repeat

import msgspec

from agent.images.queue.flights import FlightKey, FlightMember
from agent.images.queue.queue import PullQueue
from agent.images.queue.rules import QueueRules
from agent.model.images.pull import PullPolicy
from agent.model.images.reference import HUB, OFFICIAL, ReferenceInvalid, parse_reference
from kepd_rehearsal.plan.cluster import Cluster, Host, Member

# A kubelet tells of no more images than these (nodeStatusMaxImages).
MOST_LISTED = 50


class PullRules(msgspec.Struct, frozen=True, kw_only=True):
    """`bandwidth` is in bytes a second, of each node; `sizes` are those that the user knows, by names of images."""

    bandwidth: int = 100 << 20
    parallel: int = 1
    sizes: Mapping[str, int] = {}


class ImagePull(msgspec.Struct, frozen=True):
    """`size_bytes` None: no node tells it. Seconds after the change."""

    image: str
    size_bytes: int | None
    pods: int
    ended_s: float


class NodePulls(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` is until the last of the pods has its images; a prefetch before the change saves as much. `checks`:
    images that are there and of which only the manifest is asked for. `never`: those that are not there and that no
    pull brings, as their policy is Never."""

    node: str
    pods: int
    images: tuple[ImagePull, ...] = ()
    size_bytes: int = 0
    unknown: int = 0
    seconds: float = 0.0
    checks: int = 0
    never: tuple[str, ...] = ()
    is_cut: bool = False
    """It lists as many images as a kubelet ever does, so others may be there."""


class Pulls(msgspec.Struct, frozen=True, kw_only=True):
    """Of nodes that pull something or cannot, the slowest first."""

    bandwidth: int
    parallel: int
    nodes: tuple[NodePulls, ...] = ()

    @property
    def seconds(self) -> float:
        return max((one.seconds for one in self.nodes), default=0.0)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Images of unknown size."""
        return tuple(sorted({one.image for node in self.nodes for one in node.images if one.size_bytes is None}))


def pulls_of(before: Cluster, after: Cluster, arrived: Sequence[Member], rules: PullRules) -> Pulls:
    """`arrived` have a node now, and had none, or another one, before."""
    by_node: dict[str, list[Member]] = {}
    for one in arrived:
        by_node.setdefault(one.node, []).append(one)
    hosts = {one.name: one for one in after.hosts if one.name in by_node}
    present = {name: _listed(host) for name, host in hosts.items()}
    for one in before.members:
        if one.is_ready and one.node in present:
            present[one.node].update(spelled for image in one.images for spelled in spellings(image)[:1])
    wanted = {(name, image) for name in present for one in by_node[name] for image in one.images}
    lacking = {image for name, image in wanted if not _is_there(image, present[name])}
    sizes = _sizes(before.hosts, lacking, rules.sizes) if lacking else {}
    told = (_Node(host, by_node[name], present[name], sizes, rules).told() for name, host in hosts.items())
    found = (one for one in told if one.images or one.never)
    nodes = tuple(sorted(found, key=lambda one: (-one.seconds, -one.size_bytes, one.node)))
    return Pulls(bandwidth=rules.bandwidth, parallel=rules.parallel, nodes=nodes)


@lru_cache(maxsize=8192)
def spellings(image: str) -> tuple[str, ...]:
    """The full name first, then how else a runtime may list it."""
    try:
        reference = parse_reference(image)
    except ReferenceInvalid:
        return (image,)
    full = str(reference)
    short = full.removeprefix(f"{HUB}/")
    return tuple(dict.fromkeys((full, image, short, short.removeprefix(OFFICIAL)) if short != full else (full, image)))


def _listed(host: Host) -> set[str]:
    return {name for one in host.listed for name in _names(one)}


def _names(one: Mapping[str, object]) -> Iterator[str]:
    names = one.get("names")
    yield from (name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _is_there(image: str, present: set[str]) -> bool:
    return not present.isdisjoint(spellings(image))


def _sizes(hosts: Iterable[Host], images: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """By full names. What the user says holds; of nodes that differ the largest does."""
    full = {spelled: spellings(image)[0] for image in images for spelled in spellings(image)}
    found: dict[str, int] = {}
    for host in hosts:
        for one in host.listed:
            size = one.get("sizeBytes")
            for name in _names(one):
                if name in full and isinstance(size, int) and size > 0:
                    found[full[name]] = max(size, found.get(full[name], 0))
    return {**found, **{spellings(image)[0]: size for image, size in known.items()}}


class _Node:
    """Time goes on from one end of a pull to the next."""

    def __init__(
        self, host: Host, pods: Sequence[Member], present: set[str], sizes: Mapping[str, int], rules: PullRules
    ) -> None:
        self._host, self._pods, self._present, self._sizes, self._rules = host, pods, present, sizes, rules
        kubelet = QueueRules(max_parallel=rules.parallel).as_kubelet(is_serial=rules.parallel == 1)
        # What a second pull of the same image would bring is there after the first.
        self._queue = PullQueue(msgspec.structs.replace(kubelet, is_shared=True))
        self._arrivals = count()
        self._left: dict[int, float] = {}
        self._now_s = 0.0
        # An image without a policy of its own was put there by hand.
        others = repeat(PullPolicy.IF_NOT_PRESENT.value)
        self._todo = [zip(one.images, chain(one.policies, others), strict=False) for one in pods]
        self._checks: set[str] = set()
        self._never: dict[str, None] = {}
        self._pulled: list[ImagePull] = []
        self._takers = Counter(name for one in pods for name in {spellings(image)[0] for image in one.images})

    def told(self) -> NodePulls:
        for place in range(len(self._pods)):
            self._ask(place)
        while self._start():
            step = min(self._left.values())
            self._now_s += step * len(self._left) / self._rules.bandwidth
            self._left = {number: left - step for number, left in self._left.items()}
            for number in [number for number, left in self._left.items() if left <= 0]:
                self._end(number)
        sizes = [one.size_bytes for one in self._pulled]
        return NodePulls(
            node=self._host.name,
            pods=len(self._pods),
            images=tuple(self._pulled),
            size_bytes=sum(size or 0 for size in sizes),
            unknown=sizes.count(None),
            seconds=round(self._now_s, 3),
            checks=len(self._checks),
            never=tuple(self._never),
            is_cut=len(self._host.listed) >= MOST_LISTED,
        )

    def _ask(self, place: int) -> None:
        """For the next image that this pod needs and that is not there."""
        for image, policy in self._todo[place]:
            if _is_there(image, self._present):
                if policy == PullPolicy.ALWAYS:
                    self._checks.add(image)
                continue
            if policy == PullPolicy.NEVER:
                self._never[image] = None
                # It goes no further without it.
                return
            name = spellings(image)[0]
            number = next(self._arrivals)
            member = FlightMember(f"{number}", number, self._now_s, str(place))
            self._queue.arrive(member, FlightKey(name), name.partition("/")[0], self._sizes.get(name))
            return

    def _start(self) -> bool:
        for number in self._queue.dispatch(self._now_s).starts:
            self._left[number] = float(self._queue.flights[number].size_bytes or 0)
        return bool(self._left)

    def _end(self, number: int) -> None:
        del self._left[number]
        if (flight := self._queue.end(number)) is None:
            return
        name = flight.key.reference
        self._present.add(name)
        self._pulled.append(ImagePull(name, flight.size_bytes, self._takers[name], round(self._now_s, 3)))
        for one in flight.members:
            self._ask(int(one.pod))
