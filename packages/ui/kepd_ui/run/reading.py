# SPDX-License-Identifier: Apache-2.0
"""Pages about one object, read in a thread: what the other commands of kepctl print, and logs as they come."""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap

from agent.cli.client import Client, connected
from agent.cli.commands.objects.describe import described
from agent.cli.commands.objects.explain import explained_head
from agent.cli.commands.pods.pods import picture_of
from agent.cli.session import CommandFailed, Session
from agent.kinds.images.pulls import stage_line
from agent.kinds.pods.pod_parts import containers
from agent.kinds.registry import BY_WORD
from agent.kinds.table import FACTS, Object
from agent.model.finding import printable
from agent.pods.view.timeline_text import picture_as_text
from agent.wire.kepd.v1 import image_pb2, pod_pb2, service_proxy_pb2
from kepd_ui.board import Board
from kepd_ui.screen import HELP, Page
from kepd_ui.view import Wish

MOST_LINES = 5000
LONGEST_LINE = 4000
TAIL = 500
COLOURED = re.compile(r"\x1b\[[0-9;]*m")
"""What programs write into their logs for colours; here it would only be signs in the way."""


class BoardReading:
    """One page while it is open."""

    def __init__(self, session: Session, wish: Wish, board: Board, width: int, wake: Callable[[], None]) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self.page = Page(title_of(wish, board), self._lines)
        self._session, self._wish, self._width, self._wake = session, wish, max(width, 20), wake
        self._item = board.table(wish.panel).items.get(wish.key) if wish.panel else None
        self._container = _container(wish, board)
        self._daemon: Client | None = None
        self._is_closed = False

    def start(self) -> None:
        if self._wish.kind == "help":
            self._lines.extend(HELP)
            self.page.is_reading = False
            return
        threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        """A stream under way ends with its connection."""
        self._is_closed = True
        daemon = self._daemon
        while daemon is not None:
            daemon.close()
            daemon = daemon.other

    def _read(self) -> None:
        try:
            with connected(self._session) as self._daemon:
                for text in self._texts(self._daemon):
                    self._lines.extend(_laid_out(text, self._width))
                    self._wake()
        except (CommandFailed, ValueError) as error:
            # A channel that was closed says so with a ValueError.
            self.page.trouble = "" if self._is_closed else str(error)
        self.page.is_reading = False
        self._wake()

    def _texts(self, daemon: Client) -> Iterable[str]:
        kind, key = self._wish.kind, self._wish.key
        if kind == "logs":
            return _log(daemon, key, self._container)
        if kind == "timeline":
            namespace, _, name = key.partition("/")
            picture = picture_of(daemon, namespace, name)
            return picture_as_text(picture, key, self._width - 1).splitlines()
        if kind == "explain":
            return _explained(daemon, self._wish.panel, self._item, key)
        return _described(daemon, self._wish.panel, self._item, key)


def title_of(wish: Wish, board: Board) -> str:
    if wish.kind == "help":
        return "Help"
    container = _container(wish, board)
    named = f"{wish.key}/{container}" if container else wish.key
    return f"{wish.kind} {wish.panel.removesuffix('s')} {named}"


def _container(wish: Wish, board: Board) -> str:
    """Of whose log; the first time that of the pod's main container, then one after the other."""
    pod = board.pods.items.get(wish.key) if wish.kind == "logs" else None
    known = list(containers(pod)) if pod is not None else []
    if not known:
        return ""
    mains = [place for place, (kind, _) in enumerate(known) if kind == "main"]
    return str(known[((mains or [0])[0] + wish.step) % len(known)][1]["name"])


def _laid_out(text: str, width: int) -> list[str]:
    """A text as lines that fit; longer ones go on below."""
    text = printable(COLOURED.sub("", text).expandtabs()[:LONGEST_LINE])
    if len(text) <= width:
        return [text]
    begin = len(text) - len(text.lstrip())
    indent = " " * min(begin + 2, width // 2)
    return wrap(text, width, drop_whitespace=False, subsequent_indent=indent) or [""]


def _log(daemon: Client, key: str, container: str) -> Iterator[str]:
    namespace, _, name = key.partition("/")
    request = pod_pb2.StreamLogsRequest(namespace=namespace, name=name, container=container, follow=True, tail=TAIL)
    for answer in daemon.follow("kepd.v1.PodService/StreamLogs", request, pod_pb2.StreamLogsResponse):
        yield answer.line.decode(errors="replace").rstrip("\r\n")


def _explained(daemon: Client, panel: str, item: Object | None, key: str) -> Iterator[str]:
    namespace, _, name = key.partition("/")
    if panel == "pods":
        of_pod = pod_pb2.ExplainPodRequest(namespace=namespace, name=name)
        answer = daemon.call("kepd.v1.PodService/ExplainPod", of_pod, pod_pb2.ExplainPodResponse)
        yield from explained_head(key, answer)
        yield from (f"- {line}" for line in answer.lines)
    elif panel == "pulls" and item is not None:
        of_pull = image_pb2.ExplainPullRequest(image=item["status"]["image"])
        found = daemon.call("kepd.v1.ImageService/ExplainPull", of_pull, image_pb2.ExplainPullResponse)
        yield f"IMAGE {found.image}  {found.reference}  {'present' if found.is_present else 'not present'}"
        yield from (f"- {sentence}" for sentence in found.sentences)
    else:
        of_service = service_proxy_pb2.ExplainRouteRequest(service=key)
        route = daemon.call(
            "kepd.v1.ServiceProxyService/ExplainRoute", of_service, service_proxy_pb2.ExplainRouteResponse
        )
        yield from route.lines
        for one in route.endpoints:
            yield f"{'→' if one.is_used else ' '} {one.endpoint}  {one.state}  {one.reason}"


def _described(daemon: Client, panel: str, item: Object | None, key: str) -> Iterable[str]:
    if panel in ("pods", "services"):
        return described(daemon, BY_WORD[panel], key)
    if item is None:
        return ["it is gone"]
    return _of_event(item) if panel == "events" else _of_pull(item["status"])


def _of_event(event: Object) -> Iterator[str]:
    facts = event[FACTS]
    yield f"{event['type']}  {event['reason']}"
    yield f"Object:     {facts['namespace']}/{facts['objectName']}" if facts["objectName"] else "Object:     the node"
    if facts["container"]:
        yield f"Container:  {facts['container']}"
    yield f"Plane:      {facts['plane']}"
    yield f"First seen: {event['firstTimestamp']}"
    yield f"Last seen:  {event['lastTimestamp']}"
    yield f"Count:      {event['count']}"
    yield ""
    yield from event["message"].splitlines()


def _of_pull(pull: Object) -> Iterator[str]:
    yield f"Image:      {pull['image']}"
    yield f"Reference:  {pull['reference']}"
    yield f"Registry:   {pull['registry']}"
    yield f"Stage:      {stage_line(pull)}"
    yield f"Class:      {pull['pullClass']}"
    yield f"Attempts:   {pull['attempts']}"
    for one in pull["requesters"]:
        if one["pod"]:
            yield f"For:        {one['namespace']}/{one['pod']} {one['container']}"
    if pull["layers"]:
        yield "Layers:"
    for layer in pull["layers"]:
        yield f"  {layer['digest']}  {layer['doneBytes']} of {layer['sizeBytes']} B  {layer['stage']}"
