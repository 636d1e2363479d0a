# SPDX-License-Identifier: Apache-2.0
"""What a power cut leaves of networks: addresses that stay taken, and results of CNI that nobody can read.

CNI had given a sandbox its address, and the runtime had not written down that there is one, so nobody ever ends its
network. What is released was written by a runtime of Kubernetes, for a sandbox that the runtime does not list, and its
network namespace is gone: all are with the boot that made them. Never: the network of anything that may still be on
its way, or of other programs. Blocking.

CNI does not sync its results either, so a power cut leaves empty ones, and by an empty one no network can be ended:
the runtime refuses to stop the sandbox, for ever. Without the file it ends the network from its configuration. An
address whose file is empty names no sandbox. It is given back when it is older than this boot.
"""

import asyncio
import json
import re
import time
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from agent.model.clock import Clock
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

NAME = re.compile(r"(?P<network>.+)-(?P<id>[0-9a-f]{64})-(?P<interface>[^-/]+)\Z")
ADDRESS = re.compile(r"[0-9a-f.:]+\Z")
MARK = "K8S_POD_INFRA_CONTAINER_ID"
# One that is being written is empty for a moment.
SETTLED_S = 60.0
RESULTS = Path("/var/lib/cni/results")
ASIDE = "unreadable"
# For people to look at; each power cut adds some.
MOST_ASIDE = 10
NOBODY = ""


class _Interface(msgspec.Struct):
    sandbox: str = ""


class _Result(msgspec.Struct):
    interfaces: list[_Interface] = []


class _Cached(msgspec.Struct):
    """As libcni keeps it."""

    cni_args: list[list[str]] = msgspec.field(default_factory=list, name="cniArgs")
    result: _Result | None = None


class Lost(msgspec.Struct, frozen=True):
    """What is left of the network of one sandbox."""

    sandbox_id: str
    network: str
    files: tuple[Path, ...]


def lost_networks(
    results: Path, networks: Path, known: Collection[str], wall_s: float, boot_wall_s: float
) -> list[Lost]:
    """`known` are the sandboxes that the runtime lists, whosever they are."""
    found: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    of_kubernetes: set[str] = set()
    for path, network, sandbox_id in _results(results):
        is_ours, is_gone = _judged(path, wall_s)
        of_kubernetes |= {network} if is_ours else set()
        if sandbox_id not in known and is_gone:
            found.setdefault(sandbox_id, []).append(path)
            names[sandbox_id] = network
    for network in sorted(of_kubernetes):
        for path, sandbox_id in _reservations(networks / network):
            is_lost = sandbox_id in found and sandbox_id != NOBODY
            is_old = is_lost or _changed_s(path) < boot_wall_s
            if sandbox_id not in known and is_old:
                found.setdefault(sandbox_id, []).append(path)
                names[sandbox_id] = network
    return [Lost(one, names[one], tuple(files)) for one, files in sorted(found.items()) if names[one] in of_kubernetes]


def release(lost: Lost) -> None:
    """Reservations last, so that a release that is cut short is found again. Raises OSError."""
    for path in lost.files:
        path.unlink(missing_ok=True)


def _results(results: Path) -> Iterator[tuple[Path, str, str]]:
    for path in sorted(results.glob("*")) if results.is_dir() else ():
        match = NAME.match(path.name)
        if match is not None and path.is_file() and not path.is_symlink():
            yield path, match["network"], match["id"]


def _judged(path: Path, wall_s: float) -> tuple[bool, bool]:
    """Whether a runtime of Kubernetes wrote it, and whether its network namespace is gone. An empty one says neither;
    it is of a network that others tell of."""
    try:
        cached = msgspec.json.decode(path.read_bytes(), type=_Cached)
    except (OSError, msgspec.DecodeError, RecursionError):
        return False, wall_s - _changed_s(path) > SETTLED_S
    is_ours = any(one[:1] == [MARK] for one in cached.cni_args)
    places = [one.sandbox for one in cached.result.interfaces if one.sandbox] if cached.result is not None else []
    return is_ours, is_ours and bool(places) and not any(Path(one).exists() for one in places)


def _reservations(network: Path) -> Iterator[tuple[Path, str]]:
    """Of host-local: a file per address, whose first line is the sandbox's id."""
    for path in sorted(network.glob("*")) if network.is_dir() else ():
        if ADDRESS.match(path.name) and path.is_file() and not path.is_symlink():
            with suppress(OSError):
                yield path, path.read_bytes()[:200].decode("utf-8", "replace").split("\n")[0].strip()


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


class LostAddresses:
    def __init__(self, results: Path, clock: Clock) -> None:
        self._results = results
        self._clock = clock
        self._over: set[str] = set()

    async def look(self, sandboxes: Sequence[pb.PodSandbox], *, is_first: bool) -> None:
        """`is_first`: no sandbox of ours can be on its way, so that what is not listed is lost."""
        if not is_first and not self._over:
            return
        listed = {one.id for one in sandboxes}
        if is_first:
            self._over = {one.id for one in sandboxes if one.state != pb.SANDBOX_READY}
            await self._release(listed)
        elif gone := self._over - listed:
            self._over -= gone
            # At the first look nothing that could be read may have said whose network that is.
            await self._release(listed, {*gone, NOBODY})

    async def _release(self, listed: set[str], only: Container[str] | None = None) -> None:
        wall_s = self._clock.wall_s()
        # By the kernel, whatever the clock on the wall was set to since.
        boot_s = wall_s - time.clock_gettime(time.CLOCK_BOOTTIME)
        networks = self._results.parent / "networks"
        for one in await asyncio.to_thread(lost_networks, self._results, networks, listed, wall_s, boot_s):
            if only is not None and one.sandbox_id not in only:
                continue
            try:
                await asyncio.to_thread(release, one)
            except OSError as error:
                log.warning("lost_address_not_released", sandbox=one.sandbox_id, network=one.network, error=str(error))
            else:
                files = [path.name for path in one.files]
                log.info("lost_address_released", sandbox=one.sandbox_id, network=one.network, files=files)


def unreadable_results(results: Path, of: str = "") -> list[Path]:
    """Those that do not parse; `of` is the id of a sandbox."""
    return [path for path in sorted(results.glob(f"*{of}?*")) if path.is_file() and not _parses(path)]


def set_aside(results: Path, sandbox_id: str) -> list[Path]:
    """Move the unreadable ones of a sandbox that is being stopped; answers with their new paths."""
    moved = []
    for path in unreadable_results(results, sandbox_id):
        aside = results.parent / ASIDE
        aside.mkdir(mode=0o700, exist_ok=True)
        moved.append(path.replace(aside / path.name))
    for path in sorted((results.parent / ASIDE).glob("*"), key=_changed_s)[:-MOST_ASIDE] if moved else ():
        path.unlink(missing_ok=True)
    return moved


def _parses(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return isinstance(error, FileNotFoundError)
    return True
