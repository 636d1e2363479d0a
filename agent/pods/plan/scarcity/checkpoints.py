# SPDX-License-Identifier: Apache-2.0
"""Which archives of checkpoints go, and when: by number, age and size, and for the sake of pods."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from agent.config.sections.checkpoints import PodCheckpoints
from agent.model.nodes.use import Layout, NodeLook
from agent.pods.plan.evict import EvictionRules

# Names of pods, namespaces and containers are validated ones, so nothing in a name leads elsewhere.
NAME = re.compile(r"checkpoint-([a-z0-9][a-z0-9.-]*_[a-z0-9-]+)-(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\.tar\Z")
STAMP = "%Y-%m-%dT%H:%M:%SZ"
# Of what a container has in memory, for the archive has more than that.
MEMORY_TIMES = 1.5


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """`of` is the same for all of one container."""

    name: str
    of: str
    made_wall_s: float
    size_bytes: int


def archive_name(pod: str, namespace: str, container: str, wall_s: float) -> str:
    return f"checkpoint-{pod}_{namespace}-{container}-{datetime.fromtimestamp(wall_s, UTC).strftime(STAMP)}.tar"


def archive_of(name: str, size_bytes: int) -> Archive | None:
    """None for a file that kepd did not name, which is left alone."""
    found = NAME.match(name)
    if found is None:
        return None
    try:
        made = datetime.strptime(found[2], STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Archive(name=name, of=found[1], made_wall_s=made.timestamp(), size_bytes=size_bytes)


def superfluous(archives: Iterable[Archive], rules: PodCheckpoints, now_wall_s: float) -> list[Archive]:
    """Oldest first. The newest of all stays, however large it is: it was just asked for."""
    kept: Counter[str] = Counter()
    left, size, found = True, 0, []
    for place, one in enumerate(sorted(archives, key=_newest_first)):
        is_old = now_wall_s - one.made_wall_s > rules.max_age
        left = left and (not place or size + one.size_bytes <= rules.max_bytes)
        if is_old or not left or kept[one.of] >= rules.keep:
            found.append(one)
        else:
            kept[one.of] += 1
            size += one.size_bytes
    return found[::-1]


def freed_first(archives: Iterable[Archive], needed_bytes: int) -> list[Archive]:
    """Oldest first, as many as it takes."""
    found: list[Archive] = []
    for one in sorted(archives, key=_newest_first)[::-1]:
        if needed_bytes <= 0:
            break
        found.append(one)
        needed_bytes -= one.size_bytes
    return found


def bytes_wanted(signal: str, look: NodeLook, rules: EvictionRules) -> int:
    """How much archives would have to give up so that no pod ends for this signal; 0 where they cannot help."""
    amount = look.amounts.get(signal)
    if amount is None or not _lies_there(signal, look.layout):
        return 0
    lines = [one.solved_line(amount.capacity) for one in rules.thresholds if one.signal == signal]
    return max([line - amount.available for line in lines], default=0)


def why_no_room(needed_bytes: int, look: NodeLook) -> str:
    """Where a checkpoint finds no room: with the files of the node, and where the runtime first puts its image."""
    for signal in ("nodefs.available", "imagefs.available"):
        amount = look.amounts.get(signal)
        if amount is not None and amount.available < needed_bytes:
            return f"{signal} is {amount.available} bytes, and it may take {needed_bytes}"
    return ""


def _lies_there(signal: str, layout: Layout) -> bool:
    """Archives lie with the files of the node. An archive is one file: for want of inodes it is no help."""
    places = {"one": ("nodefs", "imagefs", "containerfs"), "split": ("nodefs", "containerfs"), "apart": ("nodefs",)}
    place, _, what = signal.partition(".")
    return what == "available" and place in places[layout]


def _newest_first(one: Archive) -> tuple[float, str]:
    return -one.made_wall_s, one.name


def in_order(archives: Iterable[Archive]) -> Sequence[Archive]:
    return sorted(archives, key=_newest_first)
