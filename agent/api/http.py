# SPDX-License-Identifier: Apache-2.0
"""HTTP for machines: /metrics, /livez, /readyz.

A GET-only server of a few dozen lines: a web framework would cost more memory than the rest of the idle daemon. One
request per connection, small bounds on everything a client sends.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import structlog

from agent.api.http_connections import END, HEAD_BYTES, Connections, Wrap
from agent.model.allowance import CallerMeter, Share
from agent.model.component import Component, Report

log = structlog.get_logger(plane="api")

# Connections that wait to be taken. A flood fills a short line, and the kernel lets those behind it try again in 1 s.
BACKLOG = 4096
PHRASES = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error",
}  # fmt: skip
# For probes of a kubelet, which has no certificate to show, and of load balancers; they cost next to nothing.
FOR_ALL = frozenset({"/livez", "/readyz"})
PROBED = FOR_ALL | {"/healthz"}
# Of one address: other pages take milliseconds each. What goes beyond it waits, but not for ever.
PAGES = "pages"
METERED = {PAGES: Share(20, 10)}
LONGEST_WAIT_S = 5.0


class Page(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


UNKNOWN = Page(403, b"this page is for clients with a certificate of api.httpTLS.clientCAFile\n")
FAILED = Page(500, b"this page failed; the daemon's log has the cause\n")

Query = Mapping[str, Sequence[str]]
Headers = Mapping[str, str]
Handler = Callable[[Query, Headers], Page | Awaitable[Page]]


_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - what the settings may say
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def open_listener(address: str, key: str = "api.httpAddress") -> socket.socket:
    """A listening TCP socket at host:port; an unspecified host is both families. Raises OSError with the address."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if host in _ANYWHERE and (listener := _everywhere(int(port))) is not None:
            return listener
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return listening(family, host, int(port), takes_both=host in _ANYWHERE)
    except OSError as error:
        raise OSError(error.errno, f"{key} {address} cannot be listened on: {error.strerror}") from error


def _everywhere(port: int) -> socket.socket | None:
    try:
        return listening(socket.AF_INET6, "::", port, takes_both=True)
    except OSError as error:
        if error.errno in _NO_IPV6:
            return None
        raise


def listening(family: socket.AddressFamily, host: str, port: int, *, takes_both: bool) -> socket.socket:
    """`takes_both`: an IPv6 socket takes IPv4 too, whatever net.ipv6.bindv6only says."""
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not takes_both)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class HttpServer:
    def __init__(
        self,
        address: str,
        pages: Mapping[str, Handler],
        other: Handler | None = None,
        *,
        key: str = "api.httpAddress",
        tls: Callable[[], Wrap] | None = None,
    ) -> None:
        """`other` answers every path that has no page of its own; `key` names the setting in messages; `tls` reads
        certificates and raises OSError."""
        self._address = address
        self._pages = pages
        self._other = other
        self._key = key
        self._tls = tls
        self._meter = CallerMeter(METERED)

    async def run(self, report: Report) -> None:
        wrap = self._tls() if self._tls is not None else None
        connections = Connections(open_listener(self._address, self._key), self.answer, wrap)
        report.ready(self._address if wrap is None else f"https://{self._address}")
        try:
            await asyncio.Event().wait()
        finally:
            connections.close()

    def answer(self, came: bytes, is_known: bool = True, address: str = "") -> bytes | Coroutine[Any, Any, bytes]:
        """To the head of a question, or to what is none. HEAD tells the length that GET would bring. `is_known`: who
        asks showed a certificate, or none is asked for."""
        page, has_body = self._found(came, is_known, address)
        if isinstance(page, Page):
            return _encoded(page, has_body=has_body)
        return self._later(page, has_body=has_body)

    async def _later(self, page: Awaitable[Page], *, has_body: bool) -> bytes:
        try:
            return _encoded(await page, has_body=has_body)
        except Exception as error:  # as below
            log.error("http_page_failed", error=repr(error), exc_info=error)
            return _encoded(FAILED, has_body=has_body)

    def _found(self, came: bytes, is_known: bool, address: str) -> tuple[Page | Awaitable[Page], bool]:
        """The page, and whether its body is asked for too."""
        head, end, _ = came[: HEAD_BYTES + len(END)].partition(END)
        if not end:
            return Page(400, b"not an HTTP request of at most 8 KiB\n"), True
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        target = rest.partition(" ")[0]
        if method not in ("GET", "HEAD"):
            return Page(405, b"only GET is served here; kepctl does everything else\n"), True
        return self._page(target, lines, is_known, address), method == "GET"

    def _page(self, target: str, lines: Sequence[str], is_known: bool, address: str) -> Page | Awaitable[Page]:
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        try:
            parts = urlsplit(target)
        except ValueError:
            return Page(400, b"not a URL\n")
        if not is_known and parts.path not in FOR_ALL:
            return UNKNOWN
        handler = self._pages.get(parts.path, self._other)
        if handler is None:
            return Page(404, f"pages: {' '.join(self._pages)}\n".encode())
        query = parse_qs(parts.query, keep_blank_values=True)
        if parts.path in self._pages and parts.path not in PROBED:
            wait_s = self._meter.take(address, PAGES, monotonic())
            if wait_s:
                return self._in_turn(min(wait_s, LONGEST_WAIT_S), handler, query, headers)
        try:
            return handler(query, headers)
        except Exception as error:  # one page that fails must not take the others along
            log.error("http_page_failed", path=parts.path, error=repr(error), exc_info=error)
            return FAILED

    async def _in_turn(self, wait_s: float, handler: Handler, query: Query, headers: Headers) -> Page:
        await asyncio.sleep(wait_s)
        page = handler(query, headers)
        return page if isinstance(page, Page) else await page


def _encoded(page: Page, *, has_body: bool) -> bytes:
    phrase = PHRASES.get(page.status, "Service Unavailable")
    head = (
        f"HTTP/1.1 {page.status} {phrase}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in page.headers.items()) + "\r\n"
    return head.encode() + (page.body if has_body else b"")


def health_page(query: Query, checks: Sequence[Component], ok: Callable[[Component], bool]) -> Page:
    """`ok` or 503 with the names of what is not; `?verbose` lists everything, `?exclude=` leaves some out."""
    excluded = set(query.get("exclude", ()))
    counted = [check for check in checks if check.name not in excluded]
    bad = [check for check in counted if not ok(check)]
    lines = [f"[-] {check.name}: {check.message or check.state}" for check in bad]
    if "verbose" in query:
        lines = [f"[{'+' if ok(check) else '-'}] {check.name}: {check.message or check.state}" for check in counted]
    lines.append("not ok" if bad else "ok")
    return Page(503 if bad else 200, ("\n".join(lines) + "\n").encode())
