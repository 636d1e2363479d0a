# SPDX-License-Identifier: Apache-2.0
"""Names of Services beside a cluster, where kepd is to answer those that it knows (DNS-77).

It watches Services for their rules anyway. Those without an address of the cluster stay with the cluster's DNS, since
kepd does not watch the pods behind them. Each change costs what changed.
"""

from collections.abc import Callable, Collection

from agent.dns.handover.state import Port, ServiceName
from agent.host.joints.dns_services import OwnNames
from agent.model.nft_table import Family
from agent.model.service import ServiceFacts, ServiceKey
from agent.services.objects.fold import Fold


class ClusterNames:
    """`is_wanted` says whether the configuration wants it now."""

    def __init__(
        self, names: OwnNames, fold: Fold, families: Collection[Family], is_wanted: Callable[[], bool]
    ) -> None:
        self._names, self._fold, self._families, self._is_wanted = names, fold, families, is_wanted
        self._changed: set[ServiceKey] | None = None

    def follow(self) -> None:
        """After every sync, and when the configuration is another one."""
        if not self._is_wanted():
            return
        if self._changed is None:
            self._changed = self._fold.follow()
        keys = tuple(self._changed)
        self._changed.clear()
        self._names.change({f"{key.namespace}/{key.name}": self._name_of(key) for key in keys})

    def _name_of(self, key: ServiceKey) -> ServiceName | None:
        facts: ServiceFacts | None = self._fold.services.get(key)
        if facts is None:
            return None
        parts = [facts.part(family) for family in self._families]
        addresses = tuple(part.cluster_ip.text for part in parts if part is not None)
        ports = tuple(Port(one.port, one.name, one.protocol.lower()) for one in facts.ports)
        return ServiceName(key.namespace, key.name, addresses, ports) if addresses else None
