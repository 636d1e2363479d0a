# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from agent.api import http as http_module
from agent.api.http import HttpServer, Page, health_page
from agent.api.http_connections import HEAD_BYTES, MAX_CONNECTIONS
from agent.api.metrics import Metrics
from agent.model.allowance import Share
from agent.model.component import Board, Component, State
from agent.model.histogram import Histogram


def component(name: str, state: State, message: str = "") -> Component:
    return Component(name, True, state, message)


def test_readyz_names_what_is_not_ready() -> None:
    """HLT-01."""
    parts = [component("pods", State.READY), component("runtime", State.DEGRADED, "no socket")]
    page = health_page({}, parts, lambda part: part.is_ready)
    verbose = health_page({"verbose": [""]}, parts, lambda part: part.is_ready)
    excluded = health_page({"exclude": ["runtime"]}, parts, lambda part: part.is_ready)

    assert (page.status, page.body) == (503, b"[-] runtime: no socket\nnot ok\n")
    assert verbose.body == b"[+] pods: ready\n[-] runtime: no socket\nnot ok\n"
    assert (excluded.status, excluded.body) == (200, b"ok\n")


async def answer_of(port: int, pages: dict[str, object], request: bytes) -> bytes:
    """Of a server that runs for this one question."""
    server = HttpServer(f"127.0.0.1:{port}", pages)  # type: ignore[arg-type]
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        answer = await ask(port, request)
        task.cancel()
    return answer


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if not request:
        writer.write_eof()
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.fixture
def pages() -> dict[str, object]:
    return {"/ok": lambda query, headers: Page(200, f"{dict(query)} {headers.get('x')}".encode())}


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /ok?a=1 HTTP/1.1\r\nX: y\r\n\r\n", b"200 OK", b"{'a': ['1']} y"),
        (b"HEAD /ok HTTP/1.0\r\n\r\n", b"200 OK", b""),
        (b"GET /none HTTP/1.1\r\n\r\n", b"404 Not Found", b"pages: /ok"),
        (b"POST /ok HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET"),
        (b"GET /ok" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"400 Bad Request", b"at most 8 KiB"),
        (b"\x00\xff\x16\x03\x01\r\n\r\n", b"405", b"only GET"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"400 Bad Request", b"not a URL"),
    ],
)
async def test_requests_good_and_bad(
    free_port: int, pages: dict[str, object], request_bytes: bytes, status: bytes, body: bytes
) -> None:
    answer = await answer_of(free_port, pages, request_bytes)
    head, _, got = answer.partition(b"\r\n\r\n")

    assert status in head.splitlines()[0]
    assert body in got


@pytest.mark.parametrize(("path", "length"), [("/ok", 7), ("/none", 11)])
async def test_head_tells_the_length_and_brings_nothing(
    free_port: int, pages: dict[str, object], path: str, length: int
) -> None:
    """RFC 9110, 9.3.2: some load balancers ask this way, kube-proxy answers so."""
    answer = await answer_of(free_port, pages, f"HEAD {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")

    assert f"Content-Length: {length}" in head.decode().splitlines()
    assert body == b""


async def test_metrics_are_openmetrics_when_asked_for() -> None:
    """MET-01."""
    board = Board(lambda: 0.0)
    board.add("pods", State.READY, is_plane=True)
    metrics = Metrics("1.2.3", board.lines)
    metrics.cri_called("Version", "OK", 0.003)
    metrics.api_called("/kepd.v1.NodeService/GetNode", "OK")
    plain = metrics.page({}, {})
    openmetrics = metrics.page({}, {"accept": "application/openmetrics-text; version=1.0.0"})

    assert openmetrics.content_type.startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    for line in (
        b'kepd_build_info{version="1.2.3"} 1.0',
        b'kepd_plane_ready{plane="pods"} 1.0',
        b'kepd_api_requests_total{code="OK",method="/kepd.v1.NodeService/GetNode"} 1.0',
        b'kepd_cri_request_duration_seconds_bucket{code="OK",le="0.005",method="Version"} 1.0',
        b"process_resident_memory_bytes",
        b"kepd_tasks",
    ):
        assert line in plain.body


async def test_an_invented_version_gets_the_plain_format() -> None:
    metrics = Metrics("1", Board(lambda: 0.0).lines)
    page = metrics.page({}, {"accept": "application/openmetrics-text;version=abc"})

    assert (page.status, b"kepd_build_info" in page.body) == (200, True)


async def test_scrapes_without_a_pause_cost_a_tenth_of_the_time_at_most() -> None:
    """FX-2: 10 000 connections that each ask for the page kept /livez waiting for seconds."""
    now_s, made = 0.0, 0

    def source() -> list[object]:
        nonlocal now_s, made
        now_s, made = now_s + 0.5, made + 1
        return []

    metrics = Metrics("1", Board(lambda: 0.0).lines, lambda: now_s)
    metrics.sources.append(source)  # type: ignore[arg-type]
    for _ in range(100):
        metrics.page({}, {})
    at_once = made
    now_s += 4.5
    metrics.page({}, {})

    assert (at_once, made) == (1, 2)


async def test_those_who_do_not_read_keep_nobody_out(free_port: int, pages: dict[str, object]) -> None:
    server = HttpServer(f"127.0.0.1:{free_port}", pages)  # type: ignore[arg-type]
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        idle = [await asyncio.open_connection("127.0.0.1", free_port) for _ in range(200)]
        answer = await ask(free_port, b"GET /ok HTTP/1.1\r\n\r\n")
        for _, writer in idle:
            writer.close()
        task.cancel()

    assert b"200 OK" in answer


async def test_connections_that_give_way_or_end_with_kepd_leave_nothing(
    free_port: int, pages: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """FX-8: no traceback, no task, and the client hears of it."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    server = HttpServer(f"127.0.0.1:{free_port}", pages)  # type: ignore[arg-type]
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        idle = [await asyncio.open_connection("127.0.0.1", free_port) for _ in range(MAX_CONNECTIONS + 20)]
        async with asyncio.timeout(30):
            first = [await reader.read() for reader, _ in idle[:20]]
        half = [reader.at_eof() for reader, _ in idle[20:]]
        task.cancel()
    async with asyncio.timeout(30):
        rest = [await reader.read() for reader, _ in idle[20:]]
    tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
    for _, writer in idle:
        writer.close()

    assert first == [b""] * 20
    assert half == [False] * MAX_CONNECTIONS
    assert rest == [b""] * MAX_CONNECTIONS
    assert (tasks, reported, caplog.records) == ([], [], [])


async def test_a_question_may_come_byte_by_byte_and_an_answer_be_read_slowly(free_port: int) -> None:
    large = b"x" * (4 << 20)
    server = HttpServer(f"127.0.0.1:{free_port}", {"/": lambda _query, _headers: Page(200, large)})
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        for one in b"GET / HTTP/1.1\r\n\r\n":
            writer.write(bytes([one]))
            await asyncio.sleep(0.002)
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        body = await reader.read()
        writer.close()
        task.cancel()

    assert b"200 OK" in head
    assert body == large


async def test_who_asks_nothing_or_reads_nothing_is_hung_up_on(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.api.http_connections.REQUEST_LIMIT_S", 0.2)
    large = Page(200, b"x" * (16 << 20))
    server = HttpServer(f"127.0.0.1:{free_port}", {"/": lambda _query, _headers: large})
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        silent = await asyncio.open_connection("127.0.0.1", free_port)
        late = await asyncio.open_connection("127.0.0.1", free_port)
        late[1].write(b"GET / HTTP/1.1\r\n\r\n")
        said = await silent[0].read()
        await asyncio.sleep(0.3)
        got = 0
        try:
            while some := await late[0].read(1 << 20):
                got += len(some)
        except ConnectionError:
            pass
        for _, writer in (silent, late):
            writer.close()
        task.cancel()

    assert said == b""
    assert got < 16 << 20


def test_half_a_question_is_answered_when_its_sender_is_done(pages: dict[str, object]) -> None:
    server = HttpServer("", pages)  # type: ignore[arg-type]

    assert b"400 Bad Request" in server.answer(b"GET /ok HTTP/1.1\r\n")
    assert b"400 Bad Request" in server.answer(b"G" * (2 * HEAD_BYTES))
    assert b"200 OK" in server.answer(b"GET /ok HTTP/1.1\r\n\r\nmore that is not read")


async def test_a_page_that_fails_is_told_and_the_others_go_on(free_port: int) -> None:
    def broken(query: object, headers: object) -> Page:
        raise ValueError("secret")

    server = HttpServer(f"127.0.0.1:{free_port}", {"/bad": broken})
    report = Board(lambda: 0.0).add("http", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(report))
        await asyncio.sleep(0.05)
        answer = await ask(free_port, b"GET /bad HTTP/1.1\r\n\r\n")
        task.cancel()

    assert b"500 Internal" in answer
    assert b"secret" not in answer


async def test_a_page_that_takes_its_time_keeps_no_other_waiting(free_port: int) -> None:
    """OBS-13: also one that fails late, and one whose reader has left."""
    go, ended = asyncio.Event(), []

    async def late(query: object, headers: object) -> Page:
        del query, headers
        try:
            await go.wait()
        finally:
            ended.append("late")
        return Page(200, b"at last")

    async def fails(query: object, headers: object) -> Page:
        del query, headers
        raise ValueError("no")

    pages = {"/late": late, "/fails": fails, "/ok": lambda _query, _headers: Page(200, b"ok")}
    server = HttpServer(f"127.0.0.1:{free_port}", pages)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(Board(lambda: 0.0).add("http", State.STARTING)))
        await asyncio.sleep(0.05)
        waiting = group.create_task(ask(free_port, b"GET /late HTTP/1.1\r\n\r\n"))
        _, left = await asyncio.open_connection("127.0.0.1", free_port)
        left.write(b"GET /late HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        others = [await ask(free_port, f"GET /{one} HTTP/1.1\r\n\r\n".encode()) for one in ("ok", "fails")]
        left.close()
        await left.wait_closed()
        go.set()
        answer = await waiting
        task.cancel()

    assert others[0].endswith(b"ok")
    assert others[1].startswith(b"HTTP/1.1 500")
    assert answer.endswith(b"at last")
    assert ended == ["late", "late"]


async def test_a_page_that_never_comes_ends_with_its_time(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OBS-13."""
    monkeypatch.setattr("agent.api.http_connections.ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr("agent.api.http_connections.REQUEST_LIMIT_S", 0.1)

    async def never(query: object, headers: object) -> Page:
        del query, headers
        await asyncio.Event().wait()
        return Page(200, b"")

    assert await answer_of(free_port, {"/never": never}, b"GET /never HTTP/1.1\r\n\r\n") == b""


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe((), value)
    samples = {sample.labels.get("le"): sample.value for sample in histogram.family("h", "x", []).samples}

    assert (samples["1.0"], samples["2.0"], samples["+Inf"]) == (2, 3, 4)


async def test_one_address_has_so_many_pages_a_second_and_health_is_never_kept_waiting(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait; a kubelet asks for /livez from the same address."""
    monkeypatch.setitem(http_module.METERED, http_module.PAGES, Share(2, 1 / 3600))
    monkeypatch.setattr(http_module, "LONGEST_WAIT_S", 3600.0)
    page = Page(200, b"ok")
    server = HttpServer(f"127.0.0.1:{free_port}", {path: lambda _q, _h: page for path in ("/metrics", "/livez")})
    running = asyncio.ensure_future(server.run(Board(lambda: 0.0).add("http", State.STARTING)))
    await asyncio.sleep(0)
    pages = [asyncio.ensure_future(ask(free_port, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(5)]
    while sum(one.done() for one in pages) < 2:
        await asyncio.sleep(0.01)
    lives = [await ask(free_port, b"GET /livez HTTP/1.1\r\n\r\n") for _ in range(30)]

    assert all(b"200 OK" in one for one in lives)
    assert sum(one.done() for one in pages) == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sum(b"200 OK" in one for one in await asyncio.gather(*pages)) == 2


async def test_who_only_connects_gets_no_answer(free_port: int, pages: dict[str, object]) -> None:
    """A storm of such costs no answers."""
    assert await answer_of(free_port, pages, b"") == b""
