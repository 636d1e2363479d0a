# SPDX-License-Identifier: Apache-2.0
"""Decides which images to fetch before a pod needs them, and which pins to set and to remove.

Prefetching yields to pods, to the disk, and to programs that keep deleting what it fetched.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

import msgspec

from agent.model.images.pull import NO_POD, ListedImage, PodIdentity, PullPolicy
from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.images.store import Filesystem

DAY_S = 86400.0
MOST_FETCHES_A_DAY = 3
GAP_TO_HIGH = 10


class PrefetchRules(msgspec.Struct, frozen=True, kw_only=True):
    """`high` and `low`: the collector's (or the kubelet's) thresholds in percent of use."""

    is_for_pods: bool = False
    is_for_rollouts: bool = False
    is_private: bool = False
    is_always: bool = False
    hold_s: float = 3600.0
    high: int = 85
    low: int = 80


class PodImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a pod of this node will need, in order of need. `is_private`: the pod brings pull secrets."""

    pod: PodIdentity
    image: str
    policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    priority: int = 0
    handler: str = ""
    is_private: bool = False
    is_rollout: bool = False
    """Of a pod that may come: its workload has one here already."""
    is_started: bool = False
    """Its pod has its images; nothing is fetched for it, and its priority and policy still count."""


class Fetch(msgspec.Struct, frozen=True):
    """Pull it. `hold_s`: pin it that long, so that it is there when it is needed."""

    image: str
    handler: str = ""
    pod: PodIdentity = NO_POD
    priority: int = 0
    hold_s: float = 0.0
    is_content_only: bool = False

    def __str__(self) -> str:
        what = "content of " if self.is_content_only else ""
        return f"fetch {what}{self.image}" + (f" for {self.pod}" if self.pod.uid else "")


class SkipKind(Enum):
    """Why an image is not fetched, without the figures of the moment. `REFUSED`: this node cannot do it at all."""

    NAME = auto()
    POD = auto()
    REFUSED = auto()
    THRASHING = auto()
    DISK = auto()


class Skip(msgspec.Struct, frozen=True):
    """`image` is the full name, if it is a name."""

    image: str
    why: str
    kind: SkipKind

    def __str__(self) -> str:
        return f"skip {self.image}: {self.why}"


class PrefetchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """In the order in which it is done: pins first, they cost nothing. `pins` get our mark and the runtime's pin,
    `unpins` lose what we set, the content of `drops` is held no longer."""

    pins: tuple[str, ...] = ()
    unpins: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    skips: tuple[Skip, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.pins or self.unpins or self.drops or self.fetches)

    def __str__(self) -> str:
        lines = [f"pin {name}" for name in self.pins] + [f"unpin {name}" for name in self.unpins]
        lines += [f"drop content of {name}" for name in self.drops]
        return "\n".join((*lines, *map(str, (*self.fetches, *self.skips))))


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the node. Names are normalised; `held_until`: pins by time, `contents`: since when, wall seconds."""

    names: frozenset[str] = frozenset()
    our_pins: frozenset[str] = frozenset()
    held_until: Mapping[str, float] = msgspec.field(default_factory=dict)
    disk: Filesystem = msgspec.field(default_factory=Filesystem)
    fetched_at: Mapping[str, Sequence[float]] = msgspec.field(default_factory=dict)
    sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    contents: Mapping[str, float] = msgspec.field(default_factory=dict)
    obstacles: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Why the content of a name cannot be fetched alone."""


def plan_prefetch(
    listed: Sequence[ListedImage], pods: Sequence[PodImage], shelf: Shelf, rules: PrefetchRules, now_s: float
) -> PrefetchPlan:
    """What to do now; applying it and planning again gives nothing more."""
    wanted_pins = {name for one in listed if one.is_pinned and (name := normalised(one.image))}
    wanted_contents = {normalised(one.image) for one in listed if one.is_content_only} - shelf.names
    held = {name for name, until_s in shelf.held_until.items() if until_s > now_s}
    from_list = (Fetch(one.image, one.handler, is_content_only=one.is_content_only) for one in listed)
    fetches: dict[tuple[str, str], Fetch] = {}
    skips: list[Skip] = []
    for fetch in (*from_list, *_of_pods(pods, rules, skips)):
        name = normalised(fetch.image)
        key = (name, fetch.handler)
        if not name:
            skips.append(Skip(fetch.image, "it is not an image name", SkipKind.NAME))
        elif name not in shelf.names and key not in fetches and not _is_held(fetch, name, shelf, now_s):
            why = _obstacle(name, shelf, rules, now_s)
            if fetch.is_content_only and name in shelf.obstacles:
                skips.append(Skip(name, shelf.obstacles[name], SkipKind.REFUSED))
            elif why is None:
                fetches[key] = fetch
            else:
                skips.append(why)
    settled = shelf.names | {name for name, _ in fetches}
    told = {(skip.image, skip.kind): skip for skip in skips if skip.image not in settled}
    return PrefetchPlan(
        pins=tuple(sorted((wanted_pins | held) & shelf.names - shelf.our_pins)),
        unpins=tuple(sorted(shelf.our_pins - wanted_pins - held)),
        drops=tuple(sorted(shelf.contents.keys() - wanted_contents)),
        fetches=tuple(fetches.values()),
        skips=tuple(told.values()),
    )


def _is_held(fetch: Fetch, name: str, shelf: Shelf, now_s: float) -> bool:
    """Whether its content is there and need not be looked after yet: it is held for a day at a time."""
    return fetch.is_content_only and now_s - shelf.contents.get(name, now_s - DAY_S) < DAY_S / 2


def _of_pods(pods: Iterable[PodImage], rules: PrefetchRules, skips: list[Skip]) -> Iterable[Fetch]:
    fetches = []
    for one in pods:
        is_wanted = rules.is_for_rollouts if one.is_rollout else rules.is_for_pods
        if one.policy is PullPolicy.NEVER or not is_wanted:
            continue
        if one.policy is PullPolicy.ALWAYS and not rules.is_always:
            skips.append(_of_pod(one, "policy Always asks the registry anyway; see images.prefetch.always"))
        elif one.is_private and not rules.is_private:
            why = "its pod has pull secrets, which kepd may not read; see images.prefetch.private"
            skips.append(_of_pod(one, why))
        else:
            fetches.append(Fetch(one.image, one.handler, one.pod, one.priority, rules.hold_s))
    return fetches


def _of_pod(one: PodImage, why: str) -> Skip:
    return Skip(normalised(one.image) or one.image, why, SkipKind.POD)


def _obstacle(name: str, shelf: Shelf, rules: PrefetchRules, now_s: float) -> Skip | None:
    recent = [at_s for at_s in shelf.fetched_at.get(name, ()) if now_s - at_s < DAY_S]
    if len(recent) >= MOST_FETCHES_A_DAY:
        return Skip(name, f"prefetched {len(recent)} times within 24h and removed each time", SkipKind.THRASHING)
    disk = shelf.disk
    if not disk.capacity_bytes:
        return None
    if disk.used_percent > rules.high - GAP_TO_HIGH:
        return Skip(
            name, f"{disk.used_percent}% of the disk used, more than {rules.high - GAP_TO_HIGH}%", SkipKind.DISK
        )
    left = disk.available_bytes - shelf.sizes.get(name, 0)
    if 100 - left * 100 // disk.capacity_bytes > rules.low:
        return Skip(name, f"it would bring the disk above {rules.low}%", SkipKind.DISK)
    return None


def normalised(image: str) -> str:
    try:
        return str(parse_reference(image))
    except ReferenceInvalid:
        return ""
