# SPDX-License-Identifier: Apache-2.0
"""Names of Services: told once the rules are in, and taken back before these go (DNS-74).

A name without rules behind it, that of a headless Service or of an ExternalName, is told at once.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec.structs import replace

from agent.dns.handover.state import ServiceName
from agent.dns.run.state_writer import StateWriter
from agent.dns.zones.manifests import service_names
from agent.dns.zones.own import faults
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.nft_table import Family
from agent.model.service import ServiceKey
from agent.services.run.family_sync import FamilySync, SyncReport

log = structlog.get_logger(plane="dns")


class OwnNames:
    """Follows the source of manifests and the syncs of both families, and writes what may be told."""

    def __init__(self, writer: StateWriter, syncs: Mapping[Family, FamilySync], changed: Callable[[], None]) -> None:
        self._writer, self._syncs, self._changed = writer, syncs, changed
        self._wanted: dict[str, ServiceName] = {}
        self._pending: set[str] = set()
        self.findings: dict[str, tuple[str, ...]] = {}

    def offer(
        self, services: Iterable[Service], slices: Iterable[EndpointSlice], pods: Iterable[tuple[str, str]]
    ) -> None:
        wanted: dict[str, ServiceName | None] = {one.key: one for one in service_names(services, slices)}
        if self._writer.set_pods(tuple(sorted(pods))):
            self._changed()
        gone = [*self._writer.services, *self._wanted]
        self.change(dict.fromkeys((one for one in gone if one not in wanted), None) | wanted)
        self._complain()

    def change(self, services: Mapping[str, ServiceName | None]) -> None:
        """Some are as they are given, or gone."""
        has_changed = False
        for key, one in services.items():
            before = self._writer.services.get(key)
            if one is None:
                self._wanted.pop(key, None)
                self._pending.discard(key)
                has_changed |= self._writer.drop(key)
                continue
            self._wanted[key] = one
            if not one.addresses:
                self._pending.discard(key)
                has_changed |= self._writer.put(one)
            elif before != one:
                self._pending.add(key)
                if before is not None:
                    left = tuple(address for address in before.addresses if address in one.addresses)
                    has_changed |= self._writer.put(replace(one, addresses=left))
        if has_changed:
            self._changed()
        self._settle()

    def _complain(self) -> None:
        """DNS-73: once for each name that is none."""
        for key, one in self._wanted.items():
            found = tuple(faults(one))
            if found != self.findings.get(key, ()):
                for text in found:
                    log.warning("dns_name_refused", service=key, problem=text)
                self.findings[key] = found
        self.findings = {key: found for key, found in self.findings.items() if found and key in self._wanted}

    def follow(self, _family: Family, _report: SyncReport) -> None:
        """After every sync that worked."""
        self._settle()

    def _settle(self) -> None:
        told = []
        for key in tuple(self._pending):
            one = self._wanted[key]
            works = tuple(address for address in one.addresses if self._works(key, address))
            if works:
                told.append(replace(one, addresses=works))
            if works == one.addresses:
                self._pending.discard(key)
        if self._writer.put_all(told):
            self._changed()

    def _works(self, key: str, address: str) -> bool:
        """Whether the kernel has rules for that address of the Service."""
        family: Family = "IPv6" if ":" in address else "IPv4"
        sync = self._syncs.get(family)
        service = ServiceKey(*key.split("/", 1))
        if sync is None or not sync.is_written(service):
            return False
        plan = sync.desired.plan_of(service)
        return plan is not None and any(
            way.ip is not None and way.ip.text == address for port in plan.ports for way in port.frontends
        )
