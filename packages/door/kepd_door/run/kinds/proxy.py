# SPDX-License-Identifier: Apache-2.0
"""Requests that go on to a pod, by its name or by that of a Service: to addresses that the node knows of its own pods
and endpoints, and to no other. Redirects are the client's to follow."""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from agent.kinds.parts import items, part
from kepd_door.run.store import KindStore
from kepd_door.shape.statuses import Failure
from kepd_door.shape.targets import Target

Object = dict[str, Any]
StoreOf = Callable[[str], KindStore | None]
SCHEMES = ("http", "https")
CONNECT_S, SILENT_S = 5.0, 60.0
CHUNK_BYTES = 64 << 10
BEHIND = re.compile(r"^/api/v1/namespaces/[^/]+/[^/]+/[^/]+/proxy")
# Between two neighbours only, or the door's own.
OURS = frozenset({
    "accept-encoding", "authorization", "connection", "content-length", "cookie", "host", "keep-alive",
    "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


async def pass_on(request: web.BaseRequest, target: Target, store_of: StoreOf) -> web.StreamResponse:
    """To `[SCHEME:]NAME[:PORT]`, with the rest of the path."""
    scheme, name, port = _parts(target)
    place = Target(target.resource, target.namespace, name)
    found = _of_pod if target.resource.name == "pods" else _of_service
    host, number = await found(place, port, store_of)
    rest = BEHIND.sub("", request.raw_path, count=1)
    if not rest.startswith("/") and request.method in ("GET", "HEAD"):
        # What is relative in a page is so to its own folder.
        head, mark, query = request.raw_path.partition("?")
        return web.Response(status=301, headers={"Location": f"{head}/{mark}{query}"})
    path = rest if rest.startswith("/") else f"/{rest}"
    shown = f"[{host}]" if ":" in host else host
    url = URL(f"{scheme}://{shown}:{number}{path}", encoded=True)
    headers = [(key, value) for key, value in request.headers.items() if key.lower() not in OURS]
    body = await request.read()
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENT_S)
    try:
        jar = aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False, cookie_jar=jar) as session,
            session.request(
                request.method, url, headers=headers, data=body or None, ssl=False, allow_redirects=False
            ) as came,
        ):
            return await _answered(request, came)
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        text = f"error trying to reach service: {str(error)[:200] or 'it does not answer'}"
        raise Failure(503, text) from error
    except aiohttp.ClientError as error:
        raise Failure(502, f"what {host} answers is no HTTP: {str(error)[:200]}") from error


def _parts(target: Target) -> tuple[str, str, str]:
    """Scheme, name and port of `[SCHEME:]NAME[:PORT]`; a port that is not named is empty."""
    words = target.name.split(":")
    scheme, name, port = ("", *words, "")[:3] if len(words) < 3 else words[:3]
    if len(words) > 3 or scheme not in ("", *SCHEMES):
        raise Failure(400, f'invalid {target.resource.singular} request "{target.name[:100]}"')
    return scheme or "http", name, port


async def _answered(request: web.BaseRequest, came: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = [(key, value) for key, value in came.headers.items() if key.lower() not in OURS]
    answer = web.StreamResponse(status=came.status)
    for key, value in headers:
        answer.headers.add(key, value)
    await answer.prepare(request)
    if request.method != "HEAD":
        async for chunk in came.content.iter_chunked(CHUNK_BYTES):
            await answer.write(chunk)
    return answer


async def _of_pod(target: Target, port: str, store_of: StoreOf) -> tuple[str, int]:
    pod = await _found(target, store_of)
    ports = [one for each in items(pod, "spec", "containers") for one in items(each, "ports")]
    host = part(pod, "status").get("podIP")
    if not host:
        raise Failure(503, f'pod "{target.name}" has no address yet')
    if not port:
        return host, int(ports[0]["containerPort"]) if ports else 80
    named = next((int(one["containerPort"]) for one in ports if one.get("name") == port), None)
    return host, named if named is not None else _number(port, target)


async def _of_service(target: Target, port: str, store_of: StoreOf) -> tuple[str, int]:
    """Any endpoint that is ready."""
    service = await _found(target, store_of)
    ports = items(service, "spec", "ports")
    wanted = [one for one in ports if port in (one.get("name"), str(one.get("port")))]
    if not port and len(ports) == 1:
        wanted = ports
    if not wanted:
        raise Failure(503, f'service "{target.name}" has no port {port!r}' if port else "the request names no port")
    slices = store_of("endpointslices")
    entries = await slices.entries() if slices is not None else []
    found = list(_endpoints([one.made for one in entries if one.key[0] == target.namespace], target.name, wanted[0]))
    if not found:
        raise Failure(503, f'no endpoints available for service "{target.name}"')
    return random.choice(found)  # noqa: S311 - any will do


def _endpoints(slices: list[Object], name: str, wanted: Object) -> Iterator[tuple[str, int]]:
    for made in slices:
        if (made["metadata"].get("labels") or {}).get("kubernetes.io/service-name") != name:
            continue
        named = [port for port in items(made, "ports") if (port.get("name") or "") == (wanted.get("name") or "")]
        ready = [one for one in items(made, "endpoints") if part(one, "conditions").get("ready") is not False]
        addresses = [str(address) for endpoint in ready for address in endpoint.get("addresses") or ()]
        yield from ((address, int(port["port"])) for port in named if port.get("port") for address in addresses)


async def _found(target: Target, store_of: StoreOf) -> Object:
    store = store_of(target.resource.name)
    if store is not None:
        await store.refresh()
        if (entry := store.find(target.namespace, target.name)) is not None:
            return entry.made
    raise Failure(404, f'{target.resource.name} "{target.name}" not found', name=target.name, kind=target.resource.name)


def _number(port: str, target: Target) -> int:
    if not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise Failure(400, f'{target.resource.singular} "{target.name}" has no port {port[:40]!r}')
    return int(port)
