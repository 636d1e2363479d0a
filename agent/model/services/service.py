# SPDX-License-Identifier: Apache-2.0
"""A Service and its backends, read and checked: what the services plane keeps of the API's objects.

Texts that repeat (node and zone names, port names) are shared by whoever makes the values.
Never: holds anything that no rule reads; ten thousand of each have to fit in little memory.
"""

from typing import Literal, NamedTuple

import msgspec

from agent.model.services.nft_table import Family, Hashing

Protocol = Literal["TCP", "UDP", "SCTP"]
NEVER = -1
"""In place of seconds: it does not happen."""


class ServiceKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PortKey(NamedTuple):
    """How endpoints find their port: by name and protocol, never by number."""

    name: str
    protocol: Protocol


class Address(NamedTuple):
    """`text` is canonical, `packed` what the kernel compares."""

    family: Family
    text: str
    packed: bytes


class Range(NamedTuple):
    """A CIDR as its first and last address. `text` has the host bits cleared."""

    family: Family
    text: str
    first: bytes
    last: bytes
    prefix: int


class PortFacts(msgspec.Struct, frozen=True, gc=False):
    """One port. `node_port` 0: none."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0

    @property
    def key(self) -> PortKey:
        return PortKey(self.name, self.protocol)


class FamilyPart(msgspec.Struct, frozen=True, gc=False):
    """What a Service has in one family. No `source_ranges`: everybody may."""

    cluster_ip: Address
    external_ips: tuple[Address, ...] = ()
    balancer_ips: tuple[Address, ...] = ()
    source_ranges: tuple[Range, ...] = ()
    is_closed: bool = False
    """There are source ranges, but none that can be read, and such a Service shall let nobody in."""
    aliases: tuple[Address, ...] = ()
    """Addresses of this node that lead to the Service's DNS where kepd-dns does not answer."""


class ServiceOptions(msgspec.Struct, frozen=True, gc=False):
    """The annotations `kepd.dev/…`, checked. Empty: not asked for."""

    topology_keys: tuple[str, ...] = ()
    min_endpoints: int = 1
    weights: tuple[tuple[str, int], ...] = ()
    no_local_rejects: bool = False
    passes_when_empty: bool = False
    uses_unready: bool = False
    """Where no endpoint is ready, all get traffic that are not on their way out."""
    affinity_clients: int = 0
    hashing: Hashing = ""
    has_ranges_everywhere: bool = False
    """Source ranges hold for node ports and external IPs too."""
    ends_after_s: int | None = None
    """When connections to an endpoint end that is gone; None: as the node does."""


DEFAULT_OPTIONS = ServiceOptions()


class ServiceFacts(msgspec.Struct, frozen=True, gc=False):
    """A Service that is to be programmed. `created` sorts as text, as RFC 3339 in UTC does."""

    key: ServiceKey
    type: str
    ports: tuple[PortFacts, ...]
    v4: FamilyPart | None = None
    v6: FamilyPart | None = None
    is_external_local: bool = False
    is_internal_local: bool = False
    affinity_s: int = 0
    health_port: int = 0
    created: str = ""
    uid: str = ""
    options: ServiceOptions = DEFAULT_OPTIONS

    def part(self, family: Family) -> FamilyPart | None:
        return self.v4 if family == "IPv4" else self.v6


class Backend(msgspec.Struct, frozen=True, gc=False):
    """One address and port that may serve one service port. `key` is `ip:port`; `data` the same as the kernel has it.
    `zones` and `nodes` are hints; absent and empty are one."""

    key: str
    data: bytes
    node: str = ""
    is_ready: bool = True
    is_serving: bool = True
    is_terminating: bool = False
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return self.key.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.key.rpartition(":")[2])


class SliceFacts(msgspec.Struct, frozen=True, gc=False):
    """An EndpointSlice: its ports, and its endpoints once, with the number of the first port. What serves another port
    is made where a Service has that port: a slice may have thousands of ports that none has. `triggered` is when the
    change began that it tells of."""

    service: ServiceKey
    name: str
    family: Family
    ports: tuple[tuple[PortKey, int], ...]
    endpoints: tuple[Backend, ...]
    triggered: str = ""
