# SPDX-License-Identifier: Apache-2.0
"""Health as load balancers and kubelets ask for it."""

import json

from agent.model.services.service import ServiceKey
from agent.services.objects.node_state import NodeSight
from agent.services.routes.frontends import HealthPort
from agent.services.view.health import FamilyHealth, HealthAnswer, healthz, is_eligible, livez, service_health

NOW_S = 1_800_000_000.0
FINE = {"IPv4": FamilyHealth(NOW_S - 500), "IPv6": FamilyHealth(NOW_S - 500, NOW_S - 60)}
LATE = {"IPv4": FamilyHealth(NOW_S - 500), "IPv6": FamilyHealth(NOW_S - 500, NOW_S - 61)}
TAINTS = ("ToBeDeletedByClusterAutoscaler",)


def body(answer: HealthAnswer) -> dict:
    return json.loads(answer.body)


def test_a_change_that_waits_for_two_periods_is_unhealthy() -> None:
    """HL-2: nothing that waits is healthy, whatever its age."""
    fine, late = healthz(FINE, NOW_S, 30.0, is_node_eligible=True), healthz(LATE, NOW_S, 30.0, is_node_eligible=True)

    assert (fine.status, late.status) == (200, 503)
    assert body(fine)["lastUpdated"] == body(fine)["currentTime"] == "2027-01-15T08:00:00Z"
    assert body(late)["lastUpdated"] == "2027-01-15T07:51:40Z"
    assert body(fine)["status"]["IPv6"] == {"lastUpdated": "2027-01-15T07:51:40Z", "healthy": True}
    assert body(late)["status"]["IPv4"]["healthy"]
    assert not body(late)["status"]["IPv6"]["healthy"]


def test_a_node_that_is_about_to_go_is_alive_but_not_eligible() -> None:
    """HL-3, KEP-3836."""
    alive, ready = livez(FINE, NOW_S, 30.0), healthz(FINE, NOW_S, 30.0, is_node_eligible=False)

    assert (alive.status, ready.status) == (200, 503)
    assert "nodeEligible" not in body(alive)
    assert body(ready)["nodeEligible"] is False


def eligible(sight: NodeSight, *, has_node_object: bool = True, is_draining: bool = False) -> bool:
    return is_eligible(sight, TAINTS, has_node_object=has_node_object, is_draining=is_draining)


def test_what_makes_a_node_ineligible() -> None:
    assert eligible(NodeSight(is_known=True, taints=("other",)))
    assert not eligible(NodeSight(is_known=True, taints=TAINTS))
    assert not eligible(NodeSight(is_known=True, is_deleted=True))
    assert not eligible(NodeSight())
    assert not eligible(NodeSight(is_known=True), is_draining=True)
    assert eligible(NodeSight(), has_node_object=False)


def test_a_service_tells_how_many_it_has_whatever_the_status() -> None:
    """HL-1, HL-4."""
    key = ServiceKey("shop", "web")
    two, none = (service_health(key, HealthPort(32000, count), is_proxy_healthy=True) for count in (2, 0))

    assert (two.status, none.status) == (200, 503)
    assert [one.headers["X-Load-Balancing-Endpoint-Weight"] for one in (two, none)] == ["2", "0"]
    assert body(two)["service"] == {"namespace": "shop", "name": "web"}
    assert service_health(key, HealthPort(1, 2), is_proxy_healthy=False).status == 503
