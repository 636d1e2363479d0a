# SPDX-License-Identifier: Apache-2.0
"""The contract of process and plane: what a plane is given, and what it hands back.

Each plane has one function `attach(inputs, …) -> Attached`. What it needs of another plane it takes as a further
argument, which a file of `host/joints` makes; what others may use of it is in `offers`. Attaching makes things and
starts nothing: the process runs the units, calls the rest when it is time, and changes nothing of a plane afterwards.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from prometheus_client.core import Metric

from agent.api.http import Handler
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, Report
from agent.model.event import Event
from agent.model.finding import Advice
from agent.model.pods.ending import EndingPods
from agent.model.span import Traces

if TYPE_CHECKING:
    # Importing them takes longer than a daemon without runtime or cluster has to start.
    from agent.drivers.kube.client import KubeClient
    from agent.kit.runtime import Runtime
    from agent.objects.reading import Reading
    from agent.objects.wanted import WantedSource

Offers = TypeVar("Offers")
Families = Callable[[], Iterable[Metric]]
Run = Callable[[Report], Awaitable[None]]


class PlaneInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the process has anyway. `configuration` gives the one in force; `find_runtime` and `find_kube` make their
    clients at the first question, and a node may have no API server yet. `find_manifests` tells a plane
    what of the kinds that it reads is in force. `metrics_page` shows figures of
    all planes."""

    configuration: Callable[[], Configuration]
    environment: Mapping[str, str]
    clock: SystemClock
    board: Board
    tell: Callable[[Event], None]
    find_runtime: "Callable[[], Runtime]"
    find_kube: "Callable[[], KubeClient | None]"
    find_manifests: "Callable[[Callable[[], Reading]], WantedSource]"
    metrics_page: Handler
    endings: EndingPods
    traces: Traces | None = None

    @property
    def runtime(self) -> "Runtime":
        return self.find_runtime()


class LastWork(msgspec.Struct, frozen=True):
    """What a part does when the daemon is to end, while everything still runs, and how long that may take."""

    do: Callable[[], Awaitable[None]]
    longest_s: Callable[[], float]


class PlaneUnit(msgspec.Struct, frozen=True):
    """A task that the tree of the process runs, with a line of its own on the board. `is_plane`: it stands for the
    plane. `stop_s` is how long it may take to end after it was cancelled."""

    name: str
    run: Run
    is_plane: bool = False
    stop_s: float = 5.0
    last: LastWork | None = None


async def nothing_to_close() -> None:
    """Of a plane that holds nothing open."""


class Attached(msgspec.Struct, Generic[Offers], frozen=True, kw_only=True):
    """A plane that is there. Units start in the order given and end in the reverse of it."""

    offers: Offers
    service: object | None = None
    """Answers the plane's part of the API; without one all of it is refused."""
    units: tuple[PlaneUnit, ...]
    families: tuple[Families, ...] = ()
    named_alike: Mapping[str, Families] = {}
    """The same figures under the names of another program, by that program."""
    advice: tuple[Callable[[], Awaitable[Sequence[Advice]]], ...] = ()
    apply: Callable[[Configuration], None] | None = None
    """Takes over another configuration."""
    shed: tuple[Callable[[], None], ...] = ()
    """Gives up what is not needed, when memory is short."""
    close: Callable[[], Awaitable[None]] = nothing_to_close
    pages: Mapping[str, Handler] = {}


def asks_for(configuration: Configuration, program: str) -> bool:
    return program in configuration.telemetry.metrics_compat


def compatible(current: Callable[[], Configuration], program: str, families: Families) -> Families:
    return lambda: families() if asks_for(current(), program) else ()
