# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells kepd-dns: settings, names of Services, servers of the cluster zone.

A whole state has a number; each change after it has the next one, on a line of its own. A reader that misses one takes
the whole state again, which is written anew before changes become many.
"""

from collections.abc import Iterable, Mapping

import msgspec

FORMAT = 1
STATE_FILE, CHANGES_FILE, SOCKET_FILE, HOT_FILE = "state.json", "changes.jsonl", "dns.sock", "hot"


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    name: str = ""
    protocol: str = "tcp"


class EndpointName(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address that serves and is told of. `hostname` empty: its dashed address stands for it."""

    address: str
    hostname: str = ""
    ports: tuple[Port, ...] = ()


class ServiceName(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Service as names see it. `addresses` are those of the cluster that work; `endpoints` are of a headless one,
    ready ones alone."""

    namespace: str
    name: str
    addresses: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    is_headless: bool = False
    endpoints: tuple[EndpointName, ...] = ()
    external: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Upstream(msgspec.Struct, frozen=True):
    """A server of the cluster zone, asked by TCP, and why it was chosen."""

    address: str
    port: int = 53
    why: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of the configuration. `zone` is the cluster's, in which names are answered here if `is_authoritative`."""

    zone: str = "cluster.local"
    is_authoritative: bool = False
    has_cluster: bool = False
    addresses: tuple[str, ...] = ()
    reverse_networks: tuple[str, ...] = ()
    stub_domains: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    resolv_conf: str = "/etc/resolv.conf"
    cache_bytes: int = 16 << 20
    stale_s: float = 3600.0
    ttl_min_s: int = 0
    ttl_max_s: int = 0
    negative_max_s: int = 0
    does_prefetch: bool = True
    per_source_qps: int = 5000
    protected_networks: tuple[str, ...] = ()
    """Addresses that other zones may not name."""
    tells_about_itself: bool = False
    cuts_searches: bool = False
    is_negative_below: bool = False
    outlives: bool = False
    """Answers of the cluster zone are kept for an outage of it as others are."""
    is_alone: bool = False
    """No API server answers, so the cluster's DNS may not either."""


class ZoneState(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    number: int
    written_s: float
    settings: Settings
    services: tuple[ServiceName, ...] = ()
    upstreams: tuple[Upstream, ...] = ()
    pods: tuple[tuple[str, str], ...] = ()
    """Namespace and address of each pod of this node."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`put` and `drop` are of one Service; lists replace what there was."""

    number: int
    put: ServiceName | None = None
    drop: str = ""
    upstreams: tuple[Upstream, ...] | None = None
    pods: tuple[tuple[str, str], ...] | None = None


class Gap(Exception):
    """A change is missing, or cannot be read."""


_STATE, _CHANGE = msgspec.json.Decoder(ZoneState), msgspec.json.Decoder(Change)


def read_state(content: bytes) -> ZoneState:
    """Raises ValueError with what is wrong."""
    try:
        state = _STATE.decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if state.format != FORMAT:
        raise ValueError(f"format {state.format}; expected {FORMAT}")
    return state


def read_changes(content: bytes, number: int) -> Iterable[Change]:
    """Those after `number`. A last line without its end is not there yet. Raises Gap."""
    for line in content.split(b"\n")[:-1]:
        try:
            change = _CHANGE.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Gap(str(error)) from error
        if change.number <= number:
            continue
        if change.number != number + 1:
            raise Gap(f"change {number + 1} is missing")
        number = change.number
        yield change


def change_line(change: Change) -> bytes:
    return msgspec.json.encode(change) + b"\n"
