# SPDX-License-Identifier: Apache-2.0
"""An API server for tests: TLS, list/watch as the recordings of a real one show it, and faults on demand.

Owns: the sockets, who is allowed what, open watches, and the faults a test asks for. Objects live in a FakeObjects.
One second of the protocol lasts `second_s`, so that server-side timeouts cost a test little.
By itself: `python -m tests.drivers.kube.api_server` serves an empty cluster and prints a kubeconfig for it.
"""

import asyncio
import json
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from aiohttp import web

from tests.drivers.kube import api_answers as say
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.drivers.kube.fake_objects import KINDS, FakeObjects, StoredKind, StoreRefusal, event_object, read_selection

__all__ = ["ApiServer", "Seen", "serving"]

Fault = Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    verb: str
    plural: str
    query: dict[str, str]
    headers: dict[str, str]
    user: str


@dataclass(frozen=True)
class Target:
    """What a path names."""

    kind: StoredKind
    namespace: str
    name: str


@dataclass(eq=False)
class Watch:
    """An open watch."""

    kind: StoredKind
    response: web.StreamResponse
    sent: int = 0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, content: bytes) -> None:
        async with self.writing:
            await self.response.write(content)


class ApiServer:
    """One server. Use `serving` or `start` and `stop`."""

    def __init__(self, certificates: Certificates | None, objects: FakeObjects | None = None, second_s: float = 0.02):
        self.certificates = certificates
        self.objects = objects or FakeObjects()
        self.second_s = second_s
        self.tokens = {"good-token": "kepd", "powerless-token": "nobody"}
        self.denied: set[tuple[str, str]] = set()
        self.offers_streaming = True
        self.is_frozen = False
        self.host = "127.0.0.1"
        self.seen: list[Seen] = []
        self.faults: deque[tuple[str, Fault]] = deque()
        self.watches: set[Watch] = set()
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stirred = asyncio.Event()
        self._pages: dict[int, list[dict]] = {}
        self._site: web.TCPSite | None = None
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificates else 'http'}://{host}:{self.port}"

    @property
    def watch_count(self) -> int:
        return len(self.watches)

    async def until(self, holds: Callable[["ApiServer"], bool], deadline_s: float = 5.0) -> None:
        """Until something is true of the requests seen or the watches open."""
        async with asyncio.timeout(deadline_s):
            while not holds(self):
                self._stirred.clear()
                await self._stirred.wait()

    def verbs(self) -> list[str]:
        """The requests so far, such as `watch services`."""
        return [f"{seen.verb} {seen.plural}" for seen in self.seen]

    def call(self, work: Coroutine[object, object, None]) -> None:
        """Such as `refuse()`, from another thread than that of its loop."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0)
        await self._runner.setup()
        await self.accept()

    async def stop(self) -> None:
        self.drop_connections()
        if self._runner:
            await self._runner.cleanup()

    async def accept(self) -> None:
        """Listen; after `refuse` on the same port as before."""
        context: ssl.SSLContext | None = self.certificates.server_context() if self.certificates else None
        self._site = web.TCPSite(self._runner, self.host, self.port, ssl_context=context, reuse_address=True)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Nobody listens any more, and what was open breaks."""
        if self._site:
            await self._site.stop()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Every connection is reset."""
        if self._runner and self._runner.server:
            for connection in self._runner.server.connections:
                if connection.transport:
                    connection.transport.abort()

    def expire_pages(self) -> None:
        """Every page token given out so far is too old."""
        self._pages.clear()

    def fail_next(self, status: int, *, verb: str = "", times: int = 1, retry_after_s: int = 0, text: str = "") -> None:
        """The next requests fail with that status: 429 as priority and fairness writes it, others with a Status."""

        async def fault(request: web.BaseRequest) -> web.Response:
            if text:
                return web.Response(text=text, status=status, content_type="text/html")
            if status == 429:
                return say.too_many_requests(retry_after_s or 1)
            if status == 401:
                return say.refused(request, say.unauthorized())
            details = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
            return say.refused(request, StoreRefusal(status, "InternalError", "injected fault", details))

        self.faults.extend([(verb, fault)] * times)

    def hang_next(self, *, verb: str = "", times: int = 1) -> None:
        """The next requests get no answer at all."""

        async def fault(request: web.BaseRequest) -> web.StreamResponse:
            return await self._never(request)

        self.faults.extend([(verb, fault)] * times)

    def delay_next(self, delay_s: float, *, verb: str = "") -> None:
        """The next request is answered late."""

        async def fault(request: web.BaseRequest) -> None:
            await asyncio.sleep(delay_s)

        self.faults.append((verb, fault))

    def answer_next(self, body: bytes, *, verb: str = "", status: int = 200) -> None:
        """The next request gets exactly this."""

        async def fault(request: web.BaseRequest) -> web.Response:
            return web.Response(body=body, status=status, headers=say.base_headers())

        self.faults.append((verb, fault))

    async def send_raw(self, content: bytes) -> None:
        """Bytes into every open watch, once there is one."""
        await self.until(lambda server: server.watch_count > 0)
        for watch in list(self.watches):
            await watch.write(content)

    async def cut_mid_line(self) -> None:
        """Half an event into every open watch, then the connection breaks."""
        await self.send_raw(b'{"type":"MODIFIED","object":{"kind":"Serv')
        await asyncio.sleep(0.01)
        self.drop_connections()

    async def send_error_event(self, code: int = 410, reason: str = "Expired") -> None:
        """An ERROR event into every open watch."""
        no = StoreRefusal(code, reason, "too old resource version: 1 (231)")
        await self.send_raw(say.compact({"type": "ERROR", "object": no.body}) + b"\n")

    async def send_bookmarks(self) -> None:
        """A bookmark into every open watch, once there is one."""
        await self.until(lambda server: server.watch_count > 0)
        for watch in list(self.watches):
            line = say.compact(say.bookmark(watch.kind, max(watch.sent, self.objects.resource_version)))
            await watch.write(line + b"\n")

    def rotate_token(self, token: str) -> None:
        """Only this token is good from now on."""
        self.tokens = {token: "kepd"}

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            user = self._user(request)
            target = self._target(request)
            verb = _verb(request, target)
            self._note(request, verb, target, user)
            for position, (asked, fault) in enumerate(self.faults):
                if asked in ("", verb):
                    del self.faults[position]
                    answer = await fault(request)
                    if answer is not None:
                        return answer
                    break
            return await self._answer(request, verb, target, user)
        except StoreRefusal as no:
            return say.refused(request, no)

    async def _answer(
        self, request: web.BaseRequest, verb: str, target: Target | None, user: str | None
    ) -> web.StreamResponse:
        if user is None:
            raise say.unauthorized()
        if target is None:
            if request.path == "/version":
                return say.answered(request, say.VERSION)
            raise say.not_served()
        kind, namespace, name = target.kind, target.namespace, target.name
        if user in ("nobody", "system:anonymous") or (verb, kind.plural) in self.denied:
            raise say.forbidden(kind, user, verb, namespace, name)
        match verb:
            case "list":
                return await self._list(request, kind, namespace)
            case "watch":
                return await self._watch(request, kind, namespace)
            case "get":
                stored = self.objects.get(kind.plural, namespace, name)
                return say.answered(request, event_object(kind, stored))
            case "create":
                stored = self.objects.create(kind.plural, json.loads(await request.read()), namespace)
                return say.answered(request, event_object(kind, stored), 201)
            case "update":
                stored = self.objects.put(kind.plural, json.loads(await request.read()))
                return say.answered(request, event_object(kind, stored))
            case "delete":
                self.objects.delete(kind.plural, namespace, name)
                return say.answered(request, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            case "patch":
                change = json.loads(await request.read())
                stored = self.objects.patch(kind.plural, namespace, name, change, request.content_type)
                return say.answered(request, event_object(kind, stored))
        raise StoreRefusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    async def _list(self, request: web.BaseRequest, kind: StoredKind, namespace: str) -> web.Response:
        query = request.query
        selection = _selection(request, kind, namespace)
        limit = int(query.get("limit", "0"))
        start = ""
        if query.get("continue"):
            version, start = say.read_page_token(query["continue"])
            if version < self.objects.oldest or version not in self._pages:
                raise say.page_too_old(query["continue"])
            items = self._pages[version]
        else:
            await self._check_list_version(query)
            version = self.objects.resource_version
            items = self.objects.select(kind.plural, selection)
        rest = [item for item in items if not start or _key(kind, namespace, item) > start]
        page = rest[:limit] if limit else rest
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if len(page) < len(rest):
            self._pages[version] = items
            metadata["continue"] = say.page_token(version, _key(kind, namespace, page[-1]))
            if selection.labels.is_empty and not selection.fields:
                metadata["remainingItemCount"] = len(rest) - len(page)
        shown = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in page]
        kind, *shown = _in_form(request, kind, *shown)
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        return say.answered(request, {**head, "items": shown})

    async def _check_list_version(self, query: dict[str, str]) -> None:
        asked = int(query.get("resourceVersion") or 0)
        if asked > self.objects.resource_version:
            await asyncio.sleep(3 * self.second_s)
            raise say.version_ahead(asked, self.objects.resource_version)
        if query.get("resourceVersionMatch") == "Exact" and asked < self.objects.oldest:
            raise say.list_too_old()

    async def _watch(self, request: web.BaseRequest, kind: StoredKind, namespace: str) -> web.StreamResponse:
        query = request.query
        wants_initial = query.get("sendInitialEvents") == "true"
        if wants_initial and not self.offers_streaming:
            text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise say.option_forbidden("sendInitialEvents", text)
        if "resourceVersionMatch" in query and not wants_initial:
            text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise say.option_forbidden("resourceVersionMatch", text)
        selection = _selection(request, kind, namespace)
        asked = int(query.get("resourceVersion") or 0)
        if asked > self.objects.resource_version:
            return await self._never(request)
        response = web.StreamResponse(headers=say.base_headers())
        response.enable_chunked_encoding()
        await response.prepare(request)
        if 0 < asked < self.objects.oldest:
            await response.write(say.compact(say.watch_too_old(asked, self.objects.oldest)) + b"\n")
            return response
        watch = Watch(kind, response, asked)
        if not asked:
            watch.sent = self.objects.resource_version
            for stored in self.objects.select(kind.plural, selection):
                await watch.write(_event_line(*_in_form(request, kind, stored), "ADDED"))
            if wants_initial and query.get("allowWatchBookmarks") == "true":
                mark = say.bookmark(kind, watch.sent, ends_initial=True)
                await watch.write(say.compact(mark) + b"\n")
        self.watches.add(watch)
        self._stirred.set()
        try:
            with suppress(TimeoutError, ConnectionError):
                timeout_s = int(query.get("timeoutSeconds") or 1800) * self.second_s
                async with asyncio.timeout(timeout_s):
                    await self._send_changes(request, watch, selection)
        finally:
            self.watches.discard(watch)
            self._stirred.set()
        if self.is_frozen:
            return await self._never(request)
        return response

    async def _send_changes(self, request: web.BaseRequest, watch: Watch, selection) -> None:
        while True:
            rings = self.objects.rings
            if not self.is_frozen:
                for entry in list(self.objects.since(watch.kind.plural, watch.sent)):
                    change = entry.seen_by(selection)
                    watch.sent = entry.resource_version
                    if change:
                        await watch.write(_event_line(*_in_form(request, watch.kind, entry.shown(change)), change))
            await self.objects.changed(rings)

    async def _never(self, request: web.BaseRequest) -> web.StreamResponse:
        """No answer; the handler is cancelled when the client gives up."""
        await asyncio.Event().wait()
        return web.Response()

    def _user(self, request: web.BaseRequest) -> str | None:
        """Who asks; None for credentials that are no good."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme:
            return self.tokens.get(token)
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        subject = dict(part[0] for part in peer["subject"]) if peer else {}
        return subject.get("commonName", "system:anonymous")

    def _target(self, request: web.BaseRequest) -> Target | None:
        match [unquote(part) for part in request.path.strip("/").split("/")]:
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                return None
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kind = KINDS.get(rest[0]) if rest else None
        if kind is None or (kind.group, kind.version) != (group, version):
            return None
        return Target(kind, namespace, rest[1] if len(rest) > 1 else "")

    def _note(self, request: web.BaseRequest, verb: str, target: Target | None, user: str | None) -> None:
        plural = target.kind.plural if target else request.path
        self.seen.append(Seen(verb, plural, dict(request.query), dict(request.headers), user or ""))
        self._stirred.set()


def _verb(request: web.BaseRequest, target: Target | None) -> str:
    if request.method == "GET":
        if target and target.name:
            return "get"
        return "watch" if request.query.get("watch") in ("1", "true") else "list"
    return {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())


def _selection(request: web.BaseRequest, kind: StoredKind, namespace: str):
    query = request.query
    return read_selection(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def _key(kind: StoredKind, namespace: str, stored: dict) -> str:
    """What a page token remembers: the key below the prefix that is listed."""
    meta = stored["metadata"]
    return f"/{meta['name']}" if namespace or not kind.has_namespace else f"/{meta['namespace']}/{meta['name']}"


def _in_form(request: web.BaseRequest, kind: StoredKind, *stored: dict) -> tuple:
    """The kind and the objects as they are asked for: whole, or their metadata alone."""
    if "as=PartialObjectMetadata" not in request.headers.get("Accept", ""):
        return kind, *stored
    partial = StoredKind(group="meta.k8s.io", plural=kind.plural, kind="PartialObjectMetadata")
    return partial, *({"metadata": one["metadata"]} for one in stored)


def _event_line(kind: StoredKind, stored: dict, change: str) -> bytes:
    return say.compact({"type": change, "object": event_object(kind, stored)}) + b"\n"


@asynccontextmanager
async def serving(certificates: Certificates | None, objects: FakeObjects | None = None) -> AsyncIterator[ApiServer]:
    """A server for the time of a test."""
    server = ApiServer(certificates, objects)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def _main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        certificates = make_certificates(Path(directory))
        async with serving(certificates) as server:
            cluster = {"server": server.url, "certificate-authority": str(certificates.ca)}
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": "good-token"}}],
            }
            print(json.dumps(config, indent=2), flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main())
