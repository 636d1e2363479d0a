# SPDX-License-Identifier: Apache-2.0
"""FX-2: a manifest that is larger than a message may be comes in parts."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from agent.api.access import AccessRule
from agent.api.call_quota import BOUNDS
from agent.api.errors import ApiError
from agent.api.peer import REQUESTS_OF_USER, Peer
from agent.api.server import ApiServer
from agent.api.service import MethodTable
from agent.api.services.objects import ObjectService
from agent.api.socket_path import listen_at
from agent.cli.objects.manifest_files import PART_BYTES
from agent.config.strict_yaml import MAX_BYTES
from agent.model.component import Board, State
from agent.model.nodes.manifest_report import AppliedObject
from agent.wire.kepd.v1 import access_pb2, object_pb2
from tests.api.objects import OBJECTS

APPLY = "/kepd.v1.ObjectService/Apply"


class Applied:
    """What was asked of manifests."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bool]] = []

    async def apply(self, content: bytes, *, dry_run: bool, **_: object) -> list[AppliedObject]:
        self.asked.append((content, dry_run))
        return [AppliedObject(kind="Pod", namespace="default", name="web", result="created", path="web.yaml")]

    @property
    def service(self) -> ObjectService:
        return ObjectService(cast("Any", self), {})


async def parts_of(content: bytes, size: int = PART_BYTES) -> AsyncIterator[object_pb2.ApplyRequest]:
    for at in range(0, len(content) or 1, size):
        yield object_pb2.ApplyRequest(content=content[at : at + size], dry_run=at == 0)


async def test_the_parts_are_put_together_up_to_what_a_file_may_have() -> None:
    applied = Applied()
    largest = os.urandom(1 << 20) * (MAX_BYTES >> 20)
    answer = await applied.service.apply(parts_of(largest))
    with pytest.raises(ApiError) as refused:
        await applied.service.apply(parts_of(largest + b"x"))

    assert [(one.name, one.path) for one in answer.objects] == [("web", "web.yaml")]
    assert applied.asked == [(largest, True)]
    assert (refused.value.code, refused.value.reason) == (3, "BAD_MANIFEST")


def test_a_manifest_has_room_in_its_senders_share_and_a_part_in_the_least_request() -> None:
    assert MAX_BYTES < REQUESTS_OF_USER
    assert min(one.request_bytes for one in BOUNDS.values()) > PART_BYTES
    assert BOUNDS[access_pb2.LEVEL_OPERATE].request_bytes < MAX_BYTES


async def test_large_manifests_come_through_the_socket(short_path: Path) -> None:
    applied, board = Applied(), Board(lambda: 0.0)
    path = short_path / "kepd.sock"
    listener = listen_at(path, 0o666)
    rule = AccessRule(None, None, own_uid=os.geteuid())
    server = ApiServer({OBJECTS: applied.service}, listener, short_path / "private", lambda: rule, lambda *_: None)
    content = os.urandom(5 << 20)
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with listener:
        task = asyncio.create_task(server.run(board.add("api", State.STARTING)))
        while board.line("api").state is not State.READY:
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            call = channel.stream_unary(APPLY, request_serializer=object_pb2.ApplyRequest.SerializeToString)
            await call(parts_of(content), timeout=20)
            old = channel.unary_unary(APPLY, request_serializer=object_pb2.ApplyRequest.SerializeToString)
            await old(object_pb2.ApplyRequest(content=b"small"), timeout=20)
        task.cancel()
        await asyncio.wait([task])

    assert applied.asked == [(content, True), (b"small", False)], "also from a client that sends one message"


class Refused(Exception):
    """gRPC ends a call so."""


class Context:
    """A call of somebody who may read."""

    def __init__(self) -> None:
        self.said: list[grpc.StatusCode] = []

    def peer(self) -> str:
        return "reader"

    def set_trailing_metadata(self, metadata: object) -> None:
        """Not looked at."""

    async def abort(self, code: grpc.StatusCode, _details: str) -> None:
        self.said.append(code)
        raise Refused


async def test_no_part_is_read_of_who_may_not() -> None:
    applied, read = Applied(), []
    table = MethodTable(
        lambda: AccessRule(4711, None, own_uid=-1), lambda: {"reader": Peer(1, 1000, 4711)}, lambda *_: None
    )
    table.add(OBJECTS, applied.service)

    async def parts() -> AsyncIterator[bytes]:
        read.append(None)
        yield b""

    context = Context()
    with pytest.raises(Refused):
        await table._handlers[APPLY].stream_unary(parts(), context)

    assert context.said == [grpc.StatusCode.PERMISSION_DENIED]
    assert (read, applied.asked) == ([], [])
