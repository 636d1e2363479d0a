# SPDX-License-Identifier: Apache-2.0
"""Threads that follow the daemon: one for each watch, one for what no watch tells.

Who does not keep up slows the daemon's stream down and not the memory: the queue has a bound. A watch that breaks off
begins again, with pauses that grow.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from agent.cli.client import Client
from agent.cli.objects.listed import changes, objects
from agent.cli.session import CommandFailed
from agent.kinds.table import Object
from agent.model.exit_codes import CONFLICT
from agent.wire.kepd.v1 import node_pb2
from kepd_ui.board import Began, Head, Lost, News, Told, counted

MOST_WAITING = 4096
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
HEAD_EVERY_S = 5.0
COUNT_EVERY_S = 2.0
REST_PER_COST = 50
"""Counting takes at most a fiftieth of the time, however many Services there are."""


class Feeds:
    def __init__(self, daemon: Client, wake: Callable[[], None]) -> None:
        self._daemon = daemon
        self._wake = wake
        self._told: queue.Queue[Told] = queue.Queue(MOST_WAITING)
        self._ended = threading.Event()

    def start(self) -> None:
        asked: Client | None = self._daemon
        while asked is not None:
            # Each kepd of a node has its own events.
            self._thread(self._follow, "events", asked)
            asked = asked.other
        for panel in ("pods", "pulls", "services"):
            self._thread(self._follow, panel, self._daemon)
        self._thread(self._look, self._daemon)

    def stop(self) -> None:
        self._ended.set()

    def news(self) -> Iterator[Told]:
        """What has come by now."""
        with suppress(queue.Empty):
            for _ in range(MOST_WAITING):
                yield self._told.get_nowait()

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _tell(self, told: Told) -> None:
        while not self._ended.is_set():
            with suppress(queue.Full):
                self._told.put(told, timeout=0.5)
                self._wake()
                return

    def _follow(self, panel: str, daemon: Client) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._ended.is_set():
            self._tell(Began(panel))
            text = "the daemon ended the watch"
            try:
                for change, item in changes(daemon, panel):
                    pause_s = FIRST_PAUSE_S
                    self._tell(News(panel, change, item))
            except CommandFailed as error:
                text = "off: no daemon here runs this plane" if error.exit_code == CONFLICT else str(error)
            self._tell(Lost(panel, text))
            self._ended.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _look(self, daemon: Client) -> None:
        head_at_s = 0.0
        pause_s = COUNT_EVERY_S
        while not self._ended.is_set():
            begun_s = time.monotonic()
            with suppress(CommandFailed):
                if begun_s >= head_at_s:
                    head_at_s = begun_s + HEAD_EVERY_S
                    self._tell(_head(daemon))
            pause_s = self._count(daemon)
            self._ended.wait(pause_s)

    def _count(self, daemon: Client) -> float:
        """Returns how long to wait until the next time."""
        begun_s = time.monotonic()
        try:
            services = objects(daemon, "services")
        except CommandFailed:
            return HEAD_EVERY_S
        if services:
            self._tell(counted(begun_s, services))
        return max(COUNT_EVERY_S, (time.monotonic() - begun_s) * REST_PER_COST)


def _head(daemon: Client) -> Head:
    node = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse).node
    planes: list[Object] = []
    asked: Client | None = daemon
    while asked is not None:
        planes += objects(asked, "planes")
        asked = asked.other
    return Head(node, [plane for plane in planes if plane["status"]["state"] not in ("off", "absent")])
