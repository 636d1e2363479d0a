# SPDX-License-Identifier: Apache-2.0
"""Parts of a pod: its logs, and the streams of its containers."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime

from aiohttp import web
from google.protobuf.message import Message

from agent.wire.kepd.v1 import pod_pb2 as pb
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.streams import pass_on
from kepd_door.shape.statuses import Failure

CHUNK_BYTES = 32 << 10
SILENT_S = 0.3
YES = ("1", "true", "True")
BASE64 = "base64.binary.k8s.io"
MESSAGES = ("binary.k8s.io", BASE64)
CLOSE_S = 2.0
TUNNEL = "SPDY/3.1+portforward.k8s.io"


async def log_of(
    request: web.BaseRequest, calls: Calls, caller: Caller, namespace: str, name: str, *, container: str = ""
) -> web.StreamResponse:
    """Each chunk as it comes where it is followed, else as many lines as fit into one."""
    query = request.query
    container = container or query.get("container", "")
    asked = pb.StreamLogsRequest(
        namespace=namespace, name=name, container=container, follow=query.get("follow") in YES,
        previous=query.get("previous") in YES, timestamps=query.get("timestamps") in YES,
    )  # fmt: skip
    if (tail := _number(query, "tailLines")) is not None:
        if tail == 0 and not asked.follow:
            return web.Response(body=b"", content_type="text/plain")
        asked.tail = tail
    if (since_s := _number(query, "sinceSeconds")) is not None:
        asked.since.FromSeconds(int(time.time()) - since_s)
    elif since := query.get("sinceTime"):
        try:
            asked.since.FromDatetime(datetime.fromisoformat(since))
        except ValueError as error:
            raise Failure(400, f"sinceTime is {since[:40]!r}; expected a time such as 2026-01-31T12:00:00Z") from error
    left = _number(query, "limitBytes")
    lines = calls.stream(caller, asked)
    # What refuses comes before the first line, and has to be a Status; of a container that is silent nothing comes.
    begin = asyncio.ensure_future(anext(lines, None))
    await asyncio.wait((begin,), timeout=SILENT_S)
    if begin.done():
        begin.result()
    answer = await _opened(request)
    try:
        first = await begin
    finally:
        begin.cancel()
    held = bytearray(first.line if first is not None else b"")
    while first is not None:
        if asked.follow or len(held) >= CHUNK_BYTES or (left is not None and len(held) >= left):
            await _send(answer, bytes(held[:left]))
            left = left - len(held) if left is not None else None
            held.clear()
            if left is not None and left <= 0:
                break
        if (first := await anext(lines, None)) is not None:
            held += first.line
    if held:
        await _send(answer, bytes(held[:left]))
    if isinstance(answer, web.WebSocketResponse):
        await answer.close()
    return answer


async def _opened(request: web.BaseRequest) -> web.StreamResponse:
    """A client that cannot read an answer while it comes asks for messages instead."""
    answer: web.StreamResponse = web.StreamResponse(headers={"Content-Type": "text/plain"})
    if request.headers.get("Upgrade", "").lower() == "websocket":
        answer = web.WebSocketResponse(protocols=MESSAGES, timeout=CLOSE_S)
    await answer.prepare(request)
    return answer


async def _send(answer: web.StreamResponse, data: bytes) -> None:
    if not isinstance(answer, web.WebSocketResponse):
        await answer.write(data)
    elif answer.ws_protocol == BASE64:
        await answer.send_str(b64encode(data).decode())
    else:
        await answer.send_bytes(data)


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise Failure(400, f"{name} is {text[:20]!r}; expected a number that is not negative")
    return int(text)


async def stream_of(
    request: web.BaseRequest, calls: Calls, caller: Caller, part: str, namespace: str, name: str
) -> web.StreamResponse:
    if "upgrade" not in request.headers.get("Connection", "").lower():
        raise Failure(400, "Upgrade request required")
    if TUNNEL in request.headers.get("Sec-WebSocket-Protocol", ""):
        # Clients then speak SPDY itself, which the runtime knows.
        raise Failure(400, f"{TUNNEL} is not spoken here; SPDY/3.1 is")
    query = request.query
    of = {"namespace": namespace, "name": name}
    asked: Message
    found: pb.GetExecUrlResponse | pb.GetAttachUrlResponse | pb.GetPortForwardUrlResponse
    if part == "exec":
        asked = pb.GetExecUrlRequest(
            **of, container=query.get("container", ""), command=query.getall("command", []),
            stdin=query.get("stdin") in YES, tty=query.get("tty") in YES,
        )  # fmt: skip
        found = await calls.ask(caller, asked, pb.GetExecUrlResponse)
    elif part == "attach":
        asked = pb.GetAttachUrlRequest(**of, container=query.get("container", ""), stdin=query.get("stdin") in YES)
        found = await calls.ask(caller, asked, pb.GetAttachUrlResponse)
    else:
        ports = [int(one) for text in query.getall("ports", []) for one in text.split(",") if one.isdecimal()]
        asked = pb.GetPortForwardUrlRequest(**of, ports=ports)
        found = await calls.ask(caller, asked, pb.GetPortForwardUrlResponse)
    return await pass_on(request, found.url)
