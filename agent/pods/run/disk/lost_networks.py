# SPDX-License-Identifier: Apache-2.0
"""Addresses that a power cut leaves taken: of sandboxes that were being made, which the runtime does not know then.

CNI had given the sandbox its address, and the runtime had not written down that there is one, so nobody ever ends its
network. What is released was written by a runtime of Kubernetes, for a sandbox that the runtime does not list, and its
network namespace is gone: all are with the boot that made them. Never: the network of anything that may still be on
its way, or of other programs. Blocking.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

NAME = re.compile(r"(?P<network>.+)-(?P<id>[0-9a-f]{64})-(?P<interface>[^-/]+)\Z")
ADDRESS = re.compile(r"[0-9a-f.:]+\Z")
MARK = "K8S_POD_INFRA_CONTAINER_ID"
# One that is being written is empty for a moment.
SETTLED_S = 60.0


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
            is_old = sandbox_id in found or _changed_s(path) < boot_wall_s
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
