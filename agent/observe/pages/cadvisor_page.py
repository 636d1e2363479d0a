# SPDX-License-Identifier: Apache-2.0
"""/metrics/cadvisor: containers, sandboxes, pods and the groups above them, in a kubelet's words.

Never: a time of its own, so that Prometheus marks a series that ended as stale with the next scrape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice

import msgspec

from agent.model.pods.space import PodSpace
from agent.observe.kernel.group_text import GroupFigures
from agent.observe.kernel.node_text import Interface
from agent.observe.pages.columns import Columns
from agent.observe.pages.exposition import COUNTER, GAUGE, RenderedFamily, family, fitted, head_of, labels
from agent.observe.pages.families import (
    DEVICE_FAMILIES,
    DEVICES,
    DROP_ORDER,
    FAMILIES,
    FILES,
    NETWORK_FAMILIES,
    POD_GROUPS,
    with_pressure,
)
from agent.observe.pages.opened import OpenedFamily, opened_families
from agent.observe.pages.pod_spaces import space_families
from agent.observe.pages.row_values import RowValues
from agent.observe.pages.table import EVERY, FigureTable, columns_of
from agent.observe.sample.node_sample import ContainerSample, NodeSample, PodSample

ROOT = "/"
TURN = DROP_ORDER.index(POD_GROUPS)
BEFORE_PODS, AFTER_PODS = DROP_ORDER[:TURN], DROP_ORDER[TURN + 1 :]


class FileSystem(msgspec.Struct, frozen=True):
    """Where writable layers lie."""

    device: str
    size_bytes: int
    inodes: int
    inodes_free: int


class PageRow(msgspec.Struct, frozen=True, gc=False):
    """Something with figures. `labels` are all of its lines'. One that has ended has counters alone."""

    labels: bytes
    figures: GroupFigures
    is_ended: bool = False
    interfaces: tuple[Interface, ...] = ()
    container: ContainerSample | None = None


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the page is to have. `devices` are names by `major:minor`, `layers` the file system of writable layers,
    `spaces` what pods of ours have on disks, `opened` what containers have open, where that is asked for."""

    is_open: bool = False
    devices: Mapping[str, str] = msgspec.field(default_factory=dict)
    layers: FileSystem | None = None
    spaces: Sequence[PodSpace] = ()
    opened: Mapping[str, OpenedFamily] | None = None


class PageBefore:
    """What the next page has in common with it."""

    def __init__(self) -> None:
        self.values = RowValues()
        self.counters, self.gauges = FigureTable(COUNTER), FigureTable(GAUGE)
        self.columns = Columns()

    @cached_property
    def without_pod_groups(self) -> "PageBefore":
        """Once such a page was made."""
        return PageBefore()


def cadvisor_families(sample: NodeSample, wishes: Wishes, before: PageBefore | None = None) -> list[RenderedFamily]:
    """In the order of the page."""
    before = before or PageBefore()
    rows = tuple(_rows(sample))
    found = list(_of_groups(rows, 1 + len(sample.parents), wishes, before))
    found += _devices(rows, wishes, before.columns)
    found += _network(rows, wishes, before.columns)
    found += _containers(rows, sample, wishes, before.columns)
    found += _machine(sample, wishes)
    found += space_families(wishes.spaces, is_open=wishes.is_open, known=before.columns)
    return found


def fitting_families(
    sample: NodeSample, wishes: Wishes, most: int, most_bytes: int, before: PageBefore | None = None
) -> tuple[list[RenderedFamily], dict[str, int]]:
    """As many as there may be, and how many series of each group are left out. Rows of pods go before whole
    families: sums over containers say nearly the same."""
    made = cadvisor_families(sample, wishes, before)
    kept, dropped = fitted(made, most, BEFORE_PODS, most_bytes)
    if _fits(kept, most, most_bytes):
        return kept, dropped
    fewer = cadvisor_families(_without_pod_groups(sample), wishes, before and before.without_pod_groups)
    fewer = [one for one in fewer if one.group not in dropped]
    of_pods = sum(one.series for one in kept) - sum(one.series for one in fewer)
    kept, further = fitted(fewer, most, AFTER_PODS, most_bytes)
    return kept, {**dropped, POD_GROUPS: of_pods, **further}


def _fits(families: Sequence[RenderedFamily], most: int, most_bytes: int) -> bool:
    return sum(one.series for one in families) <= most and sum(one.size for one in families) <= most_bytes


def _without_pod_groups(sample: NodeSample) -> NodeSample:
    pods = tuple(msgspec.structs.replace(pod, figures=None) for pod in sample.pods)
    return msgspec.structs.replace(sample, pods=pods)


def _rows(sample: NodeSample) -> Iterator[PageRow]:
    node = sample.node
    root = with_pressure(node.figures, node.cpu_pressure, node.memory_pressure, node.io_pressure)
    yield PageRow(
        _labels("", "", "", ROOT),
        msgspec.structs.replace(root, working_set=node.working_set),
        interfaces=node.interfaces,
    )
    for parent in sample.parents:
        yield PageRow(_labels("", "", "", parent.group), parent.figures)
    for pod in sample.pods:
        if pod.figures is not None:
            yield PageRow(_labels(pod.namespace, pod.name, "", pod.group), pod.figures)
        yield _row(pod, pod.sandbox, pod.interfaces)
        for one in pod.containers:
            yield _row(pod, one)


def _row(pod: PodSample, one: ContainerSample, interfaces: tuple[Interface, ...] = ()) -> PageRow:
    is_sandbox = one is pod.sandbox
    text = _labels(pod.namespace, pod.name, "" if is_sandbox else one.name, one.group, one.image, one.id)
    return PageRow(text, one.figures, one.ended_s is not None, interfaces, None if is_sandbox else one)


@lru_cache(maxsize=4096)
def _labels(namespace: str, pod: str, container: str, group: str, image: str = "", name: str = "") -> bytes:
    """Made once for each thing that is observed: a page has some twenty thousand lines of a few hundred."""
    return labels((
        ("container", container), ("id", group), ("image", image), ("name", name), ("namespace", namespace),
        ("pod", pod),
    ))  # fmt: skip


@lru_cache(maxsize=256)
def _further(name: str, value: str) -> bytes:
    """A label that stands before those of a row."""
    return labels([(name, value)]) + b","


def _of_groups(rows: Sequence[PageRow], above: int, wishes: Wishes, before: PageBefore) -> Iterator[RenderedFamily]:
    """Most of a page. The first rows are groups that pods are in, which change all the time: they have columns of their
    own."""
    values = before.values.of((row.labels, row.figures) for row in rows)
    living = [of for row, of in zip(rows, values, strict=True) if not row.is_ended]
    top = columns_of(values[:above])
    below = {**before.counters.of(values[above:]), **before.gauges.of(living[above:])}
    places = iter(EVERY)
    for one in FAMILIES:
        own = islice(places, len(one.variants))
        columns = tuple(column for at in own for column in (top[at], below[at]))
        yield RenderedFamily(
            one.name, head_of(one.name, one.kind, one.text, is_open=wishes.is_open), columns, one.group
        )


def _devices(rows: Sequence[PageRow], wishes: Wishes, known: Columns) -> Iterator[RenderedFamily]:
    uses = [
        (_further("device", wishes.devices.get(use.device, use.device)) + row.labels, use)
        for row in rows
        for use in row.figures.devices
    ]
    for name, text, value in DEVICE_FAMILIES:
        samples = [(of, value(use)) for of, use in uses]
        yield family(name, COUNTER, text, samples, is_open=wishes.is_open, group=DEVICES, known=known)


def _network(rows: Sequence[PageRow], wishes: Wishes, known: Columns) -> Iterator[RenderedFamily]:
    named = [(_further("interface", one.name) + row.labels, one) for row in rows for one in row.interfaces]
    for name, text, group, value in NETWORK_FAMILIES:
        samples = [(of, value(one)) for of, one in named]
        full = f"container_network_{name}_total"
        yield family(full, COUNTER, text, samples, is_open=wishes.is_open, group=group, known=known)


def _containers(
    rows: Sequence[PageRow], sample: NodeSample, wishes: Wishes, known: Columns
) -> Iterator[RenderedFamily]:
    """What only containers have."""
    own = [(row.labels, row.container) for row in rows if row.container is not None]
    living = [(text, one) for text, one in own if one.ended_s is None]
    yield family(
        "container_oom_events_total", COUNTER, "Kills for want of memory.",
        [(text, one.ooms) for text, one in own], is_open=wishes.is_open, known=known,
    )  # fmt: skip
    yield from _layers(living, wishes, known)
    if wishes.opened is not None:
        yield from opened_families([(text, one.id) for text, one in living], wishes.opened, is_open=wishes.is_open)
    yield family(
        "container_start_time_seconds", GAUGE, "When it was started.",
        [(text, one.started_at_s) for text, one in living if one.started_at_s], is_open=wishes.is_open,
        known=known,
    )  # fmt: skip
    seen = [(text, sample.wall_s) for text, _ in living]
    yield family("container_last_seen", GAUGE, "When it was last seen.", seen, is_open=wishes.is_open)


def _layers(
    living: Sequence[tuple[bytes, ContainerSample]], wishes: Wishes, known: Columns
) -> Iterator[RenderedFamily]:
    """Without a known file system only what it uses."""
    disk = wishes.layers
    device = _further("device", disk.device if disk else "")
    used = [(device + text, one.layer_bytes) for text, one in living if one.layer_bytes is not None]
    figures: list[tuple[str, str, Callable[[FileSystem], int]]] = [
        ("container_fs_limit_bytes", "Size of the file system of a writable layer.", lambda disk: disk.size_bytes),
        ("container_fs_inodes_total", "Inodes of the file system of a writable layer.", lambda disk: disk.inodes),
        ("container_fs_inodes_free", "Free inodes of that file system.", lambda disk: disk.inodes_free),
    ]
    yield family(
        "container_fs_usage_bytes", GAUGE, "Size of a writable layer.", used, is_open=wishes.is_open, group=FILES,
        known=known,
    )  # fmt: skip
    for name, text, value in figures:
        samples = [(place, value(disk)) for place, _ in used] if disk else []
        yield family(name, GAUGE, text, samples, is_open=wishes.is_open, group=FILES, known=known)


def _machine(sample: NodeSample, wishes: Wishes) -> Iterator[RenderedFamily]:
    memory = sample.node.memory
    error = int(any(not one.is_whole for pod in sample.pods for one in (pod.sandbox, *pod.containers)))
    for name, text, value in (
        ("container_scrape_error", "1 where something could not be read.", error),
        ("machine_cpu_cores", "Processors of the node.", sample.node.processors or None),
        ("machine_memory_bytes", "Memory of the node.", memory.total),
        ("machine_swap_bytes", "Swap of the node.", memory.swap_total),
    ):
        yield family(name, GAUGE, text, [] if value is None else [(b"", value)], is_open=wishes.is_open)
