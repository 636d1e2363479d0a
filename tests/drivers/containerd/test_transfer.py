# SPDX-License-Identifier: Apache-2.0
"""The Transfer service as containerd 1.7 and later serve it, on a socket: what it is sent, and whom it gets logins for.

A containerd of the lab may be older. Type names are what containerd registers; with any other it refuses the message.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, empty_pb2

from agent.drivers.containerd.driver import Containerd
from agent.model.images.credential import Credential, SecretText
from agent.model.images.platform import node_platform
from agent.model.runtime.error import NotFound
from agent.wire.containerd import streaming_v1_pb2, transfer_v1_pb2, types_transfer_pb2

LOGIN = Credential(username="paul", password=SecretText("right"))
TOKEN = Credential(username="", identity_token=SecretText("token"))


class Transfers:
    """Asks for credentials of each host in turn, as a chain of mirrors would, then ends as it is told."""

    def __init__(self) -> None:
        self.hosts = ["mirror:5000", "r.io"]
        self.requests: list[tuple[types_transfer_pb2.OCIRegistry, types_transfer_pb2.ImageStore]] = []
        self.answers: list[types_transfer_pb2.AuthResponse] = []
        self.error = ""
        self.streams: dict[str, Any] = {}

    async def stream(self, _request: Any, context: Any) -> None:
        first = await context.read()
        assert first.type_url == "containerd.services.streaming.v1.StreamInit"
        self.streams[streaming_v1_pb2.StreamInit.FromString(first.value).id] = context
        await context.write(any_pb2.Any(type_url="google.protobuf.Empty"))
        while not context.cancelled():
            await asyncio.sleep(0.01)

    async def transfer(self, request: transfer_v1_pb2.TransferRequest, context: Any) -> empty_pb2.Empty:
        assert request.source.type_url == "containerd.types.transfer.OCIRegistry"
        assert request.destination.type_url == "containerd.types.transfer.ImageStore"
        source = types_transfer_pb2.OCIRegistry.FromString(request.source.value)
        self.requests.append((source, types_transfer_pb2.ImageStore.FromString(request.destination.value)))
        if source.resolver.auth_stream:
            stream = self.streams[source.resolver.auth_stream]
            for host in self.hosts:
                asked = types_transfer_pb2.AuthRequest(host=host, reference=source.reference)
                await stream.write(any_pb2.Any(type_url=asked.DESCRIPTOR.full_name, value=asked.SerializeToString()))
                answer = await stream.read()
                assert answer.type_url == "containerd.types.transfer.AuthResponse"
                self.answers.append(types_transfer_pb2.AuthResponse.FromString(answer.value))
        if self.error:
            await context.abort(grpc.StatusCode.NOT_FOUND, self.error)
        return empty_pb2.Empty()


@asynccontextmanager
async def serving(transfers: Transfers, folder: Path) -> AsyncIterator[Containerd]:
    server = grpc.aio.server()
    stream = grpc.stream_stream_rpc_method_handler(
        transfers.stream, any_pb2.Any.FromString, any_pb2.Any.SerializeToString
    )
    transfer = grpc.unary_unary_rpc_method_handler(
        transfers.transfer, transfer_v1_pb2.TransferRequest.FromString, empty_pb2.Empty.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler("containerd.services.streaming.v1.Streaming", {"Stream": stream}),
            grpc.method_handlers_generic_handler("containerd.services.transfer.v1.Transfer", {"Transfer": transfer}),
        ]
    )
    endpoint = f"unix://{folder}/c.sock"
    server.add_insecure_port(endpoint)
    await server.start()
    driver = Containerd(endpoint, "kepd")
    try:
        yield driver
    finally:
        await driver.close()
        await server.stop(0)


async def fetch(driver: Containerd, credential: Credential | None = None, server: str = "") -> None:
    await driver.fetch_content(
        "r.io/a:1", node_platform("aarch64"), hosts_folder="/certs.d", labels={"l": "1"}, credential=credential,
        server=server,
    )  # fmt: skip


async def test_an_image_is_fetched_for_this_machine_by_the_runtimes_hosts_files(short_path: Path) -> None:
    """IMG-F04, R01."""
    transfers = Transfers()
    async with serving(transfers, short_path) as driver:
        await fetch(driver)

    [(source, store)] = transfers.requests
    assert (source.reference, source.resolver.host_dir, source.resolver.auth_stream) == ("r.io/a:1", "/certs.d", "")
    assert (store.name, dict(store.labels), store.manifest_limit) == ("r.io/a:1", {"l": "1"}, 1)
    assert [(one.os, one.architecture, one.variant) for one in store.platforms] == [("linux", "arm64", "")]
    assert list(store.unpacks) == []


@pytest.mark.parametrize(
    ("credential", "server", "expected"),
    [
        (LOGIN, "", [("paul", "right"), ("paul", "right")]),
        (LOGIN, "https://r.io", [("", ""), ("paul", "right")]),
        (TOKEN, "", [("", "token"), ("", "token")]),
    ],
)
async def test_credentials_go_to_the_hosts_they_are_for(
    short_path: Path, credential: Credential, server: str, expected: list[tuple[str, str]]
) -> None:
    """IMG-C09."""
    transfers = Transfers()
    async with serving(transfers, short_path) as driver:
        await fetch(driver, credential, server)

    kinds = {"right": types_transfer_pb2.CREDENTIALS, "token": types_transfer_pb2.REFRESH, "": types_transfer_pb2.NONE}
    assert [(one.username, one.secret) for one in transfers.answers] == expected
    assert all(kinds[one.secret] == one.authType for one in transfers.answers)


@pytest.mark.parametrize("credential", [None, LOGIN])
async def test_what_the_registry_says_reaches_the_caller(short_path: Path, credential: Credential | None) -> None:
    transfers = Transfers()
    transfers.error = "r.io/a:1: not found"
    async with serving(transfers, short_path) as driver:
        with pytest.raises(NotFound, match=r"r\.io/a:1: not found"):
            await fetch(driver, credential)
