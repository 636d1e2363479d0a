# SPDX-License-Identifier: Apache-2.0
"""The real API server in a thread, with views that a test fills, for kepctl as users run it."""

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agent.api.access import AccessRule
from agent.api.offers import listed
from agent.api.server import ApiServer
from agent.api.socket_path import listen_at
from agent.api.watching import followed
from agent.images.attach.image_service import ImageService
from agent.kinds.kube_shape import event_object, node_object
from agent.kinds.own_shape import fields_of, own_object
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object
from agent.model.component import Board, Component, State
from agent.model.event import Event
from agent.model.feed import Feed, FeedChange
from agent.model.images.state import PullState
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.model.runtime.proxy_report import HoldReport
from agent.model.services.report import EndpointReport, ServiceReport
from agent.model.services.service import ServiceKey
from agent.objects.run.applying import ManifestObjects
from agent.pods.attach.pod_service import PodService
from agent.pods.run.commands import ExplainedPod
from agent.services.attach.service_proxy_service import ServiceProxyService
from agent.wire.kepd.v1 import image_pb2, node_pb2, pod_pb2, service_proxy_pb2
from tests.api.objects import with_objects
from tests.host.forked_kepctl import forked_kepctl

START_S = 20.0


class Pods:
    """A pods plane that remembers what was asked of it."""

    def __init__(self) -> None:
        self.pods: Feed[PodState] = Feed()
        self.asked: list[str] = []

    async def looked(self) -> None:
        """It knows all that there is."""

    async def explain(self, namespace: str, name: str) -> ExplainedPod:
        if f"{namespace}/{name}" not in self.pods.items:
            raise Refused("not_found", f'no pod "{namespace}/{name}" on this node')
        return ExplainedPod(self.pods.items[f"{namespace}/{name}"], (), "", (f"plan: {namespace}/{name}",))

    async def delete(self, namespace: str, name: str, grace_s: float | None, *, evicts: bool = False) -> None:
        if f"{namespace}/{name}" not in self.pods.items:
            raise Refused("not_found", f'no pod "{namespace}/{name}" on this node')
        self.asked.append(f"delete {namespace}/{name} {grace_s}")

    def restart(self, namespace: str, name: str, container: str) -> list[str]:
        self.asked.append(f"restart {namespace}/{name} {container}")
        return [container or "all"]


class Services:
    """A services plane with what a test gives it."""

    def __init__(self) -> None:
        self.changes: Feed[Any] = Feed()
        self.reports: list[ServiceReport] = []
        self.found: list[EndpointReport] = []

    def service(self, key: ServiceKey) -> ServiceReport:
        return next(one for one in self.reports if one.key == str(key))

    async def services(self, _after: str = "") -> AsyncIterator[tuple[str, ServiceReport]]:
        for one in self.reports:
            yield one.key, one

    async def endpoints(
        self, _key: object = None, _after: str = "", _port: object = None
    ) -> AsyncIterator[tuple[str, EndpointReport]]:
        for one in self.found:
            yield one.endpoint, one


class Pulls:
    def __init__(self) -> None:
        self.pulls: Feed[PullState] = Feed(lambda pull: pull.image)
        self.held: list[HoldReport] = []

    def look(self) -> None:
        """All is as it is."""

    def holds(self) -> list[HoldReport]:
        return self.held

    def release_hold(self, hold_id: str) -> bool:
        before, self.held = self.held, [one for one in self.held if one.id != hold_id]
        return self.held != before


class Events:
    """The node's own service: what it says of itself, and its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.feed: Feed[Event] = Feed()
        self.offers = {
            "nodes": Offer(listed(self._nodes, lambda node: str(node["name"]), node_object)),
            "planes": Offer(listed(self._planes, lambda plane: plane.name, partial(own_object, "Plane", "pods"))),
            "events": Offer(listed(self._events, lambda event: event.id, event_of), self._follow),
        }

    async def _nodes(self, _how: How) -> list[Object]:
        return [{"name": "n1", "kepdVersion": "1.0"}]

    async def _planes(self, _how: How) -> list[Component]:
        return [Component("pods", is_plane=True, state=State.READY)]

    async def _events(self, _how: How) -> list[Event]:
        return self.events

    async def _follow(self) -> AsyncIterator[FeedChange[Object]]:
        async for change in followed(self.feed):
            shown = event_of(change.item) if change.item is not None else None
            yield FeedChange(change.kind, shown, change.version)

    async def get_node(self, _request: object) -> node_pb2.GetNodeResponse:
        return node_pb2.GetNodeResponse(node=node_pb2.Node(name="n1", kepd_version="1.0"))

    def __getattr__(self, name: str) -> Any:
        async def served(*_: object) -> None:
            raise AssertionError(name)

        return served


def event_of(event: Event) -> Object:
    return event_object(fields_of(event))


class Node:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods, self.services, self.events, self.pulls = Pods(), Services(), Events(), Pulls()
        self.objects: Callable[[], ManifestObjects] | None = None
        self.loop = asyncio.new_event_loop()

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked_kepctl("--endpoint", str(self.path), *arguments)

    def out(self, *arguments: str) -> str:
        done = self.ctl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def put(self, *pods: PodState) -> None:
        """From any thread."""
        for pod in pods:
            self.loop.call_soon_threadsafe(self.pods.pods.put, pod.key, pod)

    def tell(self, event: Event) -> None:
        self.loop.call_soon_threadsafe(self.events.feed.put, event.id, event)

    async def serve(self, is_ready: threading.Event, ended: asyncio.Event) -> None:
        board = Board(lambda: 0.0)
        listener = listen_at(self.path, 0o666)
        rule = AccessRule(None, None, own_uid=os.geteuid())
        services: dict[Any, object] = {
            pod_pb2.DESCRIPTOR.services_by_name["PodService"]: PodService(self.pods, None),  # type: ignore[arg-type]
            service_proxy_pb2.DESCRIPTOR.services_by_name["ServiceProxyService"]: ServiceProxyService(self.services),  # type: ignore[arg-type]
            image_pb2.DESCRIPTOR.services_by_name["ImageService"]: ImageService(self.pulls, None),  # type: ignore[arg-type]
            node_pb2.DESCRIPTOR.services_by_name["NodeService"]: self.events,
        }
        services = with_objects(services, self.objects() if self.objects is not None else None)
        server = ApiServer(services, listener, self.path.parent / "private", lambda: rule, lambda *_: None)
        with listener:
            task = asyncio.create_task(server.run(board.add("api", State.STARTING)))
            while board.line("api").state is not State.READY:
                await asyncio.sleep(0.01)
            is_ready.set()
            await ended.wait()
            task.cancel()
            await asyncio.wait([task])


@contextmanager
def running_node(folder: Path, fill: Callable[[Node], None] = lambda _: None) -> Iterator[Node]:
    node = Node(folder / "kepd.sock")
    fill(node)
    is_ready, ended = threading.Event(), asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(node.loop)
        node.loop.run_until_complete(node.serve(is_ready, ended))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert is_ready.wait(START_S)
        yield node
    finally:
        node.loop.call_soon_threadsafe(ended.set)
        thread.join(START_S)
        node.loop.close()
