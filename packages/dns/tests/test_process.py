# SPDX-License-Identifier: Apache-2.0
"""The process as clients and servers meet it: bad servers, floods, stale answers, restarts. On loopback, by port."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import pytest

from kepd_dns.handover.state import SOCKET_FILE, Port, ServiceName, Settings, Upstream
from kepd_dns.handover.status import Status, StatusRequest
from kepd_dns.run.asking.upstream_tcp import MOST_WAITING
from kepd_dns.run.client import ProcessClient, ProcessUnavailable
from kepd_dns.run.inquiry import Heard, inquire
from kepd_dns.run.state_writer import StateWriter
from kepd_dns.wire.names import to_wire
from packages.dns.tests.dns_holder import HOLDER
from packages.dns.tests.dns_servers import ScriptedDns, addresses, answered, ask
from packages.dns.tests.messages import ask as question
from tests.ports import take_port

ROOT = Path(__file__).parents[3]
WITHIN_S = 40.0
HERE = "127.0.0.1"
# Addresses that one message by UDP has no room for.
LARGE = 120


class Running:
    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.port = take_port()
        self.writer = StateWriter(directory, time.time)
        self.client = ProcessClient(directory / SOCKET_FILE)
        (directory / "resolv.conf").touch()
        own = {"resolv_conf": str(directory / "resolv.conf"), "per_source_qps": 0, **settings}
        self.settings = Settings(**own)
        self.child: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        self.held: list[socket.socket] = []
        """Sockets that a service manager kept."""

    async def start(self) -> None:
        self._begin()
        async with asyncio.timeout(WITHIN_S):
            while True:
                with suppress(ProcessUnavailable):
                    await self.client.ask(StatusRequest(do="reread"))
                    return
                await asyncio.sleep(0.02)

    def _begin(self) -> None:
        numbers = [one.fileno() for one in self.held]
        holder = ["-c", HOLDER, ",".join(map(str, numbers))] if numbers else []
        with (self.directory / "log").open("ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, *holder, "-m", "kepd_dns.run.process", "--directory", str(self.directory),
                 "--listen", HERE, "--port", str(self.port)],
                cwd=ROOT, stdout=log, stderr=log, pass_fds=numbers,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
            )  # fmt: skip

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.child is not None:
            self.child.send_signal(number)
            self.child.wait(10)
            self.child = None

    async def use(self, *upstreams: ScriptedDns) -> None:
        """As servers of the node."""
        # A resolver file names no port, so servers are those of a stub domain for everything.
        await self.set(stub_domains={"example": tuple(f"{one.address}:{one.port}" for one in upstreams)})

    async def use_for_cluster(self, *upstreams: ScriptedDns) -> None:
        self.writer.set_upstreams(tuple(Upstream(one.address, one.port) for one in upstreams))
        await self.client.ask(StatusRequest(do="reread"))

    async def set(self, **changed: Any) -> None:
        import msgspec

        self.settings = msgspec.structs.replace(self.settings, **changed)
        self.writer.begin(self.settings)
        await self.client.ask(StatusRequest(do="reread"))

    async def ask(self, name: str, kind: str = "A", **more: Any) -> Any:
        return await asyncio.to_thread(partial(ask, None, HERE, name, kind, port=self.port, **more))

    async def status(self) -> Status:
        found = (await self.client.ask(StatusRequest(do="status"))).status
        assert found is not None
        return found

    def raw(self, *packets: bytes, within_s: float = 0.5, count: int = 0) -> list[bytes]:
        """What comes back to these; `count`: as many, or silence."""
        found: list[bytes] = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(within_s)
            for one in packets:
                asking.sendto(one, (HERE, self.port))
            with suppress(TimeoutError):
                while len(found) < (count or len(packets)):
                    found.append(asking.recv(65536))
        return found


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Running]:
    made = Running(directory, settings)
    made.writer.begin(made.settings)
    await made.start()
    try:
        yield made
    finally:
        made.end()


def server(answers: Any = None, says: str = "192.0.2.1", **more: Any) -> ScriptedDns:
    return ScriptedDns(HERE, says, port=0, **({"answers": answers} if answers else {}), **more)


async def test_servers_are_asked_by_udp_and_cut_answers_again_by_tcp(tmp_path: Path) -> None:
    """DNS-43: never TCP by force; a question that came by TCP goes on by TCP."""

    def cut(one: ScriptedDns, data: bytes, way: str) -> Iterable[bytes]:
        text = answered(data, one.says)
        return (text if way == "tcp" else text[:2] + bytes((text[2] | 2,)) + text[3:],)

    async with server() as plain, server(cut) as cutting, running(tmp_path) as process:
        await process.use(plain)
        assert addresses(await process.ask("a.example")) == ["192.0.2.1"]
        assert addresses(await process.ask("b.example", tcp=True)) == ["192.0.2.1"]
        assert [way for _, way in plain.asked if ".example" in _] == ["udp", "tcp"]
        await process.use(cutting)
        assert addresses(await process.ask("c.example")) == ["192.0.2.1"]
        assert [way for name, way in cutting.asked if name == "c.example."] == ["udp", "tcp"]


async def test_a_server_that_knows_no_options_is_asked_without(tmp_path: Path) -> None:
    """DNS-43: once more, and from then on at once."""

    def old(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        asked = dns.message.from_wire(data)
        return (answered(data, one.says, code=1 if asked.edns == 0 else 0),)

    async with server(old) as one, running(tmp_path) as process:
        await process.use(one)
        found = [addresses(await process.ask(f"{name}.example")) for name in "abc"]

        assert found == [["192.0.2.1"]] * 3
        assert len([name for name, _ in one.asked if name.endswith("example.")]) == 4


async def test_a_silent_server_costs_little_and_the_next_answers(tmp_path: Path) -> None:
    """DNS-44: it is asked beside after 50 ms, and left out after three silences."""
    async with server(lambda *_: ()) as silent, server() as good, running(tmp_path) as process:
        await process.use(silent, good)
        begun_s = time.monotonic()
        for number in range(8):
            assert addresses(await process.ask(f"n{number}.example")) == ["192.0.2.1"]

        assert time.monotonic() - begun_s < 4.0


async def test_answers_that_lie_are_not_believed(tmp_path: Path) -> None:
    """DNS-91, DNS-92: a wrong id, another question, another spelling, pointers in a loop, and an answer for a name that
    nobody asked; the next server is asked, and nothing of it is kept."""

    def wrong_id(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        return tuple(bytes((data[0] ^ 1 + n, data[1])) + answered(data, "6.6.6.6")[2:] for n in range(3))

    def other_question(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        # Asked for the bank itself it is silent: what it said then would be an answer, true or not.
        return () if b"bank" in data.lower() else (data[:2] + answered(question("bank.example"), "6.6.6.6")[2:],)

    def loop(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        made = answered(data, "6.6.6.6")
        at = made.index(b"\xc0\x0c")
        return (made[:at] + bytes((0xC0, at)) + made[at + 2 :],)

    def huge(one: ScriptedDns, data: bytes, way: str) -> Iterable[bytes]:
        return (answered(data, "6.6.6.6") + b"\0" * 60000,) if way == "tcp" else ()

    for bad in (wrong_id, other_question, loop, huge):
        async with server(bad) as lying, server() as good, running(tmp_path) as process:
            await process.use(lying, good)
            for number in range(4):
                assert addresses(await process.ask(f"n{number}.example")) == ["192.0.2.1"], bad
            assert addresses(await process.ask("bank.example")) == ["192.0.2.1"], bad


async def test_poison_beside_the_answer_stays_outside(tmp_path: Path) -> None:
    """DNS-92: what the additional section says of other names is not kept."""

    def generous(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        made = dns.message.make_response(dns.message.from_wire(data))
        name = made.question[0].name
        for section, owner in ((made.answer, name), (made.answer, "bank.example."), (made.additional, "bank.example.")):
            section.append(dns.rrset.from_text(owner, 30, "IN", "A", "6.6.6.6" if owner != name else "192.0.2.9"))
        return (made.to_wire(),)

    async with server(generous) as one, server() as good, running(tmp_path) as process:
        await process.use(one)
        first = await process.ask("a.example")
        await process.use(good)

        assert [item.name.to_text() for item in first.answer] == ["a.example."]
        assert addresses(await process.ask("bank.example")) == ["192.0.2.1"]


async def test_spelling_is_that_of_the_client_and_ids_differ(tmp_path: Path) -> None:
    """DNS-92: 0x20 on the way out, and back as it was asked."""
    seen: list[bytes] = []

    def note(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        seen.append(data)
        return (answered(data, one.says),)

    async with server(note) as one, running(tmp_path) as process:
        await process.use(one)
        for number in range(20):
            found = await process.ask(f"Name{number}.Some.Example")
            assert found.question[0].name.to_text() == f"Name{number}.Some.Example."
        asked = [one for one in seen if b"ame" in one.lower()]

        assert len({one[:2] for one in asked}) > 15
        assert len({one[12:].translate(None, b"0123456789") for one in asked}) > 5


async def test_a_dead_server_leaves_stale_answers_and_a_bounded_wait(tmp_path: Path) -> None:
    """DNS-53, DNS-55, DNS-95: 1.8 s for what was known, 4.5 s for what was not, then at once."""
    dead = False

    def dying(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        return () if dead else (answered(data, one.says, ttl=1),)

    async with server(dying) as one, running(tmp_path) as process:
        await process.use(one)
        assert addresses(await process.ask("known.example")) == ["192.0.2.1"]
        dead = True
        await asyncio.sleep(1.2)
        begun_s = time.monotonic()
        stale, fresh = await asyncio.gather(
            process.ask("known.example", within_s=6.0), process.ask("new.example", within_s=6.0)
        )
        took_s = time.monotonic() - begun_s
        again_s = time.monotonic()
        again = await process.ask("new.example")

        assert addresses(stale) == ["192.0.2.1"]
        assert [str(one) for one in stale.options] == ["EDE 3 (Stale Answer)"]
        assert (fresh.rcode(), [str(one) for one in fresh.options]) == (2, ["EDE 22 (No Reachable Authority)"])
        assert took_s < 5.0
        assert (again.rcode(), time.monotonic() - again_s < 0.5) == (2, True)


async def test_a_server_that_was_silent_is_asked_again_by_the_same_connection(tmp_path: Path) -> None:
    """DNS-42, DNS-95: as many questions as one server may have, none of them answered, hold no room when they are
    over."""
    is_silent = True

    def moody(one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
        return () if is_silent else (answered(data, one.says),)

    async with server(moody) as one, running(tmp_path, has_cluster=True) as process:
        await process.use_for_cluster(one)
        packets = [question(f"n{number}.cluster.local", id_=number) for number in range(MOST_WAITING)]
        found = await asyncio.to_thread(process.raw, *packets, within_s=6.0)
        is_silent = False

        assert {text[3] & 0xF for text in found} == {2}
        assert (await process.status()).in_flight == 0
        assert addresses(await process.ask("later.cluster.local")) == ["192.0.2.1"]


async def test_equal_questions_are_one(tmp_path: Path) -> None:
    """DNS-57: 256 wait, each with its own id; more get an error at once."""
    async with server(delay_s=0.5) as one, running(tmp_path) as process:
        await process.use(one)
        packets = [question("same.example", id_=number) for number in range(300)]
        found = await asyncio.to_thread(process.raw, *packets, within_s=3.0)

        assert len({text[:2] for text in found}) == 300
        codes = [text[3] & 0xF for text in found]
        assert (codes.count(0), codes.count(2)) == (256, 44)
        assert len([name for name, _ in one.asked if name == "same.example."]) <= 3


async def test_a_flood_of_new_names_leaves_others_alone(tmp_path: Path) -> None:
    """DNS-94, DNS-58: one client with thousands of names a second; hits of another go on, and memory is bounded."""
    async with server(lambda *_: ()) as silent, running(tmp_path) as process:
        await process.use(silent)
        flood = [question(f"x{number}.example", id_=number & 0xFFFF) for number in range(6000)]

        def pour() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.bind(("127.0.0.9", 0))
                for place, one in enumerate(flood):
                    asking.sendto(one, (HERE, process.port))
                    if place % 100 == 0:
                        time.sleep(0.01)

        pouring = asyncio.create_task(asyncio.to_thread(pour))
        while not pouring.done():
            # As long as a resolver waits for it.
            assert addresses(await process.ask("localhost", within_s=5.0)) == ["127.0.0.1"]
        await pouring
        async with asyncio.timeout(WITHIN_S):
            status = None
            while status is None or sum(status.overload.values()) <= 3000:
                # How soon the daemon hears of it depends on the processor.
                with suppress(ProcessUnavailable):
                    status = await process.status()

        assert status.in_flight <= 1024
        assert status.negative_bytes <= 4 << 20


async def test_answers_are_limited_for_each_source(tmp_path: Path) -> None:
    """DNS-93: over the limit every second one is cut, and the rest silent; TCP is not limited."""
    async with running(tmp_path, per_source_qps=50) as process:
        packets = [question("localhost", id_=number) for number in range(300)]
        found = await asyncio.to_thread(process.raw, *packets, within_s=0.5)
        cut = [one for one in found if one[2] & 2]
        by_tcp = await process.ask("localhost", tcp=True)

        assert 100 <= len(found) - len(cut) <= 160
        assert abs(len(cut) - (300 - (len(found) - len(cut))) / 2) <= 2
        assert addresses(by_tcp) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("a.example", "ANY", 0), ("a.example", "AXFR", 4), ("x.invalid", "A", 3), ("x.onion", "A", 3),
        ("localhost", "AAAA", 0),
    ],
)  # fmt: skip
async def test_some_questions_concern_nobody_else(tmp_path: Path, name: str, kind: str, code: int) -> None:
    """DNS-54, DNS-60."""
    async with running(tmp_path) as process:
        found = await process.ask(name, kind)

        assert found.rcode() == code


async def test_beside_a_cluster_known_services_are_answered_here(tmp_path: Path) -> None:
    """DNS-77: what the cluster's DNS said of a name before it was known counts no more; all that is not the name of a
    Service with an address goes on to it, pods and the zone itself too."""
    zone = "svc.cluster.local"
    async with (
        server(lambda _one, data, _way: (answered(data, "", code=3),)) as one,
        running(tmp_path, has_cluster=True, is_authoritative=True) as process,
    ):
        await process.use_for_cluster(one)
        unknown = await process.ask(f"web.default.{zone}")
        process.writer.put(ServiceName("default", "web", ("10.96.0.10",), (Port(80, "http"),)))
        await process.client.ask(StatusRequest(do="reread"))
        asked = len(one.asked)
        known = await process.ask(f"web.default.{zone}")
        other_family = await process.ask(f"web.default.{zone}", "AAAA")
        port = await process.ask(f"_http._tcp.web.default.{zone}", "SRV")
        ours = len(one.asked) - asked
        for name in (f"pets.default.{zone}", f"10-1-0-7.default.pod.{zone}", zone, "dns-version.cluster.local"):
            assert (await process.ask(name)).rcode() == 3
            assert f"{name}." in {name for name, _ in one.asked}
        process.writer.drop("default/web")
        await process.client.ask(StatusRequest(do="reread"))
        gone = await process.ask(f"web.default.{zone}")

        assert [made.rcode() for made in (unknown, known, other_family, port, gone)] == [3, 0, 0, 0, 3]
        assert addresses(known) == ["10.96.0.10"]
        assert (ours, addresses(other_family), addresses(port)) == (0, [], [f"0 100 80 web.default.{zone}."])
        assert known.flags & dns.flags.AA


@pytest.mark.parametrize("tcp", [False, True])
async def test_names_that_a_search_made_are_denied_where_that_is_asked_for(tmp_path: Path, tcp: bool) -> None:
    """DNS-78: at once, and without asking a server; as long as the settings say so. Names that a Service can have, and
    all others, go on as before."""
    made, port = "www.example.com.default.svc.cluster.local", "_http._tcp.web.default.svc.cluster.local"
    names = (made, port, "rex.pets.default.svc.cluster.local", "www.example.com.cluster.local")
    async with server() as one, running(tmp_path, has_cluster=True) as process:
        await process.use_for_cluster(one)
        found = {}
        for is_on in (True, False):
            await process.set(cuts_searches=is_on)
            found[is_on] = [(await process.ask(name, tcp=tcp)).rcode() for name in names]
            asked = {name for name, _ in one.asked}

            assert (f"{made}." in asked) is not is_on
            explained = (await process.client.ask(StatusRequest(do="explain", name=made))).explanation
            assert explained is not None
            assert (explained.kind, explained.code) == (("denied", 3) if is_on else ("cluster", None))

        assert found == {True: [3, 0, 0, 0], False: [0, 0, 0, 0]}
        assert {f"{name}." for name in names} <= asked


async def test_tcp_clients_that_do_nothing_are_let_go(tmp_path: Path) -> None:
    """DNS-95: half a message for five seconds, or more than 64 connections from one address."""
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection(HERE, process.port)
        writer.write(b"\0\x40half")
        begun_s = time.monotonic()
        many = [await asyncio.open_connection(HERE, process.port) for _ in range(70)]
        closed = await asyncio.gather(*(asyncio.wait_for(one.read(1), 0.5) for one, _ in many), return_exceptions=True)
        assert await asyncio.wait_for(reader.read(1), 9.0) == b""
        assert 4.5 < time.monotonic() - begun_s < 8.5
        assert sum(one == b"" or isinstance(one, ConnectionError) for one in closed) >= 6
        for _, one in [(reader, writer), *many]:
            one.close()


def large(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    made = dns.message.make_response(dns.message.from_wire(data))
    many = [f"10.0.0.{one}" for one in range(LARGE)]
    made.answer.append(dns.rrset.from_text_list(made.question[0].name, 30, "IN", "A", many))
    return (made.to_wire(max_size=65535),)


async def test_a_tcp_client_that_does_not_read_is_let_go(tmp_path: Path) -> None:
    """DNS-95: when 64 KiB of answers wait for it beside what the kernel holds; others are answered on."""

    def pour(port: int) -> int:
        """What became of its connection; nothing while it is open."""
        text = question("many.example", id_=5)
        ended = select.poll()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asking.settimeout(WITHIN_S)
            asking.connect((HERE, port))
            ended.register(asking, select.POLLHUP)
            with suppress(ConnectionResetError, BrokenPipeError):
                asking.sendall(20_000 * (len(text).to_bytes(2, "big") + text))
            return sum(event for _, event in ended.poll(1000 * WITHIN_S))

    async with server(large) as one, running(tmp_path) as process:
        await process.use(one)
        assert len(addresses(await process.ask("many.example", tcp=True))) == LARGE
        what = await asyncio.to_thread(pour, process.port)

        assert what & select.POLLHUP
        assert len(addresses(await process.ask("many.example", tcp=True))) == LARGE


async def test_a_client_may_ask_many_at_once_by_tcp(tmp_path: Path) -> None:
    """DNS-95: a hundred in a row, answered in any order, and whole."""
    async with server() as one, running(tmp_path) as process:
        await process.use(one)
        reader, writer = await asyncio.open_connection(HERE, process.port)
        for number in range(150):
            text = question(f"n{number}.example", id_=number)
            writer.write(len(text).to_bytes(2, "big") + text)
        ids = set()
        for _ in range(150):
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 30), "big")
            ids.add((await reader.readexactly(size))[:2])
        writer.close()

        assert len(ids) == 150


async def test_what_was_asked_most_is_known_after_a_restart(tmp_path: Path) -> None:
    """DNS-15, DNS-12: SIGTERM writes it down; a broken file is one line in the log."""
    async with server() as one, running(tmp_path) as process:
        await process.use(one)
        assert addresses(await process.ask("hot.example")) == ["192.0.2.1"]
        process.end(signal.SIGTERM)
        asked = len(one.asked)
        await process.start()
        assert addresses(await process.ask("hot.example")) == ["192.0.2.1"]
        assert [name for name, _ in one.asked[asked:] if "hot" in name] == []
        process.end(signal.SIGTERM)
        (tmp_path / "hot").write_bytes(b"nonsense")
        await process.start()
        assert addresses(await process.ask("hot.example")) == ["192.0.2.1"]

    assert (tmp_path / "log").read_text().count("hot_file_ignored") == 1


async def test_without_a_state_everything_goes_to_the_nodes_servers(tmp_path: Path) -> None:
    """DNS-4: and the status says so."""
    async with running(tmp_path) as process:
        process.end()
        (tmp_path / "state.json").write_bytes(b"{")
        await process.start()
        status = await process.status()

        assert status.number == -1
        assert "state.json" in status.error


async def test_a_server_that_leads_back_is_left_out(tmp_path: Path) -> None:
    """DNS-45: a stub resolver of this host that asks us."""
    async with running(tmp_path) as process:
        loop = asyncio.get_running_loop()

        def forward(_one: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
            loop.run_in_executor(None, process.raw, data)
            return ()

        async with server(forward) as stub, server() as good:
            await process.use(stub, good)
            await asyncio.sleep(1.0)
            status = await process.status()

            assert {one.address: one.is_loop for one in status.upstreams} == {
                f"{HERE}:{stub.port}": True,
                f"{HERE}:{good.port}": False,
            }
            assert addresses(await process.ask("a.example")) == ["192.0.2.1"]


async def test_explain_and_flush_know_what_is_kept(tmp_path: Path) -> None:
    """DNS-101."""
    async with server() as one, running(tmp_path) as process:
        await process.use(one)
        await process.ask("a.example")
        before = (await process.client.ask(StatusRequest(do="explain", name="a.example"))).explanation
        flushed = (await process.client.ask(StatusRequest(do="flush", name="a.example"))).flushed
        after = (await process.client.ask(StatusRequest(do="explain", name="a.example"))).explanation
        bad = await process.client.ask(StatusRequest(do="explain", name="a.example", type="NONE"))

        assert before is not None
        assert after is not None
        assert [item.records for item in before.cached] == [("a.example. 30 A 192.0.2.1",)]
        assert (flushed, after.cached) == (1, ())
        assert "is no type of records" in bad.error


async def test_bad_packets_get_an_error_or_silence_and_harm_nothing(tmp_path: Path) -> None:
    """DNS-90: the list of bad inputs, and some thousand mutated ones."""
    import random

    from packages.dns.tests.test_wire import mutated

    async with running(tmp_path) as process:
        dice = random.Random(4)
        packets = [mutated([question("localhost"), question("a.invalid")], dice) for _ in range(3000)]
        await asyncio.to_thread(process.raw, *packets, within_s=0.2, count=100_000)
        status = await process.status()

        assert addresses(await process.ask("localhost")) == ["127.0.0.1"]
        assert sum(status.malformed.values()) > 100
        assert process.child is not None
        assert process.child.poll() is None


async def test_who_looks_is_told_what_is_answered(tmp_path: Path) -> None:
    """DNS-101: by TCP where an answer is cut; silence is silence."""
    async with server(large) as one, running(tmp_path) as process:
        await process.use(one)
        found = [await inquire(HERE, to_wire(name), 1, process.port) for name in ("localhost", "many.example")]
        process.end()

        assert found[0] == Heard("NOERROR", ("localhost. 3600 A 127.0.0.1",))
        assert found[1] is not None
        assert len(found[1].records) == LARGE
        assert await inquire(HERE, to_wire("localhost"), 1, process.port) is None


async def test_addresses_that_nobody_opened_are_bound_by_the_process(tmp_path: Path) -> None:
    """DNS-13: while it runs, when the daemon names them."""
    async with running(tmp_path) as process:
        await process.set(addresses=(HERE, "127.0.0.7"))
        found = None
        async with asyncio.timeout(WITHIN_S):
            while found is None:
                found = await asyncio.to_thread(
                    partial(ask, None, "127.0.0.7", "localhost", port=process.port, within_s=0.2)
                )

        assert addresses(found) == ["127.0.0.1"]


async def test_a_successor_binds_beside_the_one_that_ends(tmp_path: Path) -> None:
    """DNS-14: without a service manager; who asks meanwhile is answered by either. What the one that ends had not read
    yet is asked again, as resolvers do."""
    async with running(tmp_path) as process:
        first = process.child
        assert first is not None
        process._begin()
        await asyncio.sleep(1.0)
        first.send_signal(signal.SIGTERM)
        found = []
        for _ in range(30):
            answer = await process.ask("localhost", within_s=1.0)
            found.append(answer or await process.ask("localhost", within_s=3.0))
        first.wait(10)

        assert [addresses(one) for one in found] == [["127.0.0.1"]] * 30
