# SPDX-License-Identifier: Apache-2.0
"""The process kepd-dns: sockets in, answers out, without any right but those sockets.

It starts from what lies in its directory and needs no daemon. Lean on purpose: asyncio and msgspec are all it imports.
"""

import argparse
import asyncio
import errno
import gc
import os
import pwd
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kepd_dns.cache.cache import Cache
from kepd_dns.handover.state import HOT_FILE, SOCKET_FILE, Settings
from kepd_dns.handover.status import Reply, StatusRequest
from kepd_dns.run import hot_file
from kepd_dns.run.answering import Answering
from kepd_dns.run.asking.flights import Flights
from kepd_dns.run.asking.servers import Servers
from kepd_dns.run.control import ControlSocket
from kepd_dns.run.counters import Counters
from kepd_dns.run.datagrams import Datagrams
from kepd_dns.run.listeners import TcpListener, UdpListener
from kepd_dns.run.reporting import Reporter
from kepd_dns.run.sockets import bind, handed_over, notify, stored_name
from kepd_dns.run.state_files import StateFiles
from kepd_dns.wire.names import to_wire

PORT = 53
STOP_S = 2.0
HOT_S = 60.0
LOOK_S = 1.0
OPEN_FILES = 8192


def log(event: str, **fields: object) -> None:
    """One line for the journal."""
    text = " ".join(f"{name}={value!r}" for name, value in fields.items())
    sys.stderr.write(f"{event} {text}\n")


def user_id(text: str) -> int:
    """Of a number, or of a name that this host may not know: then nobody's."""
    if text.isdigit():
        return int(text)
    with suppress(KeyError):
        return pwd.getpwnam(text).pw_uid
    return -1


def allow_open_files() -> None:
    """What the unit allows; elsewhere a process begins with fewer than it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(OPEN_FILES, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kepd-dns", description="Answers the DNS questions of this node's pods.")
    parser.add_argument("--directory", type=Path, default=Path("/run/kepd-dns"), help="where the daemon writes state")
    parser.add_argument(
        "--own", type=Path, default=None, help="where this process keeps its cache; the same by default"
    )
    parser.add_argument("--listen", action="append", default=[], metavar="ADDRESS", help="without a socket unit")
    parser.add_argument("--port", type=int, default=PORT, help="of those addresses")
    parser.add_argument(
        "--user", type=user_id, action="append", default=[], help="who may ask, beside root and its own"
    )
    return parser.parse_args(argv)


class Process:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._directory: Path = arguments.directory
        self._own: Path = arguments.own or arguments.directory
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self.instance = os.urandom(4).hex()
        self.started_s = time.time()
        self.counters = Counters()
        self.cache = Cache(Settings().cache_bytes)
        self.files = StateFiles(self._directory, lambda text: log("state_unreadable", problem=text))
        self.servers = Servers(lambda text: log("upstreams_changed", servers=text))
        self.flights = Flights(self.cache, self.counters, self.servers.of, lambda: self.settings.protected_networks)
        self.answering = Answering(self.cache, self.counters, self.flights, self._probe)
        self.servers.meet(self.flights, self.answering)
        self.tcp = TcpListener(self.answering)
        self.udp: dict[str, UdpListener] = {}
        self._all_datagrams: dict[int, Datagrams] = {}
        self.opened: list[socket.socket] = []
        self._further: dict[str, list[socket.socket]] = {}
        self.reporter = Reporter(self)
        self.control = ControlSocket(self._reply, {0, os.geteuid(), *arguments.user})
        self.binding_faults: list[str] = []
        self._stopping = asyncio.Event()
        self._state_read_s = self._loop.time()
        self._hot: asyncio.TimerHandle | None = None
        self._hot_at = 0

    @property
    def settings(self) -> Settings:
        return self.files.state.settings if self.files.state is not None else Settings()

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._look)
        self._look()
        restored = hot_file.load(
            self._own / HOT_FILE, self.cache, self._loop.time(), lambda text: log("hot_file_ignored", problem=text)
        )
        gc.collect()
        gc.freeze()
        # Answers and questions under way form no cycles that outlive them; looking for some costs a tenth of the time.
        gc.set_threshold(10_000, 20, 20)
        await self._listen()
        log("dns_started", addresses=sorted(self.udp), state=self.files.number, restored=restored)
        notify(os.environ, "READY=1\nSTATUS=answering")
        self._hot = self._loop.call_later(HOT_S, self._save_hot)
        await self._stopping.wait()
        await self._stop()

    async def _listen(self) -> None:
        for name, one in handed_over(os.environ, os.getpid()):
            if name == stored_name(one):
                self._further.setdefault(one.getsockname()[0], []).append(one)
            await self._take(one)
        for address in self._arguments.listen:
            try:
                await self._bind(address)
            except OSError as error:
                # A host without IPv6 has the other address.
                if len(self._arguments.listen) == 1 or not self._may_lack(error):
                    raise
                log("address_not_bound", address=address, error=error.strerror)
        await self._bind_further()
        if not any(one.family == socket.AF_UNIX for one in self.opened):
            await self._own_control_socket()

    @staticmethod
    def _may_lack(error: OSError) -> bool:
        return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

    async def _bind(self, address: str) -> list[socket.socket]:
        bound = [bind(address, self._arguments.port, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
        for one in bound:
            await self._take(one)
        return bound

    async def _bind_further(self) -> None:
        """Addresses of the settings that nobody opened for us; a service manager keeps their sockets."""
        known = {one.getsockname()[0] for one in self.opened if one.family != socket.AF_UNIX}
        self.binding_faults = []
        wanted = self.settings.addresses if self.opened else ()
        for address in [one for one in self._further if one not in wanted]:
            self._let_go(address)
        for address in wanted:
            if address not in known:
                try:
                    bound = await self._bind(address)
                    self._further[address] = bound
                    for one in bound:
                        notify(os.environ, f"FDSTORE=1\nFDNAME={stored_name(one)}", one)
                except OSError as error:
                    self.binding_faults.append(f"{address}: port {self._arguments.port}: {error.strerror}")
                    log("address_not_bound", address=address, error=error.strerror)

    def _let_go(self, address: str) -> None:
        for one in self._further.pop(address):
            notify(os.environ, f"FDSTOREREMOVE=1\nFDNAME={stored_name(one)}")
            self.opened.remove(one)
            if one.type == socket.SOCK_DGRAM:
                self.udp.pop(address).let_go()
            else:
                self.tcp.let_go(one)
        log("address_let_go", address=address)

    async def _own_control_socket(self) -> None:
        path = self._directory / SOCKET_FILE
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            opened.bind(str(path))
            path.chmod(0o600)
            opened.listen(16)
        except OSError as error:
            log("control_socket_failed", path=str(path), error=error.strerror)
            opened.close()
            return
        await self._take(opened)

    async def _take(self, opened: socket.socket) -> None:
        self.opened.append(opened)
        opened.setblocking(False)
        if opened.family == socket.AF_UNIX:
            await self.control.listen(opened)
        elif opened.type == socket.SOCK_DGRAM:
            self.udp[opened.getsockname()[0]] = UdpListener(opened, self.answering, self._datagrams(opened.family))
        else:
            await self.tcp.listen(opened)

    def _datagrams(self, family: int) -> Datagrams:
        found = self._all_datagrams.get(family)
        if found is None:
            found = self._all_datagrams[family] = Datagrams(family)
        return found

    def _look(self) -> None:
        """At the state; cheap where nothing changed."""
        is_new, changes = self.files.look()
        self._state_read_s = self._loop.time()
        if is_new:
            settings = self.settings
            self.cache.most_bytes = settings.cache_bytes
            self.answering.use(settings, self.files.own)
            for text in self.files.faults:
                log("name_refused", problem=text)
        elif changes:
            self.answering.own_changed()
            if self.files.own is not None and not self.files.own.is_whole:
                for one in changes:
                    if one.put is not None:
                        self.cache.displace(self.files.own.names_of(one.put.key), self._loop.time())
        if is_new or any(one.upstreams is not None for one in changes):
            self.servers.use(self.settings, self.files.upstreams)
        if is_new and self.opened:
            task = self._loop.create_task(self._bind_further())
            task.add_done_callback(lambda one: one.exception())

    def now_s(self) -> float:
        return self._loop.time()

    def state_age_s(self) -> float:
        return self._loop.time() - self._state_read_s

    def _probe(self) -> str:
        if self.files.looks_changed():
            self._look()
        age_s = self.state_age_s()
        return f"instance={self.instance} started={self.started_s:.3f} number={self.files.number} age={age_s:.1f}"

    def _reply(self, request: StatusRequest) -> Reply:
        match request.do:
            case "reread":
                self._look()
                return Reply(number=self.files.number)
            case "flush":
                name = to_wire(request.name) if request.name else None
                zone = to_wire(request.zone) if request.zone else None
                return Reply(flushed=self.cache.flush(name=name, zone=zone))
            case "explain":
                return Reply(explanation=self.reporter.explain(request.name, request.type))
            case _:
                return Reply(status=self.reporter.status())

    def _save_hot(self) -> None:
        """Only where somebody asked since, so that an idle process stays idle."""
        self._hot = self._loop.call_later(HOT_S, self._save_hot)
        asked = sum(one.questions for one in self.udp.values())
        if asked != self._hot_at:
            self._hot_at = asked
            self._save_on(hot_file.saving(self._own / HOT_FILE, self.cache, self._loop.time()))

    def _save_on(self, saving: Iterator[None]) -> None:
        """One step, and whatever came meanwhile before the next."""
        with suppress(OSError, StopIteration):
            next(saving)
            self._loop.call_soon(self._save_on, saving)

    def _save(self) -> None:
        with suppress(OSError):
            hot_file.save(self._own / HOT_FILE, self.cache, self._loop.time())

    async def _stop(self) -> None:
        """New questions wait in the sockets for who comes next."""
        notify(os.environ, "STOPPING=1")
        for one in self.udp.values():
            one.close()
        self.tcp.stop()
        deadline_s = self._loop.time() + STOP_S
        while (self.flights.flights or self.tcp.clients) and self._loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self._hot is not None:
            self._hot.cancel()
        self._save()
        self.tcp.close()
        self.flights.close()
        self.control.close()
        log("dns_stopped", unanswered=len(self.flights.flights))


def main() -> None:
    arguments = read_arguments(sys.argv[1:])
    allow_open_files()

    async def run() -> None:
        await Process(arguments).run()

    try:
        asyncio.run(run())
    except OSError as error:
        log("dns_failed", error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
