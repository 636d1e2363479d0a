# SPDX-License-Identifier: Apache-2.0
"""Health as load balancers and kubelets ask kube-proxy for it: the exact answers.

Source of behaviour: KEP-3836, KEP-1669.
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec

from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.objects.node_state import NodeSight
from agent.services.routes.frontends import HealthPort

OVERDUE_PERIODS = 2


class HealthAnswer(msgspec.Struct, frozen=True):
    """Status, JSON body, and headers beside those that every answer has."""

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class FamilyHealth(msgspec.Struct, frozen=True):
    """`pending_since_s` None: nothing waits."""

    updated_s: float
    pending_since_s: float | None = None

    def is_healthy(self, now_s: float, period_s: float) -> bool:
        return self.pending_since_s is None or now_s - self.pending_since_s <= OVERDUE_PERIODS * period_s


def is_eligible(sight: NodeSight, drain_taints: Collection[str], *, has_node_object: bool, is_draining: bool) -> bool:
    """Whether load balancers should send anything here. A node without an API server has no object."""
    if is_draining or sight.is_deleted:
        return False
    if has_node_object and not sight.is_known:
        return False
    return not any(taint in drain_taints for taint in sight.taints)


def healthz(
    families: Mapping[Family, FamilyHealth], now_s: float, period_s: float, *, is_node_eligible: bool
) -> HealthAnswer:
    body = _body(families, now_s, period_s)
    is_fine = bool(body["healthy"]) and is_node_eligible
    return _answer(is_fine, {**body, "nodeEligible": is_node_eligible, **_times(families, now_s, is_fine=is_fine)})


def livez(families: Mapping[Family, FamilyHealth], now_s: float, period_s: float) -> HealthAnswer:
    body = _body(families, now_s, period_s)
    is_fine = bool(body["healthy"])
    return _answer(is_fine, {**body, **_times(families, now_s, is_fine=is_fine)})


def service_health(key: ServiceKey, port: HealthPort, *, is_proxy_healthy: bool) -> HealthAnswer:
    """One Service on its own port; the weight stands in the header whatever the status."""
    body = {
        "service": {"namespace": key.namespace, "name": key.name},
        "localEndpoints": port.local_endpoints,
        "serviceProxyHealthy": is_proxy_healthy,
    }
    headers = {"X-Load-Balancing-Endpoint-Weight": str(port.local_endpoints)}
    return _answer(port.local_endpoints > 0 and is_proxy_healthy, body, headers)


def _body(families: Mapping[Family, FamilyHealth], now_s: float, period_s: float) -> dict[str, object]:
    states = {family: one.is_healthy(now_s, period_s) for family, one in families.items()}
    status = {
        family: {"lastUpdated": _time(one.updated_s), "healthy": states[family]} for family, one in families.items()
    }
    return {"healthy": all(states.values()), "status": status}


def _times(families: Mapping[Family, FamilyHealth], now_s: float, *, is_fine: bool) -> dict[str, str]:
    """When all is well, the update is as fresh as the answer: that is what those who ask compare."""
    oldest_s = min((one.updated_s for one in families.values()), default=now_s)
    return {"lastUpdated": _time(now_s if is_fine else oldest_s), "currentTime": _time(now_s)}


def _time(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, UTC).isoformat().replace("+00:00", "Z")


def _answer(is_fine: bool, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> HealthAnswer:
    return HealthAnswer(200 if is_fine else 503, json.dumps(body).encode() + b"\n", headers or {})
