# SPDX-License-Identifier: Apache-2.0
"""Event streams outlive the runtime that they came from (PRX-50), and nothing else does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from agent.model.runtime.error import NotImplementedByRuntime, Unavailable
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.run.call import ProxyCall, Verdict
from agent.proxy.run.event_source import EventSource
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.cri import FakeCri
from tests.proxy.run.test_link import until
from tests.proxy.wire import Wire, proxied

EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
ECHO = "/future.v9.Service/Echo"
WAIT = "/future.v9.Service/Wait"
AGAIN = Unavailable("GetContainerEvents", "connection refused", "UNAVAILABLE")


@pytest.fixture
async def wire(short_path: Path) -> AsyncIterator[Wire]:
    """The proxy alone; a test starts and stops the runtime."""
    wire = Wire(short_path)

    def verdict(call: ProxyCall, _message: bytes) -> Verdict:
        call.rewriting = Rewriting()
        return Verdict.PASS

    async def echo(requests, context):
        async for one in requests:
            yield one

    async def events(requests, context):
        for number in range(3):
            yield b"event %d" % number
        await asyncio.Event().wait()

    async def wait(requests, context):
        await asyncio.Event().wait()
        yield b""

    wire.judge.verdict = verdict
    wire.judge.change = lambda _call, message: message.upper()
    wire.runtime.methods = {ECHO: echo, EVENTS: events, WAIT: wait}
    async with proxied(wire):
        yield wire


@asynccontextmanager
async def mortal(wire: Wire) -> AsyncIterator[None]:
    """A runtime that ends as containerd does: its connections break, without a last word."""
    async with wire.serving():
        yield
        for link in wire.server.links:
            if link.back.transport is not None:
                link.back.transport.abort()
        await asyncio.sleep(0.01)


async def first_three(stream: grpc.aio.UnaryStreamCall) -> list[bytes]:
    return [await asyncio.wait_for(stream.read(), 30) for _ in range(3)]


async def test_a_stream_goes_on_behind_a_restart_masked_as_before_and_so_after_the_next(wire: Wire) -> None:
    """PRX-50. The other calls fail as without the proxy, and the next ones find the new runtime."""
    quick = {"initial_reconnect_backoff_ms": 50, "min_reconnect_backoff_ms": 50, "max_reconnect_backoff_ms": 100}
    async with wire.channel(**quick) as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            assert await first_three(stream) == [b"EVENT 0", b"EVENT 1", b"EVENT 2"]
            waiting = asyncio.ensure_future(outcome(through, WAIT))
            await until(lambda: len(wire.runtime.metadata) == 2)
        assert await waiting is grpc.StatusCode.UNAVAILABLE
        assert await outcome(through, ECHO) is grpc.StatusCode.UNAVAILABLE
        for number in range(2):
            async with mortal(wire):
                wire.events.put_nowait(b"missed")
                wire.events.put_nowait(b"new %d" % number)
                assert await asyncio.wait_for(stream.read(), 30) == b"MISSED"
                assert await asyncio.wait_for(stream.read(), 30) == b"NEW %d" % number
                assert await through.unary_unary(ECHO)(b"x", timeout=5, wait_for_ready=True) == b"x"
                wire.events.put_nowait(AGAIN)
        stream.cancel()
    await until(lambda: not wire.server.links)


async def outcome(channel: grpc.aio.Channel, path: str) -> grpc.StatusCode:
    call = channel.unary_unary(path)(b"", timeout=10)
    return await call.code()


async def test_a_stream_that_said_nothing_yet_goes_on_too(wire: Wire) -> None:
    """Its answer has no headers before its first message."""

    async def silent(requests, context):
        await asyncio.Event().wait()
        yield b""

    wire.runtime.methods[EVENTS] = silent
    async with wire.channel() as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            await until(lambda: len(wire.runtime.metadata) == 1)
        wire.events.put_nowait(b"late")
        assert await asyncio.wait_for(stream.read(), 30) == b"LATE"


async def test_a_runtime_without_events_after_the_restart_says_so(wire: Wire) -> None:
    """Such as an older one: the client falls back."""
    async with wire.channel() as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            await first_three(stream)
        wire.events.put_nowait(NotImplementedByRuntime("GetContainerEvents", "not there", "UNIMPLEMENTED"))
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await stream.details() == "not there"
    await until(lambda: not wire.server.links)


async def test_a_defect_in_here_ends_the_stream_alone(wire: Wire) -> None:
    """PRX-53."""
    async with wire.channel() as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            await first_three(stream)
            wire.events.put_nowait(ValueError("a defect"))
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        async with wire.serving():
            assert await through.unary_unary(ECHO)(b"x", timeout=10, wait_for_ready=True) == b"x"


async def test_a_client_that_reads_nothing_makes_the_events_wait(wire: Wire) -> None:
    """The window of the client is what it gets; the rest stays with the runtime."""
    async with wire.channel() as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            await first_three(stream)
        messages = [b"%d" % number * 200_000 for number in range(10)] * 10
        for one in messages:
            wire.events.put_nowait(one)
        await asyncio.sleep(0.2)
        assert wire.events.qsize() > 50
        assert [await asyncio.wait_for(stream.read(), 30) for _ in messages] == messages


async def test_a_stream_that_its_client_gave_up_is_not_followed(wire: Wire) -> None:
    async with wire.channel() as through:
        async with mortal(wire):
            stream = through.unary_stream(EVENTS)(b"")
            await first_three(stream)
        await until(lambda: any(link.calls for link in wire.server.links))
        stream.cancel()
        await until(lambda: not wire.server.links)


async def test_what_was_missed_comes_before_what_comes_next() -> None:
    """One event for each pod, about what changed last in it, with the state of all of it."""
    cri, clock = FakeCri(iter(range(1, 1000)).__next__), FakeClock()
    cri.registry.add("x:1")
    await cri.pull_image("x:1")
    runs = await running_pod(cri, "a", 0)
    await cri.stop_sandbox(runs[0])
    runs = await running_pod(cri, "a", 1)
    ended = await running_pod(cri, "b", 0)
    cri.exit(ended[1], 3)
    found = []
    source = EventSource(cri, clock).messages()
    for _ in range(2):
        found.append(pb.ContainerEventResponse.FromString(await anext(source)))
    cri.exit(runs[1], 0)
    found.append(pb.ContainerEventResponse.FromString(await anext(source)))
    await source.aclose()

    assert [(one.container_id, one.container_event_type) for one in found] == [
        (runs[1], pb.CONTAINER_STARTED_EVENT),
        (ended[1], pb.CONTAINER_STOPPED_EVENT),
        (runs[1], pb.CONTAINER_STOPPED_EVENT),
    ]
    assert found[1].containers_statuses[0].exit_code == 3
    assert found[0].pod_sandbox_status.metadata.attempt == 1
    assert found[0].created_at == int(clock.wall_s() * 1e9)


async def running_pod(cri: FakeCri, name: str, attempt: int) -> tuple[str, str]:
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name=name, uid=name, namespace="x", attempt=attempt))
    sandbox_id = await cri.run_sandbox(config)
    main = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="main"), image=pb.ImageSpec(image="x:1"))
    container_id = await cri.create_container(sandbox_id, main, config)
    await cri.start_container(container_id)
    return sandbox_id, container_id


@pytest.mark.parametrize("broken", ["GetContainerEvents", "ListPodSandbox", "PodSandboxStatus"])
async def test_a_runtime_that_fails_meanwhile_is_asked_again(broken: str) -> None:
    """Every failure reaches whoever listens; no task is left behind."""
    cri = FakeCri()
    cri.registry.add("x:1")
    await cri.pull_image("x:1")
    await running_pod(cri, "a", 0)
    cri.failures[broken] = AGAIN
    with pytest.raises(Unavailable):
        async for _ in EventSource(cri, FakeClock()).messages():
            cri.calls.append("seen")

    assert cri.calls[-1] != "seen" or broken == "GetContainerEvents"
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
