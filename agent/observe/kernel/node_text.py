# SPDX-License-Identifier: Apache-2.0
"""The node's own figures in /proc: memory, interfaces, kills, processors."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from agent.observe.kernel.numbers import number

# As cAdvisor leaves them out: what passes them is counted elsewhere too.
OTHERS_INTERFACES = ("lo", "veth", "docker", "nerdctl")
MEMORY_LINE = re.compile(rb"^(\w+): *([0-9]+) kB$", re.MULTILINE)
INTERFACE_COLUMNS = 16
MOST_INTERFACES = 64
BOOT = re.compile(rb"^btime (\d+)$", re.MULTILINE)
CPU = re.compile(rb"^cpu[0-9]+ ", re.MULTILINE)


class Interface(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    received_bytes: int
    received_packets: int
    received_errors: int
    received_dropped: int
    sent_bytes: int
    sent_packets: int
    sent_errors: int
    sent_dropped: int


@lru_cache(maxsize=512)
def read_interfaces(text: bytes) -> tuple[Interface, ...]:
    """Of /proc/PID/net/dev; those whose lines are cut off are left out. Pods that do nothing have the same text."""
    return tuple(_interfaces(text.splitlines()[2 : 2 + MOST_INTERFACES]))


def _interfaces(lines: Iterable[bytes]) -> Iterator[Interface]:
    for line in lines:
        name, _, rest = line.partition(b":")
        shown = name.strip().decode("utf-8", "replace")
        counts = [number(one) for one in rest.split()]
        if len(counts) != INTERFACE_COLUMNS or shown.startswith(OTHERS_INTERFACES):
            continue
        known = [one or 0 for one in counts]
        yield Interface(
            name=shown,
            received_bytes=known[0],
            received_packets=known[1],
            received_errors=known[2],
            received_dropped=known[3],
            sent_bytes=known[8],
            sent_packets=known[9],
            sent_errors=known[10],
            sent_dropped=known[11],
        )


class NodeMemory(msgspec.Struct, frozen=True):
    """Of the node, in bytes; None where /proc/meminfo does not say."""

    total: int | None = None
    free: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None


def read_memory(text: bytes) -> NodeMemory:
    found = {name: number(size) for name, size in MEMORY_LINE.findall(text)}
    names = (b"MemTotal", b"MemFree", b"MemAvailable", b"SwapTotal", b"SwapFree")
    return NodeMemory(*(None if (size := found.get(name)) is None else size << 10 for name in names))


def read_boot_time(text: bytes) -> int | None:
    """Of /proc/stat."""
    found = BOOT.search(text)
    return number(found[1]) if found is not None else None


def count_processors(text: bytes) -> int:
    """Of /proc/stat."""
    return len(CPU.findall(text))
