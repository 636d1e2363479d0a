# SPDX-License-Identifier: Apache-2.0
"""Sizes of pods' logs and volumes, as they were measured last."""

from collections.abc import Callable, Iterator, Sequence

from agent.model.pods.space import PodSpace, VolumeSpace
from agent.observe.pages.columns import Columns
from agent.observe.pages.exposition import GAUGE, RenderedFamily, Sample, family, labels
from agent.observe.pages.families import FILES

KINDS = Sequence[tuple[str, Callable[[VolumeSpace], int]]]
BYTES: KINDS = (
    ("used", lambda one: one.used_bytes),
    ("capacity", lambda one: one.capacity_bytes),
    ("available", lambda one: one.available_bytes),
)
INODES: KINDS = (
    ("used", lambda one: one.used_inodes),
    ("total", lambda one: one.inodes),
    ("free", lambda one: one.inodes_free),
)


def space_families(
    spaces: Sequence[PodSpace], *, is_open: bool, known: Columns | None = None
) -> Iterator[RenderedFamily]:
    """A limit has a line where the manifest gives one, and inodes where the file system has a number of them."""
    logs: list[Sample] = [
        (_labels(pod, container, size_of="container", uid=pod.uid), size)
        for pod in spaces
        for container, size in pod.logs.items()
    ]
    yield family(
        "kubelet_container_log_filesystem_used_bytes", GAUGE, "Size of a container's logs.", logs, is_open=is_open,
        group=FILES, known=known,
    )  # fmt: skip
    volumes = [(pod, one) for pod in spaces for one in pod.volumes]
    sizes = [(_labels(pod, one.name, kind=kind), value(one)) for pod, one in volumes for kind, value in BYTES]
    sizes += [(_labels(pod, one.name, kind="limit"), one.limit_bytes) for pod, one in volumes if one.limit_bytes]
    text = "Size of a volume that is the pod's own, and of the file system that it is on."
    yield family("kepd_pod_volume_bytes", GAUGE, text, sizes, is_open=is_open, group=FILES, known=known)
    counts: list[Sample] = [
        (_labels(pod, one.name, kind=kind), value(one)) for pod, one in volumes if one.inodes for kind, value in INODES
    ]
    text = "Inodes of a volume that is the pod's own, and of the file system that it is on."
    yield family("kepd_pod_volume_inodes", GAUGE, text, counts, is_open=is_open, group=FILES, known=known)


def _labels(pod: PodSpace, name: str, size_of: str = "volume", **more: str) -> bytes:
    return labels([("namespace", pod.namespace), ("pod", pod.name), (size_of, name), *more.items()])
