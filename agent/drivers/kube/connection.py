# SPDX-License-Identifier: Apache-2.0
"""HTTP to an API server: one request at a time, answered or failed in the words of errors.py.

Every wait has a deadline. A 401 renews the credentials and asks once more, and a 406 asks once more for plain JSON;
nothing else is retried here.

Never: follows redirects (a token must not travel), uses proxies, or decodes what it unpacks. The only module that
imports aiohttp: 138 ms and 25 MiB, so whoever needs it imports it late.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from msgspec.structs import replace
from yarl import URL

from agent.drivers.kube import errors
from agent.drivers.kube.access import KubeAccess
from agent.drivers.kube.credentials import Credentials, Presented
from agent.drivers.kube.decoding import decode_status
from agent.drivers.kube.gunzip import Gunzip, unpacked_start
from agent.drivers.kube.rate_limit import RequestBucket
from agent.drivers.kube.servers import ServerRing
from agent.drivers.kube.tls import TlsContexts
from agent.model.clock import Clock

MAX_BODY_BYTES = 32 << 20
MAX_ERROR_BYTES = 64 << 10

JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

# A peer that vanished without a word is noticed by the kernel within half a minute, with or without traffic.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


class KubeTiming(msgspec.Struct, frozen=True, kw_only=True):
    """All deadlines. A watch asks the server to end it after `watch_s` to twice that, at random; one that goes on from
    a version begins at once, or the server has never seen that version."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    watch_answer_s: float = 2.0
    body_silence_s: float = 30.0
    page_s: float = 60.0
    watch_s: float = 300.0
    watch_slack_s: float = 30.0
    short_watch_s: float = 1.0
    exec_s: float = 30.0


class KubeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `what` is for messages; `is_rated` = it takes a token of the rate limit."""

    verb: str
    what: str
    path: str
    query: str = ""
    method: str = "GET"
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    is_rated: bool = True
    answer_s: float | None = None

    def at(self, server: str) -> URL:
        """The whole address; everything in it is encoded already."""
        return URL(server + self.path + (f"?{self.query}" if self.query else ""), encoded=True)


class Opened:
    """An answer that began well. Whoever opened it reads it to its end or leaves it."""

    def __init__(self, response: aiohttp.ClientResponse, ask: KubeRequest, server: str, ring: ServerRing) -> None:
        self._response = response
        self._told = f"{ask.verb} {ask.what} at {server}"
        self._server = server
        self._ring = ring
        self._gunzip = Gunzip(self._told) if _is_packed(response) else None

    async def read(self, silence_s: float) -> bytes:
        """What has arrived; empty at the end. Raises StreamSilent when nothing did for so long."""
        if self._gunzip is None:
            return await self._arrived(silence_s)
        while not (piece := self._gunzip.piece()):
            chunk = await self._arrived(silence_s)
            if not chunk:
                self._gunzip.finish()
                break
            self._gunzip.feed(chunk)
        return piece

    async def _arrived(self, silence_s: float) -> bytes:
        try:
            async with asyncio.timeout(silence_s):
                return await self._response.content.readany()
        except TimeoutError:
            self._ring.failed(self._server)
            raise errors.StreamSilent(f"{self._told}: nothing arrived for {silence_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            self._ring.failed(self._server)
            raise errors.Unreachable(f"{self._told}: the connection broke: {_explained(error)}") from None

    async def body(self, silence_s: float) -> bytearray:
        """All of it. Raises AnswerTooBig."""
        body = bytearray()
        while chunk := await self.read(silence_s):
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise errors.AnswerTooBig(f"{self._told}: more than {MAX_BODY_BYTES >> 20} MiB in one answer")
        return body


class KubeConnection:
    def __init__(
        self,
        access: KubeAccess,
        *,
        clock: Clock,
        timing: KubeTiming,
        bucket: RequestBucket,
        luck: Callable[[], float],
        user_agent: str,
    ) -> None:
        self.ring = ServerRing(access.cluster.servers, luck())
        self._access = access
        self._clock = clock
        self._timing = timing
        self._bucket = bucket
        self._user_agent = user_agent
        self._credentials = Credentials(access, clock, timing.exec_s)
        self._tls = TlsContexts(access.cluster)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def opened(self, ask: KubeRequest) -> AsyncIterator[Opened]:
        """The answer to a request, once its head has arrived and says success."""
        if ask.is_rated and (wait_s := self._bucket.take(self._clock.now_s())) > 0:
            await self._clock.sleep(wait_s)
        try:
            response, server = await self._authenticated(ask)
        except errors.NotAcceptable:
            if ask.accept == JSON:
                raise
            response, server = await self._authenticated(replace(ask, accept=JSON))
        try:
            yield Opened(response, ask, server, self.ring)
        finally:
            response.close()

    async def _authenticated(self, ask: KubeRequest) -> tuple[aiohttp.ClientResponse, str]:
        """Send it; after a 401 renew the credentials, if they can be, and send it once more."""
        presented = await self._credentials.current()
        try:
            return await self._send(ask, presented)
        except errors.Unauthenticated:
            if not self._credentials.refused(presented):
                raise
        return await self._send(ask, await self._credentials.current())

    async def _send(self, ask: KubeRequest, presented: Presented) -> tuple[aiohttp.ClientResponse, str]:
        server = self.ring.current
        try:
            response = await self._head(ask, server, presented)
        except (errors.Unreachable, errors.Unanswered):
            self.ring.failed(server)
            raise
        if 200 <= response.status < 300:
            return response, server
        if response.status >= 500:
            self.ring.failed(server)
        try:
            raise await self._refusal(ask, server, presented, response)
        finally:
            response.close()

    async def _head(self, ask: KubeRequest, server: str, presented: Presented) -> aiohttp.ClientResponse:
        told = f"{ask.verb} {ask.what} at {server}"
        options = self._tls_options(server, presented)
        answer_s = self._timing.answer_s if ask.answer_s is None else ask.answer_s
        try:
            async with asyncio.timeout(self._timing.connect_s + answer_s):
                return await self._ready_session().request(
                    ask.method,
                    ask.at(server),
                    data=ask.body,
                    headers=self._headers(ask, server, presented),
                    allow_redirects=False,
                    **options,
                )
        except aiohttp.ClientConnectorError as error:
            raise errors.Unreachable(f"{told}: cannot connect: {_explained(error)}") from None
        except aiohttp.ConnectionTimeoutError:
            raise errors.Unreachable(f"{told}: no connection within {self._timing.connect_s:.0f} s") from None
        except TimeoutError:
            raise errors.Unanswered(f"{told}: no answer within {answer_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise errors.Unreachable(f"{told}: the connection broke: {_explained(error)}") from None

    def _tls_options(self, server: str, presented: Presented) -> dict[str, Any]:
        if not server.startswith("https:"):
            return {}
        name = self._access.cluster.server_name
        options: dict[str, Any] = {"ssl": self._tls.current(presented.identity)}
        return {**options, "server_hostname": name} if name else options

    def _headers(self, ask: KubeRequest, server: str, presented: Presented) -> dict[str, str]:
        # Events are never compressed, and what stays on this machine need not be.
        encoding = "gzip" if self._access.compresses and ask.verb == "list" and not _is_here(server) else "identity"
        headers = {"User-Agent": self._user_agent, "Accept": ask.accept, "Accept-Encoding": encoding}
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
        if presented.token and server.startswith("https:"):
            headers["Authorization"] = f"Bearer {presented.token.reveal().decode()}"
        return headers

    async def _refusal(
        self, ask: KubeRequest, server: str, presented: Presented, response: aiohttp.ClientResponse
    ) -> errors.KubeError:
        """The error in an answer. A body that is no Status is not repeated: it may echo the request."""
        body = b""
        try:
            async with asyncio.timeout(self._timing.answer_s):
                body = await response.content.read(MAX_ERROR_BYTES)
                while len(body) < MAX_ERROR_BYTES and (more := await response.content.read(MAX_ERROR_BYTES)):
                    body += more
        except (aiohttp.ClientError, OSError):
            body = b""
        status = decode_status(unpacked_start(body, MAX_ERROR_BYTES) if _is_packed(response) else body)
        if status and presented.token and presented.token.reveal().decode() in status.message:
            status = None
        told = f"{ask.verb} {ask.what} at {server}"
        return errors.refusal(told, response.status, status, response.headers.get("Retry-After", ""))

    def _ready_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(sock_connect=self._timing.connect_s),
            )
        return self._session


def _is_packed(response: aiohttp.ClientResponse) -> bool:
    return response.headers.get("Content-Encoding", "").lower() == "gzip"


def _is_here(server: str) -> bool:
    host = URL(server).host or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    created = socket.socket(family, kind, protocol)
    for level, option, value in KEEPALIVE:
        created.setsockopt(level, option, value)
    return created


def _explained(error: Exception) -> str:
    """The innermost reason, in words that hold nothing of the request."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
            return f"its certificate is refused, {reason.rstrip('.')}; check certificate-authority and tls-server-name"
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return f"TLS failed: {_word(error)}"
        case aiohttp.ClientPayloadError():
            return "the answer was cut short"
        case aiohttp.ServerDisconnectedError():
            return "closed without an answer"
        case OSError() if error.errno and error.errno > 0:
            return os.strerror(error.errno)
        case _:
            return type(error).__name__


def _word(error: object) -> str:
    inner = getattr(error, "os_error", error)
    reason = getattr(inner, "reason", None) or type(inner).__name__
    return str(reason).replace("_", " ").lower()
