# SPDX-License-Identifier: Apache-2.0
"""Folds what the sources report into one state: Services, the slices of each, and which Services changed.

Slices come in any order, before or after their Service, and move between Services; a change that ends where it began is
none. Each follower (one per family) has a set of keys of its own to empty. Never: reacts to a single slice: a Service
is looked at as a whole or not at all.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from agent.model.finding import Finding
from agent.model.services.nft_table import Family
from agent.model.services.service import Backend, PortFacts, PortKey, ServiceFacts, ServiceKey, SliceFacts
from agent.services.objects.merged import LEAST_FOLLOWED, Endpoints, Merged, Parts, SlicePorts, kept
from agent.services.objects.reading_service import ReadService
from agent.services.objects.reading_slice import ReadSlice
from agent.services.routes.selection import merge

SliceKey = tuple[str, str]
Findings = tuple[Finding, ...]


class ServiceIndex:
    """Changed by the put and drop methods alone, which the plane's source task calls."""

    def __init__(self) -> None:
        self.services: dict[ServiceKey, ServiceFacts] = {}
        self.refused: dict[ServiceKey, Findings] = {}
        """Services that cannot be programmed, with the reasons."""
        self.others: dict[ServiceKey, str] = {}
        """Services that are not for us, with the reason."""
        self.by_labels: set[ServiceKey] = set()
        """Services that choose endpoints by the labels of nodes."""
        self.label_uses: Counter[str] = Counter()
        """How many Services name each of these labels."""
        self.service_changes = 0
        self.slice_changes = 0
        """How often anything was told, whether it differed or not."""
        self._slices: dict[SliceKey, SliceFacts] = {}
        self._of_service: dict[ServiceKey, dict[str, SliceFacts]] = {}
        self._merged: dict[ServiceKey, dict[tuple[Family, PortKey], Merged]] = {}
        """Of service ports with many endpoints that were asked for."""
        self._ports: dict[SliceKey, SlicePorts] = {}
        """Of slices with several ports that a Service asked for."""
        self._followers: list[set[ServiceKey]] = []

    def __repr__(self) -> str:
        return f"Fold({len(self.services)} services, {len(self._slices)} slices)"

    def follow(self) -> set[ServiceKey]:
        """A set that gets the key of every Service that changes from now on, and of all there are."""
        changed = {*self.services, *self._of_service}
        self._followers.append(changed)
        return changed

    def put_service(self, item: ReadService) -> None:
        """A new or changed Service, also one that is not for us, or no longer."""
        self.service_changes += 1
        key, facts, findings = item.key, item.facts, item.findings
        if facts is None and findings:
            self.refused[key] = findings
        else:
            self.refused.pop(key, None)
        if item.whose:
            self.others[key] = item.whose
        else:
            self.others.pop(key, None)
        if facts is None:
            self._forget(key)
        elif self.services.get(key) != facts:
            self._forget(key)
            self.services[key] = facts
            if facts.options.topology_keys:
                self.by_labels.add(key)
                self.label_uses.update(facts.options.topology_keys)
            self._touch(key)

    def drop_service(self, key: ServiceKey) -> None:
        self.service_changes += 1
        self.refused.pop(key, None)
        self.others.pop(key, None)
        self._forget(key)

    def _forget(self, key: ServiceKey) -> None:
        before = self.services.pop(key, None)
        self._merged.pop(key, None)
        if before is None:
            return
        self._touch(key)
        self.by_labels.discard(key)
        for label in before.options.topology_keys:
            self.label_uses[label] -= 1
            if not self.label_uses[label]:
                del self.label_uses[label]

    def put_slice(self, item: ReadSlice) -> None:
        """A new or changed slice; its Service may be another one than before."""
        self.slice_changes += 1
        facts, key = item.facts, (item.namespace, item.name)
        if facts is None:
            self._drop_slice(key)
            return
        before = self._slices.get(key)
        if before == facts:
            return
        if before is not None and before.service != facts.service:
            self._drop_slice(key)
        if before is not None and before.ports[:1] == facts.ports[:1]:
            facts = replace(facts, endpoints=kept(before.endpoints, facts.endpoints))
        self._slices[key] = facts
        self._of_service.setdefault(facts.service, {})[facts.name] = facts
        if (pairs := self._ports.pop(key, None)) is not None:
            self._ports_of(facts).take_over(pairs)
        self._touch(facts.service)

    def drop_slice(self, namespace: str, name: str) -> None:
        self.slice_changes += 1
        self._drop_slice((namespace, name))

    def _drop_slice(self, key: SliceKey) -> None:
        facts = self._slices.pop(key, None)
        if facts is None:
            return
        self._ports.pop(key, None)
        slices = self._of_service[facts.service]
        del slices[facts.name]
        if not slices:
            del self._of_service[facts.service]
            self._merged.pop(facts.service, None)
        self._touch(facts.service)

    def _touch(self, key: ServiceKey) -> None:
        for follower in self._followers:
            follower.add(key)

    @property
    def all_slices(self) -> list[SliceFacts]:
        return list(self._slices.values())

    @property
    def slice_keys(self) -> list[SliceKey]:
        return list(self._slices)

    def slice_of(self, namespace: str, name: str) -> SliceFacts | None:
        return self._slices.get((namespace, name))

    def slices(self, key: ServiceKey, family: Family) -> list[SliceFacts]:
        slices: Mapping[str, SliceFacts] = self._of_service.get(key, {})
        return [slices[name] for name in sorted(slices) if slices[name].family == family]

    def _ports_of(self, facts: SliceFacts) -> SlicePorts:
        key = (facts.service.namespace, facts.name)
        if key not in self._ports:
            self._ports[key] = SlicePorts(facts)
        return self._ports[key]

    def backends(self, key: ServiceKey, family: Family, port: PortKey) -> tuple[Backend, ...]:
        return self.endpoints(key, family, port).whole

    def endpoints(self, key: ServiceKey, family: Family, port: PortKey) -> Endpoints:
        found: list[tuple[Backend, ...]] = []
        for one in self.slices(key, family):
            if len(one.ports) > 1:
                found += self._ports_of(one).backends(port)
            elif one.ports and one.ports[0][0] == port:
                found.append(one.endpoints)
        return self._merge(key, (family, port), found)

    def _merge(self, key: ServiceKey, which: tuple[Family, PortKey], parts: Parts) -> Endpoints:
        had = self._merged.get(key, {}).pop(which, None)
        many = had.follow(parts) if had is not None else None
        if many is None:
            whole = merge(parts)
            if len(whole) < LEAST_FOLLOWED:
                return Endpoints(whole)
            many = Merged(parts, whole)
        self._merged.setdefault(key, {})[which] = many
        return Endpoints(many.whole, many)

    def pairs(self, service: ServiceFacts, family: Family) -> list[int]:
        """How many endpoints each of its ports has."""
        slices = [one for one in self._of_service.get(service.key, {}).values() if one.family == family]
        return [sum([self._count(one, port) for one in slices]) for port in service.ports]

    def _count(self, facts: SliceFacts, port: PortFacts) -> int:
        if len(facts.ports) > 1:
            return len(facts.endpoints) * len(self._ports_of(facts).numbers(port.key))
        return len(facts.endpoints) if facts.ports and facts.ports[0][0] == (port.name, port.protocol) else 0
