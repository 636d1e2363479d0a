# SPDX-License-Identifier: Apache-2.0
"""Counts the service ports whose local traffic finds no endpoint, as plans change.

Never: walks all Services; the caller names those that changed.
"""

from collections import Counter
from collections.abc import Mapping

from agent.model.services.service import ServiceKey
from agent.services.routes.frontends import PortPlan, ServicePlan


class Tally:
    """Services without such a port take no place here."""

    def __init__(self) -> None:
        self.ports: Counter[str] = Counter(internal=0, external=0)
        self._of: dict[ServiceKey, Counter[str]] = {}

    def follow(self, changed: Mapping[ServiceKey, ServicePlan | None]) -> None:
        for key, plan in changed.items():
            before = self._of.pop(key, None)
            if before is not None:
                self.ports.subtract(before)
            found = Counter([policy for port in plan.ports for policy in _without_local(port)]) if plan else None
            if found:
                self._of[key] = found
                self.ports.update(found)


def _without_local(port: PortPlan) -> set[str]:
    """Policies by which this port would have to find an endpoint here, while there are some elsewhere."""
    if not port.selection.has_any or port.selection.local:
        return set()
    return {
        "internal" if frontend.kind == "clusterIP" else "external"
        for frontend in port.frontends
        if frontend.is_local_policy
    }
