# SPDX-License-Identifier: Apache-2.0
"""Decides of each object of an API server whether there is memory for it, before it is kept.

Where there is none, an object leaves nothing but a finding. A namespace has the same share as in bounds.py, which plans
what becomes of the Services that are kept.
"""

from collections import Counter
from collections.abc import Collection

from agent.model.finding import Finding
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.service import ServiceKey
from agent.services.objects.bounds import MOST_ELEMENTS, RESERVE, share_of, subtract

ENTRIES = 1.5
"""For each of the elements that there may be."""
OBJECT_ENTRIES, ADDRESS_ENTRIES, WEIGHT_LENGTH = 6, 4, 16


class ServiceRoom:
    """What is kept of each object that an API server has, in entries of some 200 bytes. Who asks first gets room, as no
    more than one object is in memory before it is asked for."""

    def __init__(self) -> None:
        self.most = most_entries(MOST_ELEMENTS)
        self.is_short = False
        """Whether there was an object that is not kept."""
        self._kept: dict[tuple[str, ServiceKey], int] = {}
        self._of_namespace: Counter[str] = Counter()
        self.total = 0

    def takes(self, kind: str, key: ServiceKey, entries: int) -> bool:
        most = self.most + (self.most // RESERVE if (kind, key) in self._kept else 0)
        self.drop(kind, key)
        if entries > min(most - self.total, share_of(self.most) - self._of_namespace[key.namespace]):
            self.is_short = True
            return False
        self._kept[kind, key] = entries
        self._of_namespace[key.namespace] += entries
        self.total += entries
        return True

    def drop(self, kind: str, key: ServiceKey) -> None:
        entries = self._kept.pop((kind, key), 0)
        self.total -= entries
        subtract(self._of_namespace, key, entries)

    def keep_only(self, kind: str, present: Collection[tuple[str, str]]) -> None:
        for gone in [key for of, key in self._kept if of == kind and key not in present]:
            self.drop(kind, gone)

    def refusal(self, kind: str, key: ServiceKey) -> Finding:
        text = (
            f"finds no room: objects of namespace {key.namespace} have {self._of_namespace[key.namespace]} of at most "
            f"{share_of(self.most)} entries, all together {self.total} of {self.most} (services.elementsMax); what "
            "is kept stays; it is looked at again when there is room"
        )
        return Finding(f"{kind} {key}", "", text)


def most_entries(elements: int) -> int:
    return int(ENTRIES * elements)


def service_entries(item: Service) -> int:
    spec, ingress, notes = item.spec, item.status.load_balancer.ingress or (), item.metadata.annotations
    addresses = len(spec.external_ips or ()) + len(ingress) + len(spec.load_balancer_source_ranges or ())
    weights = len(notes.endpoint_weights or "") if notes is not None else 0
    return OBJECT_ENTRIES + len(spec.ports or ()) + ADDRESS_ENTRIES * addresses + weights // WEIGHT_LENGTH


def slice_entries(item: EndpointSlice) -> int:
    return OBJECT_ENTRIES + len(item.endpoints or ()) + len(item.ports or ())
