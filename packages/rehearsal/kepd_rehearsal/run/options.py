# SPDX-License-Identifier: Apache-2.0
"""Options of `kepctl what-if` on what a dump does not say: bandwidth, pulls at once, sizes of images, connections."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from agent.model.quantity import QuantityError, parse_quantity
from kepd_rehearsal.effects.pulls import PullRules
from kepd_rehearsal.effects.told import Asked
from kepd_rehearsal.run.connection_files import read_connections

Command = Callable[..., Any]
MOST_PARALLEL = 1000


def _bytes(text: str) -> int:
    try:
        found = parse_quantity(text).nanos // 10**9
    except QuantityError as error:
        raise click.BadParameter(str(error)) from error
    if found < 1:
        raise click.BadParameter(f"{text!r} is no number of bytes; expected at least 1, such as 100Mi")
    return found


def _sizes(texts: Sequence[str]) -> Iterator[tuple[str, int]]:
    for text in texts:
        image, _, size = text.rpartition("=")
        if not image:
            raise click.BadParameter(f"{text!r} has no size; expected IMAGE=SIZE, such as web:2=250Mi")
        yield image, _bytes(size)


class Known(TypedDict):
    """The values of these options."""

    bandwidth: int
    parallel_pulls: int
    image_sizes: dict[str, int]
    connection_files: Sequence[Path]


OPTIONS = (
    click.option(
        "--bandwidth", callback=lambda _ctx, _param, text: _bytes(text), default="100Mi", show_default=True,
        metavar="SIZE", help="Bytes a second that each node pulls.",
    ),
    click.option(
        "--parallel-pulls", type=click.IntRange(1, MOST_PARALLEL), default=1, show_default=True, metavar="N",
        help="Pulls at a time on each node; a kubelet's default is 1.",
    ),
    click.option(
        "--image-size", "image_sizes", callback=lambda _ctx, _param, texts: dict(_sizes(texts)),
        multiple=True, metavar="IMAGE=SIZE", help="The size of an image that no node has.",
    ),
    click.option(
        "--connections", "connection_files", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True, metavar="FILE", help="Answers of `kepctl end connections --to IP:PORT --dry-run -o json`.",
    ),
)  # fmt: skip


def told_options(command: Command) -> Command:
    return reduce(lambda inner, one: one(inner), reversed(OPTIONS), command)


def asked_for(**known: Unpack[Known]) -> Asked:
    rules = PullRules(bandwidth=known["bandwidth"], parallel=known["parallel_pulls"], sizes=known["image_sizes"])
    files = known["connection_files"]
    return Asked(rules=rules, connections=read_connections(files) if files else None)
