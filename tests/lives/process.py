# SPDX-License-Identifier: Apache-2.0
"""The daemon's own figures, as its page shows them: calls, a reload, a plane that cannot start, and the process."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.api.metrics import Metrics
from agent.host.compose import compose
from agent.host.process import Process
from agent.host.tree import run_tree
from agent.kit.log_output import LogOutput
from agent.kit.logs import Levels
from agent.kit.plane_lock import held_plane_lock
from agent.model.component import State
from agent.wire.kepd.v1 import node_pb2
from tests.host.test_key_effects import Running, everything_on
from tests.lives.figures import WITHIN_S, Watched, figures_of

# Planes would touch the node; of these units only the images plane is one, and it does not come to its work.
RUN = {"runtime", "lifecycle", "http", "api", "images"}
OF_THE_PROCESS = {
    "process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds", "kepd_tasks", "kepd_gc_pause_seconds",
}  # fmt: skip
RELOADED = "kepd_config_last_reload_success_timestamp_seconds"
HELD_S = 1.5
MOST_TURNS = 5
MANY_BYTES = 64 * 2**20
MANY = 20


class Page:
    """What a scraper sees."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.families: list[Metric] = []

    async def read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        _, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        self.families = list(text_string_to_metric_families(body))

    def value(self, name: str) -> float:
        """Of a family with one figure; of a histogram how much it has seen."""
        found = {place: value for one in self.families for place, value in figures_of(one).items()}
        return found.get((name, ()), 0.0)


@asynccontextmanager
async def started(folder: Path, port: int) -> AsyncIterator[tuple[Process, Running]]:
    """A daemon of which only some parts run, beside a runtime that is not there."""
    plain = everything_on(folder)
    running = Running(
        replace(
            plain,
            api=replace(plain.api, http_address=f"127.0.0.1:{port}"),
            runtime=replace(plain.runtime, endpoint=str(folder / "no-runtime.sock")),
        )
    )
    daemon = compose(running, Levels(2, {}), {})  # type: ignore[arg-type]
    # What does not run here has nothing to wait for; the ruler of the loop begins when every part has settled.
    board = daemon.lifecycle._board
    for line in board.lines():
        board.update(line.name, msgspec.structs.replace(line, state=State.READY))
    stop = asyncio.Event()
    units = [unit for unit in daemon.units if unit.name in RUN]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_tree(units, daemon.clock, stop, asyncio.Event()))
            yield daemon, running
            stop.set()
    finally:
        await daemon.close()


def idle() -> list[Metric]:
    """The daemon's own families with nothing counted. What the process uses is looked at beside."""
    return [one for one in Metrics("", tuple).collect() if one.name not in OF_THE_PROCESS]


async def process_life(folder: Path, port: int) -> set[str]:
    """What moved."""
    page = Page(port)
    watched = Watched(lambda: page.families or idle())
    with held_plane_lock("images", str(folder / "no-runtime.sock"), folder):
        async with started(folder, port) as (daemon, running):
            await until_served(page)
            lose_lines(daemon)
            started_s = page.value(RELOADED)
            for listener in running.listeners:
                listener(running.configuration, None)
            await ask(folder)
            await until_late(page)
            watched.look()
            assert page.value(RELOADED) > started_s > 0
            await what_the_process_uses(page)
    return watched.moved | OF_THE_PROCESS


def lose_lines(daemon: Process) -> None:
    """The disk under the log is full."""
    out = LogOutput(os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC))
    daemon.metrics.lost_log_lines = lambda: out.lost_lines
    out.write("event=one\n")
    os.close(out.fileno())


async def until_served(page: Page) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not page.families:
            try:
                await page.read()
            except OSError:
                await asyncio.sleep(0.01)


async def ask(folder: Path) -> None:
    """A call to the API, whatever its answer."""
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{folder}/kepd.sock", options=options) as channel:
        call = channel.unary_unary("/kepd.v1.NodeService/GetNode", request_serializer=lambda m: m.SerializeToString())
        await call(node_pb2.GetNodeRequest(), timeout=WITHIN_S)


async def until_late(page: Page) -> None:
    """Something holds the loop up for longer than a turn of its ruler, and the page is read before the next turn."""
    for _ in range(MOST_TURNS):
        if page.value("kepd_loop_lag_seconds"):
            return
        time.sleep(HELD_S)  # noqa: ASYNC251 - the loop stands still, which is what is measured
        await page.read()


async def what_the_process_uses(page: Page) -> None:
    """Each of OF_THE_PROCESS grows by what is used here, at least about as much."""
    names = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "kepd_tasks",
             "kepd_gc_pause_seconds_count")  # fmt: skip
    # What earlier tests left must not go meanwhile.
    gc.collect()
    await page.read()
    cpu_s, resident, files, tasks, collections = map(page.value, names)

    kept = bytearray(b"x" * MANY_BYTES)
    opened = [os.eventfd(0) for _ in range(MANY)]
    sleeping = [asyncio.create_task(asyncio.Event().wait()) for _ in range(MANY)]
    gc.collect()
    await page.read()
    for one in opened:
        os.close(one)
    for task in sleeping:
        task.cancel()

    assert page.value(names[0]) > cpu_s
    assert page.value(names[1]) - resident > len(kept) / 2
    assert page.value(names[2]) - files > MANY / 2
    assert page.value(names[3]) - tasks > MANY / 2
    assert page.value(names[4]) > collections
