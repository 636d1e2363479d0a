# SPDX-License-Identifier: Apache-2.0
"""Decides which images are removed, in which order and why; and why each other image stays.

The sizes that runtimes report are compressed and count shared layers twice, so the space phase is planned again after
each removal, with the file systems measured again.
Source of behaviour: kubernetes `pkg/kubelet/images/image_gc_manager.go`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from agent.images.collect.disks import DiskRules, Freed, ImageDisk, Need, lies_on, need_of
from agent.model.images.store import Filesystem
from agent.model.images.text import bytes_text, duration_text

# Layers are compressed to a half or a third; where no size is known an image of half a GiB is meant.
UNPACKED_FACTOR, SPARE_FACTOR = 2.5, 1.2
UNKNOWN_ROOM_BYTES = 2 << 30


class RemovalReason(StrEnum):
    """Why an image goes; also the label of a metric."""

    AGE = "age"
    KEEP_LAST = "keep-last"
    SPACE = "space"
    MANUAL = "manual"


class CollectMode(StrEnum):
    """`age`: beside a kubelet, which sees to space itself."""

    FULL = "full"
    AGE = "age"
    OFF = "off"


class CollectRules(msgspec.Struct, frozen=True, kw_only=True):
    """Percentages of use; `max_age_s` 0 = off."""

    mode: CollectMode = CollectMode.FULL
    high: int = 85
    low: int = 80
    inode_high: int = 90
    inode_low: int = 85
    min_age_s: float = 120.0
    max_age_s: float = 0.0
    keep: tuple[str, ...] = ()
    """Names (globs) that stay."""
    keep_last: int = 0
    """Tags of a repository that stay, the newest ones; 0 = all."""
    by_path: Mapping[str, DiskRules] = msgspec.field(default_factory=dict)
    """Other thresholds, by a path on the file system that they are for."""

    def of_disk(self, disk: ImageDisk) -> DiskRules:
        own = DiskRules(high=self.high, low=self.low, inode_high=self.inode_high, inode_low=self.inode_low)
        return next((rules for path, rules in self.by_path.items() if path in disk.paths), own)


class NodeImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image with its history. `users` holds it back from removal, whoever they are."""

    id: str
    names: tuple[str, ...] = ()
    size_bytes: int = 0
    first_seen_s: float = 0.0
    last_used_s: float = 0.0
    is_pinned: bool = False
    users: tuple[str, ...] = ()
    handler: str = ""
    named_at: Mapping[str, float] = msgspec.field(default_factory=dict)
    """When each name was given, where the runtime tells."""
    devices: tuple[int, ...] = ()
    """Of the file systems that it lies on; empty = on the first."""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if "@" not in name and not name.startswith("sha256:"))

    @property
    def shown_name(self) -> str:
        return self.names[0] if self.names else self.id


class ImageRemoval(msgspec.Struct, frozen=True):
    image: NodeImage
    reason: RemovalReason
    age_s: float

    def __str__(self) -> str:
        idle = duration_text(float(round(self.age_s)))
        return f"remove {self.image.shown_name} ({self.image.size_bytes} bytes, unused for {idle}): {self.reason}"


class KeptImage(msgspec.Struct, frozen=True):
    image: NodeImage
    why: str

    def __str__(self) -> str:
        return f"keep {self.image.shown_name}: {self.why}"


class CollectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`needs`: what has to become free, by file system. `unnames` are names that go while their images stay under
    others."""

    removals: tuple[ImageRemoval, ...] = ()
    unnames: tuple[str, ...] = ()
    kept: tuple[KeptImage, ...] = ()
    needs: tuple[Need, ...] = ()
    expected_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        return sum(one.missing_bytes for one in self.needs)

    @property
    def missing_inodes(self) -> int:
        return sum(one.missing_inodes for one in self.needs)

    @property
    def used_percent(self) -> int:
        """Of the first, where the runtime keeps images unless another place is asked for."""
        return self.needs[0].used_percent if self.needs else 0

    def __str__(self) -> str:
        names = [f"remove the name {name}: newer ones of its repository are kept" for name in self.unnames]
        return "\n".join((*map(str, self.removals), *names, *map(str, self.kept)))


def rules_fault(rules: CollectRules) -> str:
    """What is wrong with the numbers together; empty = nothing."""
    own = rules.of_disk(ImageDisk())
    if fault := _disk_rules_fault(own, "images.gc."):
        return fault
    for place, others in rules.by_path.items():
        if fault := _disk_rules_fault(others, ""):
            return f"images.gc.filesystems: {place}: {fault}"
    if rules.max_age_s and rules.max_age_s <= rules.min_age_s:
        return "images.gc.maxAge must be longer than images.gc.minAge, or 0s for off"
    return ""


def _disk_rules_fault(rules: DiskRules, prefix: str) -> str:
    if not 0 <= rules.low < rules.high <= 100:
        return f"{prefix}low ({rules.low}) must be less than {prefix}high ({rules.high})"
    if not 0 <= rules.inode_low < rules.inode_high <= 100:
        return f"{prefix}inodeLow ({rules.inode_low}) must be less than {prefix}inodeHigh ({rules.inode_high})"
    return ""


def plan_collection(
    images: Sequence[NodeImage],
    disks: Sequence[ImageDisk],
    rules: CollectRules,
    now_s: float,
    *,
    is_forced: bool = False,
    only: Collection[int] = (),
    previous: CollectPlan | None = None,
) -> CollectPlan:
    """What to remove now. `is_forced`: everything unprotected, whatever the thresholds say (`gc --now`); `only`: of
    that, what lies on these devices. `previous`: of the same run; a run that `high` began goes on until `low`."""
    is_on = rules.mode is CollectMode.FULL and not is_forced
    before = previous.needs if previous is not None else ()
    needs = tuple(need_of(disk, rules.of_disk(disk), before, is_on=is_on) for disk in disks)
    free: list[NodeImage] = []
    kept: list[KeptImage] = []
    for image in images:
        why = _protection(image, rules, now_s)
        if why:
            kept.append(KeptImage(image, why))
        else:
            free.append(image)
    free.sort(key=lambda one: (one.last_used_s, one.first_seen_s, -one.size_bytes, one.id))
    if is_forced:
        going = [one for one in free if not only or any(lies_on(one.devices, device, needs) for device in only)]
        return CollectPlan(
            removals=tuple(_removals(going, RemovalReason.MANUAL, now_s)),
            kept=tuple(kept),
            needs=needs,
            expected_bytes=sum(image.size_bytes for image in going),
        )
    surplus = _surplus_tags(images, rules)
    reasons = [(image, _reason(image, rules, surplus, now_s)) for image in free]
    removals = [ImageRemoval(image, reason, _age_s(image, now_s)) for image, reason in reasons if reason]
    enough, rest = _for_space([image for image, reason in reasons if not reason], removals, needs)
    removals += _removals(enough, RemovalReason.SPACE, now_s)
    kept += [KeptImage(image, _why_not_now(image, rules, needs, now_s)) for image in rest]
    gone = {removal.image.id for removal in removals}
    return CollectPlan(
        removals=tuple(removals),
        unnames=tuple(name for image in free if image.id not in gone for name in image.tags if name in surplus),
        kept=tuple(kept),
        needs=needs,
        expected_bytes=sum(removal.image.size_bytes for removal in removals),
    )


def _for_space(
    images: Iterable[NodeImage], removals: Iterable[ImageRemoval], needs: Sequence[Need]
) -> tuple[list[NodeImage], list[NodeImage]]:
    """Those that go for want of space, and those that stay."""
    freed = Freed(needs)
    for removal in removals:
        freed.add(removal.image.devices, removal.image.size_bytes)
    enough: list[NodeImage] = []
    rest: list[NodeImage] = []
    for image in images:
        if freed.helps(image.devices):
            freed.add(image.devices, image.size_bytes)
            enough.append(image)
        else:
            rest.append(image)
    return enough, rest


def removals_for_space(forced: CollectPlan, rules: CollectRules, now_s: float) -> Sequence[ImageRemoval]:
    """What may go for a pull that found the disk full. `forced`: a plan of all that nothing protects. Beside a kubelet,
    which sees to space itself, only what is old goes, and where collection is off nothing does."""
    match rules.mode:
        case CollectMode.OFF:
            return ()
        case CollectMode.AGE:
            old = (removal for removal in forced.removals if 0 < rules.max_age_s < _age_s(removal.image, now_s))
            return tuple(old)
        case CollectMode.FULL:
            return forced.removals


def room_for(size_bytes: int | None, roles: Collection[str] = ("image", "content")) -> int:
    """What a pull takes on a disk that has these roles: its blobs stay, and so does what is unpacked from them, and
    something is left over."""
    if size_bytes is None:
        return UNKNOWN_ROOM_BYTES
    parts = ("content" in roles) + UNPACKED_FACTOR * ("image" in roles)
    return round(size_bytes * parts * SPARE_FACTOR)


def no_room_text(disk: Filesystem, needed_bytes: int, mode: CollectMode) -> str:
    if not disk.is_measured:
        return "the free space of the image filesystem cannot be measured, so nothing is removed"
    why = {
        CollectMode.OFF: "images.gc.mode is off, so nothing is removed",
        CollectMode.AGE: "images.gc.mode is age, so only images past images.gc.maxAge are removed",
        CollectMode.FULL: "everything else is in use, pinned or too new to be removed",
    }[mode]
    return f"about {bytes_text(needed_bytes)} are needed, {bytes_text(disk.available_bytes)} are free; {why}"


def _protection(image: NodeImage, rules: CollectRules, now_s: float) -> str:
    if image.users:
        return f"used by {', '.join(image.users[:3])}" + (" and others" if len(image.users) > 3 else "")
    if image.is_pinned:
        return "pinned"
    if any(fnmatchcase(name, pattern) for pattern in rules.keep for name in image.names):
        return "kept by name"
    if now_s - image.first_seen_s < rules.min_age_s:
        return f"younger than {duration_text(rules.min_age_s)}"
    return ""


def _reason(image: NodeImage, rules: CollectRules, surplus: frozenset[str], now_s: float) -> RemovalReason | None:
    """Why it goes whatever the disk has."""
    if rules.mode is CollectMode.OFF:
        return None
    if 0 < rules.max_age_s < _age_s(image, now_s):
        return RemovalReason.AGE
    return RemovalReason.KEEP_LAST if image.tags and surplus.issuperset(image.tags) else None


def _surplus_tags(images: Iterable[NodeImage], rules: CollectRules) -> frozenset[str]:
    if not rules.keep_last or rules.mode is CollectMode.OFF:
        return frozenset()
    by_repository: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for image in images:
        for name in image.tags:
            by_repository[name.rpartition(":")[0]].append((image.named_at.get(name, image.first_seen_s), name))
    return frozenset(
        name for named in by_repository.values() for _at_s, name in sorted(named, reverse=True)[rules.keep_last :]
    )


def _age_s(image: NodeImage, now_s: float) -> float:
    # An image that was never used is as old as our knowledge of it, not infinitely old.
    return max(0.0, now_s - max(image.last_used_s, image.first_seen_s))


def _removals(images: Iterable[NodeImage], reason: RemovalReason, now_s: float) -> Iterable[ImageRemoval]:
    return (ImageRemoval(image, reason, _age_s(image, now_s)) for image in images)


def _why_not_now(image: NodeImage, rules: CollectRules, needs: Sequence[Need], now_s: float) -> str:
    here = [one for one in needs if lies_on(image.devices, one.device, needs)]
    why = next((one.problem for one in here if one.problem), "its space is not needed")
    if rules.mode is not CollectMode.FULL:
        why = "collection is off" if rules.mode is CollectMode.OFF else "images go by age alone"
    return f"{why}; unused for {duration_text(float(round(_age_s(image, now_s))))}"
