# SPDX-License-Identifier: Apache-2.0
"""A registry for tests: manifests, a token service, and faults on demand, on loopback.

Owns: the socket, what is stored, which login it wants and how it asks, and what arrived.
"""

import asyncio
import base64
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

__all__ = ["INDEX_TYPE", "MANIFEST_TYPE", "RegistryServer", "Seen", "manifest_of", "serving"]

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
TOKEN = "granted-token-4711"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    form: dict[str, str]


def manifest_of(config_bytes: int, *layer_bytes: int) -> dict[str, Any]:
    """A manifest whose blobs nobody needs."""

    def blob(kind: str, size: int) -> dict[str, Any]:
        return {
            "mediaType": kind,
            "digest": f"sha256:{hashlib.sha256(f'{kind}{size}'.encode()).hexdigest()}",
            "size": size,
        }

    layers = [blob("application/vnd.oci.image.layer.v1.tar+gzip", size) for size in layer_bytes]
    config = blob("application/vnd.oci.image.config.v1+json", config_bytes)
    return {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}


@dataclass
class RegistryServer:
    """One registry. `login` = the pair it wants; `asks` = none, basic or bearer."""

    address: str = ""
    manifests: dict[str, bytes] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    refresh_token: str = ""
    asks: str = "none"
    realm: str = ""
    fault: Fault | None = None
    seen: list[Seen] = field(default_factory=list)

    def put(self, path: str, tag: str, document: object) -> str:
        """Store a document under a tag and its digest; returns the digest."""
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        for name in (tag, digest):
            self.manifests[f"/v2/{path}/manifests/{name}"] = content
        return digest

    def put_index(self, path: str, tag: str, entries: dict[str, dict[str, Any]]) -> str:
        """An index of manifests by `os/architecture[/variant]`."""
        listed = []
        for name, document in entries.items():
            system, architecture, *variant = name.split("/")
            platform = {"os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
            digest = self.put(path, f"{tag}-{name.replace('/', '-')}", document)
            listed.append({"mediaType": MANIFEST_TYPE, "digest": digest, "size": 7, "platform": platform})
        return self.put(path, tag, {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": listed})

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.seen]

    def with_header(self, name: str) -> list[Seen]:
        return [one for one in self.seen if name in one.headers]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        query = tuple(request.query.items())
        self.seen.append(Seen(request.method, request.path, query, dict(request.headers), form))
        if request.path == "/token":
            return self._token(request, form)
        if self.fault is not None:
            return await self.fault(request)
        if not self._is_let_in(request):
            return web.Response(status=401, headers={"WWW-Authenticate": self._challenge(request)})
        content = self.manifests.get(request.path)
        if content is None:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        return web.Response(body=content, content_type=MANIFEST_TYPE)

    def _challenge(self, request: web.Request) -> str:
        if self.asks == "basic":
            return 'Basic realm="test"'
        repository = request.path.removeprefix("/v2/").partition("/manifests/")[0]
        realm = self.realm or f"http://{self.address}/token"
        return f'Bearer realm="{realm}",service="registry.test",scope="repository:{repository}:pull"'

    def _is_let_in(self, request: web.Request) -> bool:
        presented = request.headers.get("Authorization", "")
        match self.asks:
            case "basic":
                return presented == self._basic()
            case "bearer":
                return presented == f"Bearer {TOKEN}"
        return True

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(":".join(self.login or ()).encode()).decode()

    def _token(self, request: web.Request, form: dict[str, str]) -> web.StreamResponse:
        if request.method == "POST":
            granted = form.get("refresh_token") == self.refresh_token != ""
            name = "access_token"
        else:
            granted = self.login is None or request.headers.get("Authorization") == self._basic()
            name = "token"
        return web.json_response({name: TOKEN}) if granted else web.Response(status=401)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[RegistryServer]:
    """A registry while the block runs."""
    registry = RegistryServer()
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", registry.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        registry.address = f"{host}:{port}"
        yield registry
    finally:
        await runner.cleanup()
        await asyncio.sleep(0)
