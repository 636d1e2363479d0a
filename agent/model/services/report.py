# SPDX-License-Identifier: Apache-2.0
"""What the services plane tells about itself: Services, endpoints, rules, a packet's way."""

import msgspec

from agent.model.services.service import ServiceKey


class ProgrammedService(msgspec.Struct, frozen=True):
    """A Service that was written to the kernel, and by which sync; the report is made for those who look."""

    key: ServiceKey
    sync: int


class PortReport(msgspec.Struct, frozen=True, kw_only=True):
    """One port in one family. `used` of `total` endpoints get its traffic; `verdict` is there if none does."""

    family: str
    name: str
    protocol: str
    port: int
    node_port: int
    total: int
    used: int
    mode: str
    verdict: str


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    type: str
    cluster_ips: tuple[str, ...] = ()
    external_ips: tuple[str, ...] = ()
    ports: tuple[PortReport, ...] = ()
    affinity_s: int = 0
    policies: str = ""
    findings: tuple[str, ...] = ()
    cause: str = ""
    """Why traffic does not arrive, or not everywhere, in one line; empty where all is well."""
    is_programmed: bool = True
    connections: int = 0
    """New connections that the kernel counted since the ways in were written last."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class EndpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of one port. `reason` says why it is used or not."""

    namespace: str
    service: str
    port: str
    protocol: str
    family: str
    endpoint: str
    node: str
    state: str
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    is_used: bool = False
    is_used_locally: bool = False
    reason: str = ""


class RuleReport(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    map: str
    key: str
    data: str
    service: str = ""
    packets: int = 0


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """An element that differs between what should be and what is. Empty: not there."""

    family: str
    map: str
    key: str
    desired: str
    actual: str


class TraceStep(msgspec.Struct, frozen=True, gc=False):
    place: str
    found: str


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    targets: tuple[str, ...]
    masquerade: str
    steps: tuple[TraceStep, ...]
    service: str = ""
