# SPDX-License-Identifier: Apache-2.0
"""Families of what containers have open, on demand."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.observe.pages.exposition import GAUGE, RenderedFamily, Sample, family, labels
from agent.observe.pages.families import LIMITS

SOFT = labels([("ulimit", "max_open_files")]) + b","


class OpenedFamily(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of a container together; `most_files` is what the first of them may have open, -1 without limit."""

    descriptors: int
    sockets: int
    most_files: int | None = None


def opened_families(
    living: Sequence[tuple[bytes, str]], opened: Mapping[str, OpenedFamily], *, is_open: bool
) -> Iterator[RenderedFamily]:
    """`living` are labels and ids of containers."""
    found = [(text, opened[one]) for text, one in living if one in opened]
    limits: list[Sample] = [(SOFT + text, one.most_files) for text, one in found if one.most_files is not None]
    for name, text, samples in (
        ("container_file_descriptors", "Open file descriptors.", [(of, one.descriptors) for of, one in found]),
        ("container_sockets", "Open sockets.", [(of, one.sockets) for of, one in found]),
        ("container_ulimits_soft", "Soft limit of open files of the first process; -1 is none.", limits),
    ):
        yield family(name, GAUGE, text, samples, is_open=is_open, group=LIMITS)
