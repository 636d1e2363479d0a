# SPDX-License-Identifier: Apache-2.0
"""The real server behind its relay, called by real clients."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.api.access import AccessRule
from agent.api.errors import ApiError, FailureReason
from agent.api.peer import Peer
from agent.api.removed import INSTEAD
from agent.api.server import ApiServer
from agent.api.service import STREAMS_OF_USER, MethodTable
from agent.api.services.health import HealthService
from agent.api.socket_path import listen_at
from agent.kinds.registry import BY_WORD
from agent.model.component import Board, State
from agent.model.feed import MOST_BUFFERED, Feed
from agent.model.pods.state import PodState
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from agent.pods.attach.pod_service import PodService
from agent.wire.kepd.v1 import list_pb2, node_pb2, object_pb2, pod_pb2
from tests.api.objects import OBJECTS, with_objects

ROOT_ONLY = AccessRule(None, None, own_uid=os.geteuid())


class Pods:
    """A plane with nothing but a feed."""

    def __init__(self) -> None:
        self.pods: Feed[PodState] = Feed()

    async def looked(self) -> None:
        """It knows all that there is."""


class Node:
    """A node service that can be told to fail or wait."""

    def __init__(self) -> None:
        self.behave: Callable[[], Any] = lambda: None

    async def get_node(self, _request: Message) -> node_pb2.GetNodeResponse:
        outcome = self.behave()
        if asyncio.iscoroutine(outcome):
            await outcome
        return node_pb2.GetNodeResponse(node=node_pb2.Node(name="n"))

    def __getattr__(self, name: str) -> Any:
        async def served(*_: object) -> None:
            raise ApiError(12, FailureReason.INTERNAL, "not in this test")

        return served


class Running:
    """What a test gets."""

    def __init__(self, path: Path, pods: Pods, node: Node, board: Board, server: ApiServer, task: Any) -> None:
        self.path, self.pods, self.node, self.board, self.server, self.task = path, pods, node, board, server, task
        self.observed: list[tuple[str, str]] = []

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self.path}", options=options) as channel:
            yield channel

    async def call(self, method: str, request: Message, answer: Any) -> Any:
        async with self.channel() as channel:
            return await channel.unary_unary(
                f"/{method}",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request, timeout=10)


@asynccontextmanager
async def closing_listener(listener: socket.socket) -> AsyncIterator[None]:
    try:
        yield
    finally:
        listener.close()


@asynccontextmanager
async def serving(short_path: Path, rule: AccessRule = ROOT_ONLY) -> AsyncIterator[Running]:
    pods, node, board = Pods(), Node(), Board(lambda: 0.0)
    board.add("pods", State.STARTING, is_plane=True)
    path = short_path / "kepd.sock"
    listener = listen_at(path, 0o666)
    services = {
        node_pb2.DESCRIPTOR.services_by_name["NodeService"]: node,
        pod_pb2.DESCRIPTOR.services_by_name["PodService"]: PodService(pods, None),
        health_pb2.DESCRIPTOR.services_by_name["Health"]: HealthService(board),
    }
    observed: list[tuple[str, str]] = []
    services = with_objects(services)
    server = ApiServer(services, listener, short_path / "private", lambda: rule, lambda *seen: observed.append(seen))
    async with closing_listener(listener), asyncio.TaskGroup() as group:
        task = group.create_task(server.run(board.add("api", State.STARTING)))
        while board.line("api").state is not State.READY:
            await asyncio.sleep(0.01)
        running = Running(path, pods, node, board, server, task)
        running.observed = observed
        try:
            yield running
        finally:
            task.cancel()


PODS = object_pb2.WatchRequest(kind="pods").SerializeToString()


def name_in(change: object_pb2.WatchResponse) -> str:
    return json.loads(change.object)["metadata"]["name"] if change.object else ""


def pod(name: str) -> PodState:
    return PodState(namespace="default", name=name, uid=name, phase="Running")


async def test_a_call_knows_who_made_it(short_path: Path) -> None:
    """API-04."""
    async with serving(short_path) as api:
        answer = await api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
        with capture_logs() as logged, pytest.raises(grpc.aio.AioRpcError):
            await api.call("kepd.v1.NodeService/SetConfig", node_pb2.SetConfigRequest(), node_pb2.SetConfigResponse)

        assert answer.node.name == "n"
        assert [(one["pid"], one["uid"]) for one in logged] == [(os.getpid(), os.geteuid())]
        assert api.observed[0] == ("/kepd.v1.NodeService/GetNode", "OK")


CLIENT = """
import os, sys, grpc
options = [('grpc.default_authority', 'localhost')]
channel = grpc.insecure_channel('unix:' + sys.argv[1], options=options)
os.setgroups([int(g) for g in sys.argv[2].split(',') if g]); os.setgid(65534); os.setuid(65534)
def call(name):
    try:
        channel.unary_unary('/kepd.v1.NodeService/' + name)(b'', timeout=5); return 'OK'
    except grpc.RpcError as error:
        return error.code().name
print(call('GetNode'), call('SetVerbosity'), call('SetConfig'))
"""


@pytest.mark.node
@pytest.mark.parametrize(
    ("groups", "outcome"),
    [
        ("", "PERMISSION_DENIED PERMISSION_DENIED PERMISSION_DENIED"),
        ("4711", "OK PERMISSION_DENIED PERMISSION_DENIED"),
        ("4712", "OK UNIMPLEMENTED PERMISSION_DENIED"),
    ],
)
async def test_another_user_may_what_its_groups_may(short_path: Path, groups: str, outcome: str) -> None:
    """API-05, with the kernel's word for who it is."""
    for folder in (short_path, *short_path.parents):
        if folder.stat().st_uid == 0 and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o055)
    async with serving(short_path, AccessRule(4711, 4712, "kepd")) as api:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", CLIENT, str(api.path), groups],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

        assert done.stdout.strip() == outcome, done.stderr


FLOOD = """
import os, socket, struct, sys, time
os.setgroups([4711]); os.setgid(65534); os.setuid(65534)
def frame(kind, flags, stream, body=b''):
    return struct.pack('>I', len(body))[1:] + bytes((kind, flags)) + struct.pack('>I', stream) + body
def field(name, value):
    return b'\\0' + bytes([len(name)]) + name + bytes([len(value)]) + value
names = [(b':method', b'POST'), (b':scheme', b'http'), (b':path', b'/kepd.v1.NodeService/GetNode'),
         (b':authority', b'localhost'), (b'content-type', b'application/grpc'), (b'te', b'trailers')]
block = b''.join(field(*one) for one in names)
held = []
for _ in range(16):
    link = socket.socket(socket.AF_UNIX); link.connect(sys.argv[1]); link.settimeout(0.3); held.append(link)
    streams = range(1, 81, 2)
    try:
        link.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0))
        for stream in streams:
            link.sendall(frame(1, 4, stream, block) + frame(0, 0, stream, b'\\0' + struct.pack('>I', (16 << 20) - 1)))
        for _ in range(200):
            for stream in streams:
                link.sendall(frame(0, 0, stream, b'x' * 16000))
    except OSError:
        pass
print('flooded', flush=True)
sys.stdin.read()
"""


@pytest.mark.node
@pytest.mark.timeout(120)
async def test_a_group_reader_cannot_fill_the_memory_with_unfinished_calls(short_path: Path) -> None:
    """FX-2: 16 connections with 40 unfinished calls each, every one announced with 16 MiB."""
    for folder in (short_path, *short_path.parents):
        if folder.stat().st_uid == 0 and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o055)
    async with serving(short_path, AccessRule(4711, 4712, "kepd")) as api:
        before = resident_mib()
        flood = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOD, str(api.path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            line = await flood.stdout.readline()
            grown = resident_mib() - before
            answer = await api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
        finally:
            flood.kill()
            await flood.wait()

        assert line == b"flooded\n"
        assert grown < 64
        assert answer.node.name == "n"


def resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (Peer(1, 1000, 1000), "read"),
        (Peer(1, 1000, 4711), "read"),
        (Peer(1, 1000, 1000, frozenset({4712})), "operate"),
        (Peer(1, 0, 0), "admin"),
    ],
)
async def test_what_a_call_may_cost_depends_on_who_makes_it(short_path: Path, peer: Peer, name: str) -> None:
    """FX-2: bounds come before rights, for a request is buffered before anybody can be asked for his."""
    async with serving(short_path, AccessRule(4711, 4712, "kepd")) as api:
        upstream = Path(await api.server._upstream_of(peer)).name

    assert upstream.startswith(f"{name}-")


async def test_errors_carry_reason_and_violations(short_path: Path) -> None:
    """API-03."""
    async with serving(short_path) as api:
        request = object_pb2.TableRequest(kind="pods", options=list_pb2.ListOptions(filter="nme=x"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.call("kepd.v1.ObjectService/Table", request, object_pb2.TableResponse)
        details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
        status = status_pb2.Status.FromString(details)
        info, wrong = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()

        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert status.details[0].Unpack(info)
        assert status.details[1].Unpack(wrong)
        assert (info.reason, wrong.field_violations[0].field) == ("BAD_FILTER", "filter")


async def test_a_bug_shows_nothing_of_its_insides(short_path: Path) -> None:
    async with serving(short_path) as api:

        def bug() -> None:
            raise ValueError("secret 123")

        api.node.behave = bug
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)

        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in refused.value.details()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Unavailable("ListImages", "connection refused"), ("UNAVAILABLE", "RUNTIME_UNAVAILABLE")),
        (DeadlineExceeded("ListImages", ""), ("UNAVAILABLE", "RUNTIME_UNAVAILABLE")),
        (RuntimeCallFailed("ListImages", "server is not initialized yet"), ("INTERNAL", "RUNTIME_FAILED")),
    ],
)
async def test_a_runtime_that_fails_is_told_as_such(
    short_path: Path, error: Exception, answer: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A caller may come again; nothing of kepd's is broken, so no traceback says so."""
    async with serving(short_path) as api:

        def call_fails() -> None:
            raise ExceptionGroup("together", [error])

        api.node.behave = call_fails
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)

        details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
        info = error_details_pb2.ErrorInfo()
        assert status_pb2.Status.FromString(details).details[0].Unpack(info)
        assert (refused.value.code().name, info.reason) == answer
        assert str(error) in refused.value.details()
        assert "Traceback" not in "".join(capsys.readouterr())


async def test_a_watch_begins_with_everything_and_goes_on(short_path: Path) -> None:
    """API-02."""
    async with serving(short_path) as api, api.channel() as channel:
        api.pods.pods.put("a", pod("a"))
        stream = channel.unary_stream(
            "/kepd.v1.ObjectService/Watch",
            request_serializer=object_pb2.WatchRequest.SerializeToString,
            response_deserializer=object_pb2.WatchResponse.FromString,
        )(object_pb2.WatchRequest(kind="pods", namespace="default"))
        seen = [await stream.read(), await stream.read()]
        api.pods.pods.remove("a")
        seen.append(await stream.read())
        stream.cancel()

        assert [(change.type, name_in(change)) for change in seen] == [
            (list_pb2.CHANGE_TYPE_ADDED, "a"),
            (list_pb2.CHANGE_TYPE_BOOKMARK, ""),
            (list_pb2.CHANGE_TYPE_DELETED, "a"),
        ]


async def test_a_watcher_that_does_not_read_is_told_to_come_again(short_path: Path) -> None:
    """API-02."""
    async with serving(short_path) as api, api.channel() as channel:
        stream = channel.unary_stream("/kepd.v1.ObjectService/Watch")(PODS)
        await stream.read()
        big = "x" * 60_000
        for number in range(MOST_BUFFERED * 3):
            api.pods.pods.put("a", PodState(namespace="d", name=big, uid=str(number), phase="Running"))
            if number % 500 == 0:
                await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            while True:
                if await stream.read() is grpc.aio.EOF:
                    break
        assert cut.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_that_is_just_sending_when_kepd_ends_is_told_so(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SYS-08: cancelled within its write, gRPC ends the stream without a word, and the end waits for its reader."""
    loop = asyncio.get_running_loop()
    async with serving(short_path) as api, api.channel() as channel:

        def end() -> None:
            api.server._servers.end_streams()
            api.task.cancel()

        def status(_self: HealthService, _service: str) -> int:
            loop.call_soon(end)
            return 1

        monkeypatch.setattr(HealthService, "_status", status)
        stream = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            async with asyncio.timeout(30):
                while await stream.read() is not grpc.aio.EOF:
                    pass
        assert cut.value.details() == "kepd is ending"


async def test_one_user_cannot_take_all_connections(short_path: Path) -> None:
    from agent.api.peer import MAX_CONNECTIONS_PER_USER, Peer, PeerRelay

    relay = PeerRelay(socket.socket(), lambda _peer: "x")
    relay._listener.close()
    relay.peers.update({str(n): Peer(n, 1000, 1000) for n in range(MAX_CONNECTIONS_PER_USER)})

    assert relay._refusal(Peer(1, 1000, 1000)) == "kepd: uid 1000 has 16 connections already"
    assert relay._refusal(Peer(1, 1001, 1001)) == ""
    assert relay._refusal(Peer(1, 0, 0)) == ""


async def test_a_time_that_no_clock_has_is_an_argument_that_is_wrong(short_path: Path) -> None:
    """It was INTERNAL, with a traceback in the log."""
    async with serving(short_path) as api, api.channel() as channel:
        stream = channel.unary_stream(
            "/kepd.v1.PodService/StreamLogs", request_serializer=pod_pb2.StreamLogsRequest.SerializeToString
        )
        request = pod_pb2.StreamLogsRequest(namespace="default", name="a", since=Timestamp(seconds=1 << 60))
        with capture_logs() as logged, pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream(request).read()

    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "since" in failed.value.details()
    assert logged == []


async def test_streams_of_a_user_have_a_bound(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.api.call_quota.is_trusted", lambda _uid: False)
    async with serving(short_path) as api, api.channel() as channel:
        watch = channel.unary_stream("/kepd.v1.ObjectService/Watch")
        streams = [watch(PODS) for _ in range(STREAMS_OF_USER)]
        for one in streams:
            await one.read()
        with pytest.raises(grpc.aio.AioRpcError, match=f"has {STREAMS_OF_USER} streams open"):
            await watch(PODS).read()
        streams.pop().cancel()
        answered = b""
        while not answered:
            try:
                answered = await watch(PODS).read()
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0)
        for one in streams:
            one.cancel()


async def test_a_filtered_watch_tells_when_an_object_stops_matching(short_path: Path) -> None:
    async with serving(short_path) as api, api.channel() as channel:
        api.pods.pods.put("a", pod("a"))
        stream = channel.unary_stream(
            "/kepd.v1.ObjectService/Watch",
            request_serializer=object_pb2.WatchRequest.SerializeToString,
            response_deserializer=object_pb2.WatchResponse.FromString,
        )(object_pb2.WatchRequest(kind="pods", filter="status=Running"))
        kinds = [(await stream.read()).type, (await stream.read()).type]
        api.pods.pods.put("a", PodState(namespace="default", name="a", uid="a", phase="Failed"))
        kinds.append((await stream.read()).type)
        api.pods.pods.put("a", pod("a"))
        kinds.append((await stream.read()).type)
        stream.cancel()

        assert kinds == [
            list_pb2.CHANGE_TYPE_ADDED,
            list_pb2.CHANGE_TYPE_BOOKMARK,
            list_pb2.CHANGE_TYPE_DELETED,
            list_pb2.CHANGE_TYPE_ADDED,
        ]


async def test_health_per_part(short_path: Path) -> None:
    """API-01."""

    async def status(name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        return int((await api.call("grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)).status)

    async with serving(short_path) as api:
        assert await status("") == health_pb2.HealthCheckResponse.SERVING
        assert await status("pods") == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await status("nothing")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_in_both_versions(short_path: Path, version: str) -> None:
    """API-01."""
    from grpc_reflection.v1alpha import reflection_pb2

    async with serving(short_path) as api, api.channel() as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
        answer = await call.read()
        await call.done_writing()
        names = [service.name for service in answer.list_services_response.service]

        assert {"kepd.v1.NodeService", "kepd.v1.PodService", "grpc.health.v1.Health"} <= set(names)


async def test_a_call_in_flight_is_finished_before_the_end(short_path: Path) -> None:
    """TERM finishes what has begun."""
    async with serving(short_path) as api:
        api.node.behave = lambda: asyncio.sleep(0.5)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(
                api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
            )
            await asyncio.sleep(0.2)
            api.task.cancel()

        assert call.result().node.name == "n"


async def test_bytes_that_are_no_grpc_harm_nobody_else(short_path: Path) -> None:
    async with serving(short_path) as api:
        for garbage in (b"", b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(api.path))
                client.sendall(garbage)
                await asyncio.sleep(0.01)
        answer = await api.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)

        assert answer.node.name == "n"


class Aborted(Exception):
    """What gRPC's context raises."""


class FakeContext:
    """Keeps how a call ended."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return "me"

    def set_trailing_metadata(self, metadata: object) -> None:
        del metadata

    def add_done_callback(self, callback: object) -> None:
        del callback

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert "\n" not in details
        self.code = code
        raise Aborted


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
async def test_no_bytes_make_a_decoder_fail_otherwise(raw: bytes) -> None:
    """Must hold of the foundation: arbitrary bytes are an answer or INVALID_ARGUMENT, never a traceback."""
    from agent.api.peer import Peer

    table = MethodTable(lambda: AccessRule(None, None), lambda: {"me": Peer(1, 0, 0)}, lambda *_: None)
    table.add(
        OBJECTS, with_objects({pod_pb2.DESCRIPTOR.services_by_name["PodService"]: PodService(Pods(), None)})[OBJECTS]
    )
    handler = table._handlers["/kepd.v1.ObjectService/List"]
    context = FakeContext()
    try:
        await handler.unary_unary(raw, context)
    except Aborted:
        assert context.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("PodService/ListPods", 'ObjectService/List with kind "pods"'),
        ("PodService/WatchPods", 'ObjectService/Watch with kind "pods"'),
        ("KindService/ListRows", "ObjectService/Table"),
    ],
)
async def test_a_call_that_went_names_what_has_its_place(short_path: Path, path: str, instead: str) -> None:
    async with serving(short_path) as api, api.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await channel.unary_unary(f"/kepd.v1.{path}")(b"", timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            await channel.unary_stream(f"/kepd.v1.{path}")(b"", timeout=10).read()

    for refused in (unary.value, stream.value):
        assert refused.code() is grpc.StatusCode.UNIMPLEMENTED
        assert refused.details().endswith(f"its place has kepd.v1.{instead}")


def test_what_has_the_place_of_a_call_is_there() -> None:
    served = {f"{method.containing_service.name}/{method.name}" for method in OBJECTS.methods}

    assert {text.partition(" ")[0] for text in INSTEAD.values()} <= served
    for text in INSTEAD.values():
        kind = text.partition('"')[2].rstrip('"')
        assert not kind or kind in BY_WORD
