# SPDX-License-Identifier: Apache-2.0
"""Options of `kepctl what-if` on what a dump does not say: bandwidth, pulls at once, sizes of images, connections."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from agent.cli.rehearsed.connections import read_connections
from agent.cli.rehearsed.pulls import PullRules
from agent.cli.rehearsed.told import Asked
from agent.model.quantity import QuantityError, parse_quantity

Command = Callable[..., Any]
MOST_PARALLEL = 1000


class Bytes(click.ParamType[int]):
    """A whole number of bytes as Kubernetes writes it; 0 is none."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = parse_quantity(str(value)).nanos // 10**9
        except QuantityError as error:
            self.fail(str(error), param, ctx)
        if found < 1:
            self.fail(f"{value!r} is no number of bytes; expected at least 1, such as 100Mi", param, ctx)
        return found


class ImageSize(click.ParamType[tuple[str, int]]):
    name = "image=size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        image, sign, size = str(value).rpartition("=")
        if not sign or not image:
            self.fail(f"{value!r} has no size; expected IMAGE=SIZE, such as web:2=250Mi", param, ctx)
        return image, Bytes().convert(size, param, ctx)


class Known(TypedDict):
    """The values of these options."""

    bandwidth: int
    parallel_pulls: int
    image_sizes: Sequence[tuple[str, int]]
    connection_files: Sequence[Path]


OPTIONS = (
    click.option(
        "--bandwidth", type=Bytes(), default="100Mi", show_default=True, metavar="SIZE",
        help="Bytes a second that each node pulls.",
    ),
    click.option(
        "--parallel-pulls", type=click.IntRange(1, MOST_PARALLEL), default=1, show_default=True, metavar="N",
        help="Pulls at a time on each node; a kubelet's default is 1.",
    ),
    click.option(
        "--image-size", "image_sizes", type=ImageSize(), multiple=True, metavar="IMAGE=SIZE",
        help="The size of an image that no node has.",
    ),
    click.option(
        "--connections", "connection_files", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True, metavar="FILE", help="Answers of `kepctl end connections --to IP:PORT --dry-run -o json`.",
    ),
)  # fmt: skip


def told_options(command: Command) -> Command:
    for one in reversed(OPTIONS):
        command = one(command)
    return command


def asked_for(**known: Unpack[Known]) -> Asked:
    rules = PullRules(bandwidth=known["bandwidth"], parallel=known["parallel_pulls"], sizes=dict(known["image_sizes"]))
    files = known["connection_files"]
    return Asked(rules=rules, connections=read_connections(files) if files else None)
