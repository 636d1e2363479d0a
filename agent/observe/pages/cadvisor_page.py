# SPDX-License-Identifier: Apache-2.0
"""/metrics/cadvisor: containers, sandboxes, pods and the groups above them, in a kubelet's words.

Never: a time of its own, so that Prometheus marks a series that ended as stale with the next scrape (OBS-10).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress, repeat

import msgspec

from agent.model.pod_space import PodSpace
from agent.observe.kernel.group_text import GroupFigures
from agent.observe.kernel.node_text import Interface
from agent.observe.pages.exposition import COUNTER, GAUGE, Written, family, fitted, head_of, labels
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
from agent.observe.pages.pod_spaces import space_families
from agent.observe.pages.row_values import RowValues, Values
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


class Row(msgspec.Struct, frozen=True):
    """Something with figures. `labels` are all of its lines'. One that has ended has counters alone."""

    labels: str
    figures: GroupFigures
    is_ended: bool = False
    interfaces: tuple[Interface, ...] = ()
    container: ContainerSample | None = None


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the page is to have. `devices` are names by `major:minor`, `layers` the file system of writable layers,
    `spaces` what pods of ours have on disks."""

    is_open: bool = False
    devices: Mapping[str, str] = msgspec.field(default_factory=dict)
    layers: FileSystem | None = None
    spaces: Sequence[PodSpace] = ()


def cadvisor_families(sample: NodeSample, wishes: Wishes, known: RowValues | None = None) -> list[Written]:
    """In the order of the page. `known` are values of the page before."""
    rows = tuple(_rows(sample))
    values = (known or RowValues()).of((row.labels, row.figures) for row in rows)
    found = list(_of_groups(values, [of for row, of in zip(rows, values, strict=True) if not row.is_ended], wishes))
    found += _devices(rows, wishes)
    found += _network(rows, wishes)
    found += _containers(rows, sample, wishes)
    found += _machine(sample, wishes)
    found += space_families(wishes.spaces, is_open=wishes.is_open)
    return found


def fitting_families(
    sample: NodeSample, wishes: Wishes, most: int, most_bytes: int, known: RowValues | None = None
) -> tuple[list[Written], dict[str, int]]:
    """As many as there may be, and how many series of each group are left out (OBS-11). Rows of pods go before whole
    families: sums over containers say nearly the same."""
    made = cadvisor_families(sample, wishes, known)
    kept, dropped = fitted(made, most, BEFORE_PODS, most_bytes)
    if _fits(kept, most, most_bytes):
        return kept, dropped
    fewer = cadvisor_families(_without_pod_groups(sample), wishes, known)
    fewer = [one for one in fewer if one.group not in dropped]
    of_pods = sum(one.series for one in kept) - sum(one.series for one in fewer)
    kept, further = fitted(fewer, most, AFTER_PODS, most_bytes)
    return kept, {**dropped, POD_GROUPS: of_pods, **further}


def _fits(families: Sequence[Written], most: int, most_bytes: int) -> bool:
    return sum(one.series for one in families) <= most and sum(one.size for one in families) <= most_bytes


def _without_pod_groups(sample: NodeSample) -> NodeSample:
    pods = tuple(msgspec.structs.replace(pod, figures=None) for pod in sample.pods)
    return msgspec.structs.replace(sample, pods=pods)


def _rows(sample: NodeSample) -> Iterator[Row]:
    node = sample.node
    root = with_pressure(node.figures, node.cpu_pressure, node.memory_pressure, node.io_pressure)
    yield Row(
        _labels("", "", "", ROOT),
        msgspec.structs.replace(root, working_set=node.working_set),
        interfaces=node.interfaces,
    )
    for parent in sample.parents:
        yield Row(_labels("", "", "", parent.group), parent.figures)
    for pod in sample.pods:
        if pod.figures is not None:
            yield Row(_labels(pod.namespace, pod.name, "", pod.group), pod.figures)
        yield _row(pod, pod.sandbox, pod.interfaces)
        for one in pod.containers:
            yield _row(pod, one)


def _row(pod: PodSample, one: ContainerSample, interfaces: tuple[Interface, ...] = ()) -> Row:
    is_sandbox = one is pod.sandbox
    text = _labels(pod.namespace, pod.name, "" if is_sandbox else one.name, one.group, one.image, one.id)
    return Row(text, one.figures, one.ended_s is not None, interfaces, None if is_sandbox else one)


@lru_cache(maxsize=4096)
def _labels(namespace: str, pod: str, container: str, group: str, image: str = "", name: str = "") -> str:
    """Made once for each thing that is observed: a page has some twenty thousand lines of a few hundred."""
    return labels((
        ("container", container), ("id", group), ("image", image), ("name", name), ("namespace", namespace),
        ("pod", pod),
    ))  # fmt: skip


def _of_groups(
    rows: Sequence[tuple[str, Values]], living: Sequence[tuple[str, Values]], wishes: Wishes
) -> Iterator[Written]:
    """Most of a page, so no line of it is ever an object of its own."""
    every, alive = _Columns(rows), _Columns(living)
    place = 0
    for one in FAMILIES:
        of = every if one.kind == COUNTER else alive
        columns = []
        for extra, _ in one.variants:
            columns.append(of.column(f"{one.name}{{{extra}," if extra else f"{one.name}{{", place))
            place += 1
        head = head_of(one.name, one.kind, one.text, is_open=wishes.is_open)
        series, size = sum(column.count for column in columns), sum(column.size for column in columns)
        yield Written(one.name, head, partial(map, _Column.text, columns), series, size, one.group)


class _Column(msgspec.Struct, frozen=True):
    """Lines that begin alike, each with a middle and an end."""

    head: str
    middles: Sequence[str]
    ends: Sequence[str]
    size: int

    @property
    def count(self) -> int:
        return len(self.ends)

    def text(self) -> str:
        return "".join(chain.from_iterable(zip(repeat(self.head), self.middles, self.ends, strict=False)))


class _Columns:
    """Rows, and what they have for each variant."""

    def __init__(self, rows: Sequence[tuple[str, Values]]) -> None:
        self._middles = [f"{labels}}} " for labels, _ in rows]
        self._sizes = [len(one.encode()) for one in self._middles]
        self._whole = sum(self._sizes)
        self._columns = list(zip(*(values for _, values in rows), strict=True))

    def column(self, head: str, place: int) -> _Column:
        """Of those that have the figure."""
        middles: Sequence[str] = self._middles
        ends: Sequence[str] = self._columns[place] if self._columns else ()
        size = self._whole
        if "" in ends:
            size = sum(compress(self._sizes, ends))
            middles, ends = list(compress(middles, ends)), [one for one in ends if one]
        return _Column(head, middles, ends, size + len(head) * len(ends) + sum(map(len, ends)))


def _devices(rows: Sequence[Row], wishes: Wishes) -> Iterator[Written]:
    for name, text, value in DEVICE_FAMILIES:
        samples = [
            (f'device="{wishes.devices.get(use.device, use.device)}",{row.labels}', value(use))
            for row in rows
            for use in row.figures.devices
        ]
        yield family(name, COUNTER, text, samples, is_open=wishes.is_open, group=DEVICES)


def _network(rows: Sequence[Row], wishes: Wishes) -> Iterator[Written]:
    named = [(labels([("interface", one.name)]), row.labels, one) for row in rows for one in row.interfaces]
    for name, text, group, value in NETWORK_FAMILIES:
        samples = [(f"{interface},{of}", value(one)) for interface, of, one in named]
        yield family(f"container_network_{name}_total", COUNTER, text, samples, is_open=wishes.is_open, group=group)


def _containers(rows: Sequence[Row], sample: NodeSample, wishes: Wishes) -> Iterator[Written]:
    """What only containers have."""
    own = [(row.labels, row.container) for row in rows if row.container is not None]
    living = [(text, one) for text, one in own if one.ended_s is None]
    yield family(
        "container_oom_events_total", COUNTER, "Kills for want of memory.",
        [(text, one.ooms) for text, one in own], is_open=wishes.is_open,
    )  # fmt: skip
    yield from _layers(living, wishes)
    yield family(
        "container_start_time_seconds", GAUGE, "When it was started.",
        [(text, one.started_at_s) for text, one in living if one.started_at_s], is_open=wishes.is_open,
    )  # fmt: skip
    seen = [(text, sample.wall_s) for text, _ in living]
    yield family("container_last_seen", GAUGE, "When it was last seen.", seen, is_open=wishes.is_open)


def _layers(living: Sequence[tuple[str, ContainerSample]], wishes: Wishes) -> Iterator[Written]:
    """VSU-01: without a known file system only what it uses."""
    disk = wishes.layers
    device = labels([("device", disk.device if disk else "")])
    used = [(f"{device},{text}", one.layer_bytes) for text, one in living if one.layer_bytes is not None]
    figures: list[tuple[str, str, Callable[[FileSystem], int]]] = [
        ("container_fs_limit_bytes", "Size of the file system of a writable layer.", lambda disk: disk.size_bytes),
        ("container_fs_inodes_total", "Inodes of the file system of a writable layer.", lambda disk: disk.inodes),
        ("container_fs_inodes_free", "Free inodes of that file system.", lambda disk: disk.inodes_free),
    ]
    yield family(
        "container_fs_usage_bytes", GAUGE, "Size of a writable layer.", used, is_open=wishes.is_open, group=FILES
    )
    for name, text, value in figures:
        samples = [(place, value(disk)) for place, _ in used] if disk else []
        yield family(name, GAUGE, text, samples, is_open=wishes.is_open, group=FILES)


def _machine(sample: NodeSample, wishes: Wishes) -> Iterator[Written]:
    memory = sample.node.memory
    error = int(any(not one.is_whole for pod in sample.pods for one in (pod.sandbox, *pod.containers)))
    for name, text, value in (
        ("container_scrape_error", "1 where something could not be read.", error),
        ("machine_cpu_cores", "Processors of the node.", sample.node.processors or None),
        ("machine_memory_bytes", "Memory of the node.", memory.total),
        ("machine_swap_bytes", "Swap of the node.", memory.swap_total),
    ):
        yield family(name, GAUGE, text, [] if value is None else [("", value)], is_open=wishes.is_open)
