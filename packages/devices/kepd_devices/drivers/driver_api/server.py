# SPDX-License-Identifier: Apache-2.0
"""HTTP for drivers of devices: on a loopback port with TLS, and on a Unix socket.

JSON is answered, and JSON or protobuf of Kubernetes taken. Bounds: bodies, watches of a driver, and its calls in a
second, over which it is told to come later.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from agent.model.allowance import CallerMeter, Share
from kepd_devices.drivers.driver_api.credentials import Credentials
from kepd_devices.drivers.driver_api.door import Door
from kepd_devices.drivers.driver_api.protobuf import CONTENT_TYPE as PROTOBUF
from kepd_devices.drivers.driver_api.protobuf import from_protobuf

MOST_BODY_BYTES = 3 << 19
MOST_WATCHES = 32
CALLS = "calls"
METERED = {CALLS: Share(200, 50)}
SOCKET_MODE = 0o600
JSON = "application/json"


class DriverApiServer:
    """`refused` is what `answer` and `watch` raise; `status` makes the document of a refusal."""

    def __init__(
        self,
        answer: Callable[[Any], Awaitable[tuple[int, dict[str, Any]]]],
        watch: Callable[[Any], AsyncIterator[dict[str, Any]]],
        asked: Callable[[str, str, str, Mapping[str, str], bytes], Any],
        refused: type[Exception],
        status: Callable[[int, str, str], dict[str, Any]],
        now_s: Callable[[], float],
    ) -> None:
        self._answer = answer
        self._watch = watch
        self._asked = asked
        self._refused = refused
        self._status = status
        self._now_s = now_s
        self._watches: Counter[str] = Counter()
        self._meter = CallerMeter(METERED)

    @asynccontextmanager
    async def serving(self, address: str, socket: Path, credentials: Credentials) -> AsyncIterator[None]:
        """Raises OSError."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, credentials)

        server = web.Server(handle)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        door = Door(server, address, credentials.context)
        try:
            door.open()
            with suppress(FileNotFoundError):
                await asyncio.to_thread(socket.unlink)
            await web.UnixSite(runner, str(socket)).start()
            await asyncio.to_thread(socket.chmod, SOCKET_MODE)
            yield
        finally:
            await door.close()
            await runner.cleanup()
            with suppress(FileNotFoundError):
                await asyncio.to_thread(socket.unlink)

    async def _handle(self, request: web.BaseRequest, credentials: Credentials) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        driver = credentials.driver_of(token.strip()) if scheme.lower() == "bearer" else ""
        if not driver:
            answer = self._refusal(401, "Unauthorized", "no token of a driver")
            # Whoever comes without one keeps no place.
            answer.force_close()
            return answer
        if wait_s := self._meter.take(driver, CALLS, self._now_s(), refuses=True):
            share = METERED[CALLS]
            answer = self._refusal(429, "TooManyRequests", f"more than {share.a_second:g} calls a second")
            answer.headers["Retry-After"] = str(int(wait_s) + 1)
            return answer
        if not _takes_json(request.headers.get("Accept", "")):
            return self._refusal(406, "NotAcceptable", "only application/json is served")
        sent = request.headers.get("Content-Type", JSON).partition(";")[0].strip()
        if request.method in ("POST", "PUT") and sent not in (JSON, PROTOBUF):
            return self._refusal(415, "UnsupportedMediaType", f"only {JSON} and {PROTOBUF} are taken")
        body = await request.content.read(MOST_BODY_BYTES + 1) if request.can_read_body else b""
        while request.can_read_body and not request.content.at_eof() and len(body) <= MOST_BODY_BYTES:
            body += await request.content.read(MOST_BODY_BYTES + 1 - len(body))
        if len(body) > MOST_BODY_BYTES:
            return self._refusal(413, "RequestEntityTooLarge", f"expected at most {MOST_BODY_BYTES} bytes")
        if body and sent == PROTOBUF:
            try:
                body = json.dumps(from_protobuf(body)).encode()
            except (ValueError, OverflowError) as error:
                return self._refusal(400, "BadRequest", str(error))
        asked = self._asked(driver, request.method, request.path, dict(request.query), body)
        try:
            if request.method == "GET" and request.query.get("watch") in ("true", "1"):
                return await self._stream(request, driver, asked)
            code, document = await self._answer(asked)
        except self._refused as error:
            return self._refusal(getattr(error, "code", 500), getattr(error, "reason", ""), str(error))
        return web.Response(status=code, body=json.dumps(document).encode(), content_type=JSON)

    async def _stream(self, request: web.BaseRequest, driver: str, asked: Any) -> web.StreamResponse:  # noqa: ANN401
        if self._watches[driver] >= MOST_WATCHES:
            return self._refusal(429, "TooManyRequests", f"{driver} has {MOST_WATCHES} watches already")
        events = self._watch(asked)
        self._watches[driver] += 1
        response = web.StreamResponse(headers={"Content-Type": JSON})
        try:
            await response.prepare(request)
            async for event in events:
                await response.write(json.dumps(event).encode() + b"\n")
        except self._refused as error:
            document = self._status(getattr(error, "code", 500), getattr(error, "reason", ""), str(error))
            await response.write(json.dumps({"type": "ERROR", "object": document}).encode() + b"\n")
        finally:
            self._watches[driver] -= 1
        with suppress(ConnectionError):
            await response.write_eof()
        return response

    def _refusal(self, code: int, reason: str, text: str) -> web.Response:
        body = json.dumps(self._status(code, reason, text)).encode()
        return web.Response(status=code, body=body, content_type=JSON)


def _takes_json(accept: str) -> bool:
    kinds = [one.partition(";")[0].strip() for one in accept.split(",") if one.strip()]
    return not kinds or any(one in (JSON, "*/*", "application/*") for one in kinds)
