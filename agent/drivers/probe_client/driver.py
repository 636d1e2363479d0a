# SPDX-License-Identifier: Apache-2.0
"""GETs, connections and health calls to containers.

Sockets leave nothing behind: probes run for years, and each plain close would leave an entry in the kernel for
a minute. What was answered is read to its end, then the socket is reset, unless `resets` is off.
Never: bounds itself in time, retries, or checks certificates: a probe asks whether a server is there, not whose.
"""

import asyncio
import re
import socket
import ssl
import struct
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

import grpc
from grpc_health.v1 import health_pb2

from agent.model.pods.http_question import HttpAnswer, HttpQuestion, has_control

MOST_BODY_BYTES = 10 << 10
MOST_HEAD_BYTES = 64 << 10
MOST_REDIRECTS = 10
# Besides informational ones; whatever their heads say, nothing follows.
WITHOUT_BODY = frozenset({204, 304})
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
LINE_END = b"\r\n"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
RESET = struct.pack("ii", 1, 0)
DEFAULT_PORTS = {"http": 80, "https": 443}
HEALTH_METHOD = "/grpc.health.v1.Health/Check"


class NetworkProbeClient:
    """Asks. Cancelling gives a question up and closes its socket."""

    def __init__(self, *, resets: bool = True) -> None:
        self.resets = resets
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    async def http_get(self, question: HttpQuestion) -> HttpAnswer:
        """One GET, and those it is sent on to on the same host. Raises OSError or ValueError."""
        asked = question
        for _ in range(MOST_REDIRECTS + 1):
            status, head, body = await self._get(asked)
            target = head.get("location")
            if status not in REDIRECTS or target is None:
                return HttpAnswer(status=status, body=body)
            onward = _redirected(asked, target)
            if onward is None:
                return HttpAnswer(status=status, body=body, is_redirect_elsewhere=True)
            asked = onward
        raise ValueError(f"stopped after {MOST_REDIRECTS} redirects")

    async def _get(self, question: HttpQuestion) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self._open(question)
        try:
            writer.write(_request(question))
            await writer.drain()
            status, head = await _read_head(reader)
            body = await _read_body(reader, status, head)
            return status, head, body
        finally:
            self._close(writer)

    async def _open(self, question: HttpQuestion) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = self._tls if question.is_tls else None
        try:
            return await asyncio.open_connection(
                question.host, question.port, ssl=context, server_hostname="" if context else None
            )
        except ssl.SSLError as error:
            if "WRONG_VERSION_NUMBER" in str(error) or "HTTP_REQUEST" in str(error):
                raise ValueError("http: server gave HTTP response to HTTPS client") from error
            raise

    async def tcp_connect(self, host: str, port: int) -> None:
        """Connect and go away at once. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
            if self.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        finally:
            connection.close()

    async def grpc_check(self, host: str, port: int, service: str, timeout_s: float) -> str:
        """Empty if it serves, else what is wrong."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await _connected(channel)
            except TimeoutError:
                text = "context deadline exceeded"
                return f'timeout: failed to connect service "{address}" within {timeout_s:g}s: {text}'
            except ConnectionError as error:
                return f'timeout: failed to connect service "{address}" within {timeout_s:g}s: {error}'
            call = channel.unary_unary(
                HEALTH_METHOD,
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            try:
                request = health_pb2.HealthCheckRequest(service=service)
                answer = await call(request, timeout=max(deadline_s - loop.time(), 0.001))
            except grpc.aio.AioRpcError as error:
                return _rpc_text(error, timeout_s)
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return ""
        known = health_pb2.HealthCheckResponse.ServingStatus.items()
        name = next((name for name, number in known if number == answer.status), str(answer.status))
        return f'service unhealthy (responded with "{name}")'

    def _close(self, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        if self.resets and connection is not None:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()


async def _connected(channel: grpc.aio.Channel) -> None:
    """Ready, or refused: a refusal is told at once, not at the deadline."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError("connection refused")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _rpc_text(error: grpc.aio.AioRpcError, timeout_s: float) -> str:
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            text = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
            return f"error: {text}: {error.details()}"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"timeout: health rpc did not complete within {timeout_s:g}s"
    return f"error: health rpc probe failed: {error.details()}"


def _request(question: HttpQuestion) -> bytes:
    host = f"[{question.host}]" if ":" in question.host else question.host
    given = {name.lower() for name, _ in question.headers}
    # Before they are joined: with a line of its own a part would be another request.
    for part in (question.path, host, *(text for header in question.headers for text in header)):
        if has_control(part):
            raise ValueError(f"the control character in {part[:40]!r} would make another request; nothing is asked")
    path = question.path.replace(" ", "%20")
    lines = [f"GET {path if path.startswith('/') else '/' + path} HTTP/1.1"]
    if "host" not in given:
        lines.append(f"Host: {host}:{question.port}")
    lines += [f"{name}: {value}" for name, value in question.headers]
    lines.append("Connection: close")
    text = "\r\n".join(lines) + "\r\n\r\n"
    return text.encode("utf-8", "surrogateescape")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and fields; what comes before the final answer (100 Continue) is skipped."""
    while True:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionResetError("EOF") from error
            raise ValueError("malformed HTTP response") from error
        except asyncio.LimitOverrunError as error:
            raise ValueError(f"the head of the answer has more than {MOST_HEAD_BYTES} bytes") from error
        first, *rest = raw.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if not first.startswith("HTTP/") or len(words) < 2 or not words[1].isdecimal():  # version, status
            raise ValueError(f"malformed HTTP response {first[:40]!r}")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest) if name
        }
        status = int(words[1])
        if status >= 200 or status == 101:  # informational answers are not the answer
            return status, fields


async def _read_body(reader: asyncio.StreamReader, status: int, head: dict[str, str]) -> bytes:
    """As much as is of interest; a server that keeps the connection open says how long its answer is."""
    if status < 200 or status in WITHOUT_BODY:
        return b""
    if head.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = head.get("content-length", "")
    left = min(int(length), MOST_BODY_BYTES) if length.isdecimal() else MOST_BODY_BYTES
    parts: list[bytes] = []
    while left > 0:
        part = await reader.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, each after its size in hexadecimal digits; size 0 is its end, and what follows is not read."""
    body = bytearray()
    while len(body) < MOST_BODY_BYTES:
        line = await reader.readline()
        digits = line.partition(b";")[0].strip()
        if not CHUNK_SIZE.fullmatch(digits):
            raise ValueError(f"malformed chunk size {line[:40]!r}")
        size = int(digits, 16)
        if size == 0:
            break
        try:
            body += await reader.readexactly(min(size, MOST_BODY_BYTES - len(body)))
            if len(body) < MOST_BODY_BYTES:
                await reader.readexactly(len(LINE_END))
        except asyncio.IncompleteReadError as error:
            raise ValueError(f"the answer ended in the middle of a chunk of {size} bytes") from error
    return bytes(body)


def _redirected(question: HttpQuestion, location: str) -> HttpQuestion | None:
    """The next question if it goes to the same host, else None."""
    scheme = "https" if question.is_tls else "http"
    host = f"[{question.host}]" if ":" in question.host else question.host
    target = urlsplit(urljoin(f"{scheme}://{host}:{question.port}{question.path}", location))
    if target.hostname != question.host.lower() or target.scheme not in DEFAULT_PORTS:
        return None
    path = target.path or "/"
    return HttpQuestion(
        host=question.host,
        port=target.port or DEFAULT_PORTS[target.scheme],
        path=f"{path}?{target.query}" if target.query else path,
        is_tls=target.scheme == "https",
        headers=question.headers,
    )
