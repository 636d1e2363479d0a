# SPDX-License-Identifier: Apache-2.0
"""What the kernel's tracking table allows: read, compared, set where it differs. A size is never reduced.

Never: fails: in a container these files are often read-only, which is logged, and a node with its defaults is better
than none.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from agent.config.sections.services import ConntrackSection

log = structlog.get_logger(plane="services")

_MOST_FLOWS = 1_048_576
_FLOWS_PER_BUCKET = 4
_SYSCTLS = Path("proc/sys/net/netfilter")
_BUCKETS = Path("sys/module/nf_conntrack/parameters/hashsize")


class WantedLimit(msgspec.Struct, frozen=True):
    """A value for a sysctl. Sizes are only ever raised."""

    name: str
    value: int
    only_raises: bool = False


def wanted_limits(limits: ConntrackSection, cores: int) -> Iterator[WantedLimit]:
    """The table's size, then the times."""
    if limits.max_per_core:
        flows = max(limits.min, min(limits.max_per_core * cores, _MOST_FLOWS))
        yield WantedLimit("nf_conntrack_max", flows, only_raises=True)
    if limits.tcp_be_liberal:
        yield WantedLimit("nf_conntrack_tcp_be_liberal", 1)
    for name, seconds in (
        ("tcp_timeout_established", limits.tcp_established_timeout),
        ("tcp_timeout_close_wait", limits.tcp_close_wait_timeout),
        ("udp_timeout", limits.udp_timeout),
        ("udp_timeout_stream", limits.udp_stream_timeout),
    ):
        if int(seconds) > 0:
            yield WantedLimit(f"nf_conntrack_{name}", int(seconds))


def apply_limits(limits: ConntrackSection, cores: int, root: Path = Path("/")) -> None:
    """Set what differs, in the network namespace of the calling thread; blocks for some milliseconds at the most."""
    for wanted in wanted_limits(limits, cores):
        _set(root / _SYSCTLS / wanted.name, wanted.value, only_raises=wanted.only_raises)
        if wanted.name == "nf_conntrack_max":
            flows = _read(root / _SYSCTLS / wanted.name)
            _set(root / _BUCKETS, (flows or wanted.value) // _FLOWS_PER_BUCKET, only_raises=True)


def follows_midstream(root: Path = Path("/")) -> bool:
    """Whether a connection whose entry is gone is tracked anew from any packet; true where nobody can tell."""
    return _read(root / _SYSCTLS / "nf_conntrack_tcp_loose") != 0


def _set(path: Path, value: int, *, only_raises: bool) -> None:
    before = _read(path)
    if before is None or before == value or (only_raises and before > value):
        return
    try:
        path.write_text(f"{value}\n", "ascii")
    except OSError as error:
        reason = error.strerror or str(error)
        log.warning("conntrack_limit_kept", file=str(path), value=before, wanted=value, reason=reason)
        return
    log.info("conntrack_limit_set", file=str(path), before=before, value=value)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError) as error:
        log.warning("conntrack_limit_unknown", file=str(path), reason=str(error))
        return None
