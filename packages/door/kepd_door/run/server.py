# SPDX-License-Identifier: Apache-2.0
"""The door's port: takes connections, finds out who calls, and bounds what one caller takes of the loop.

aiohttp speaks HTTP. Owns: the listening socket and its connections. Never: answers a question before it knows whose.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web

from agent.api.errors import ApiError
from agent.api.peer import WORK
from agent.kit.memory import give_back_pages
from agent.model.allowance import Allowance, CallerMeter, Share
from agent.model.component import Report
from agent.objects.patches import BadPatch
from kepd_door.run.calls import Caller
from kepd_door.run.keys import DoorKeys
from kepd_door.shape.bounds import MOST_BYTES
from kepd_door.shape.statuses import Failure, failure_of

log = structlog.get_logger(plane="api")

MOST_CONNECTIONS, CONNECTIONS_OF_CALLER = 256, 80
# Of connections that show no right. Beyond this rate the next ones wait in the kernel's queue.
HANDSHAKES_AT_ONCE, HANDSHAKES_A_SECOND = 400, 100
HANDSHAKE_S, KEPT_S = 5.0, 75.0
TAKEN_A_TURN = 16
PAUSE_S = 0.5
TOLD_AGAIN_S = 60.0
RENEW_S = 12 * 3600.0
METERED = {"requests": Share(2000, 400), "requests without a right": Share(20, 5)}
LONGEST_WAIT_S = 5.0
HEALTH = frozenset({"/healthz", "/livez", "/readyz"})

Handle = Callable[[web.BaseRequest, Caller], Awaitable[web.StreamResponse]]


class DoorServer:
    """`handle` answers who may ask; it raises Failure or ApiError. `ending` is set when all is to end."""

    def __init__(
        self, listen: Callable[[], socket.socket], address: str, keys: DoorKeys, handle: Handle, ending: asyncio.Event
    ) -> None:
        self._listen, self._address, self._keys, self._handle = listen, address, keys, handle
        self._meter = CallerMeter(METERED)
        self._ending = ending
        self._handshakes = Allowance(HANDSHAKES_AT_ONCE, HANDSHAKES_A_SECOND, monotonic())
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._unknown: dict[asyncio.Transport, None] = {}
        """Connections whose caller has shown no right yet, oldest first."""
        self._known: dict[asyncio.Transport, str] = {}
        self._server = web.Server(
            self._answer, access_log=None, keepalive_timeout=KEPT_S, max_line_size=16 << 10, max_field_size=16 << 10,
            request_factory=_request, handler_cancellation=True, auto_decompress=False, logger=_unreadable_logger(),
        )  # fmt: skip

    async def run(self, report: Report) -> None:
        await self._keys.open()
        listener = self._listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._take, listener)
        # What aiohttp imports leaves a mebibyte that is free.
        give_back_pages()
        report.ready(f"https://{self._address}")
        try:
            while True:
                await asyncio.sleep(RENEW_S)
                try:
                    await self._keys.renew()
                except OSError as error:
                    # The certificate that there is has months left; each look tries again.
                    log.error("door_certificate_not_renewed", error=str(error))
        finally:
            loop.remove_reader(listener)
            listener.close()
            for task in self._shaking:
                task.cancel()
            self._ending.set()
            await self._server.shutdown(1.0)

    def _take(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(TAKEN_A_TURN):
            if not self._handshakes.take(monotonic(), 0, refuses=True):
                self._pause(listener, self._handshakes.owed_s)
                return
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Until descriptors are free again.
                self._pause(listener, PAUSE_S)
                return
            if len(self._server.connections) + len(self._shaking) >= MOST_CONNECTIONS and not self._made_room():
                client.close()
                continue
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._shake(client), name="door-handshake")
            self._shaking[task] = None
            task.add_done_callback(lambda done: self._shaking.pop(done, None))

    def _pause(self, listener: socket.socket, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(pause_s, lambda: listener.fileno() >= 0 and loop.add_reader(listener, self._take, listener))

    def _made_room(self) -> bool:
        """Who only connects gives way to the next, so that nobody keeps out those who have a right."""
        for transport in list(self._unknown):
            del self._unknown[transport]
            if not transport.is_closing():
                transport.abort()
                return True
        oldest = next(iter(self._shaking), None)
        return oldest is not None and oldest.cancel()

    async def _shake(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(
                self._server,
                client,
                ssl=self._keys.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=1.0,
            )
        except (OSError, asyncio.CancelledError):
            client.close()
            return
        self._handshakes.take(monotonic())
        self._unknown = {one: None for one in self._unknown if not one.is_closing()}
        self._unknown[transport] = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._admitted(request)
        except Failure as failure:
            return status(failure)
        except BadPatch as error:
            return status(Failure(error.code, error.text))
        except ApiError as error:
            return status(failure_of(error))
        except web.HTTPRequestEntityTooLarge:
            return status(Failure(413, f"the body has more than {MOST_BYTES} bytes"))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # a bug must not show its insides to callers
            log.error(
                "door_request_failed", method=request.method, path=request.path[:300], error=repr(error), exc_info=error
            )
            return status(Failure(500, "kepd failed at this; the daemon's log has the cause"))

    async def _admitted(self, request: web.BaseRequest) -> web.StreamResponse:
        _check_headers(request)
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        caller = self._keys.caller(request.headers.get("Authorization", ""), certificate)
        if caller is None:
            if request.path in HEALTH and request.method == "GET":
                return web.Response(text="ok")
            await self._wait("", "requests without a right")
            raise Failure(401, "Unauthorized")
        self._take_over(cast("asyncio.Transport", transport), caller)
        await self._wait(caller.name, "requests")
        WORK.set(f"{caller.name} by the door, {request.method} {request.path}")
        return await self._handle(request, caller)

    def _take_over(self, transport: asyncio.Transport, caller: Caller) -> None:
        """A connection of a known caller, who may have so many: others are to find room as well."""
        if self._unknown.pop(transport, transport) is None:
            # It has shown a right, so it is not among those that are counted.
            self._handshakes.take(monotonic(), -1)
        if transport in self._known:
            return
        self._known = {one: name for one, name in self._known.items() if not one.is_closing()}
        if list(self._known.values()).count(caller.name) >= CONNECTIONS_OF_CALLER:
            text = f"{caller.name} has {CONNECTIONS_OF_CALLER} connections already"
            raise Failure(429, text, retryAfterSeconds=1)
        self._known[transport] = caller.name

    async def _wait(self, who: str, what: str) -> None:
        """Those who ask for more than their share have their turn later, or are told to."""
        wait_s = self._meter.take(who, what, monotonic())
        if wait_s > LONGEST_WAIT_S:
            raise Failure(429, f"{who or 'callers without a right'} asked for more than the share of one caller",
                          retryAfterSeconds=int(wait_s))  # fmt: skip
        if wait_s:
            await asyncio.sleep(wait_s)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:  # noqa: ANN401
    """As aiohttp makes its own, with our bound."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_BYTES)


def _check_headers(request: web.BaseRequest) -> None:
    """A certificate in a browser is sent with what any page asks for. No browser lets a page give a WebSocket a token,
    so who has one is a program, whatever it says of its origin. Raises Failure."""
    origin, headers = request.headers.get("Origin", ""), request.headers
    is_program = headers.get("Upgrade", "").lower() == "websocket" and bool(headers.get("Authorization"))
    if origin and not is_program and urlsplit(origin).netloc != request.host:
        raise Failure(403, f"a page of {origin[:100]} may not call the door; it is for clients of Kubernetes")
    for name in request.headers:
        if name.lower().startswith("impersonate-"):
            raise Failure(403, f"{name[:60]} is not carried out: a caller has the rights of its own token alone")


class _Unreadable(logging.Handler):
    """What is no request, and connections that break off: counted, and told once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._count, self._told_s = 0, -TOLD_AGAIN_S

    def emit(self, record: logging.LogRecord) -> None:
        self._count += 1
        if (now_s := monotonic()) - self._told_s >= TOLD_AGAIN_S:
            error = record.exc_info[1] if record.exc_info else None
            log.warning("door_request_unreadable", count=self._count, last=type(error).__name__, v=0)
            self._count, self._told_s = 0, now_s


def _unreadable_logger() -> logging.Logger:
    logger = logging.getLogger("kepd.door")
    logger.setLevel(logging.WARNING)
    logger.propagate, logger.handlers = False, [_Unreadable()]
    return logger


def status(failure: Failure) -> web.Response:
    headers = {"Retry-After": str(after)} if (after := failure.details.get("retryAfterSeconds")) else {}
    if failure.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode(failure.status())
    answer = web.Response(status=failure.code, body=body, content_type="application/json", headers=headers)
    if failure.code in (401, 429):
        answer.force_close()
    return answer
