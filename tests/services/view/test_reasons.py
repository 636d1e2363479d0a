# SPDX-License-Identifier: Apache-2.0
"""NU-03: of each everyday fault of a Service the first line has the cause and the objects' words."""

from typing import Any

import pytest

from agent.model.services.service import Backend, PortFacts, ServiceKey
from agent.services.objects.addresses import endpoint_key, read_address
from agent.services.routes.frontends import Frontend, PortPlan
from agent.services.routes.selection import IgnoredHints, Place, Selection
from agent.services.view.reasons import (
    PortSituation,
    SelectedPod,
    SelectedPods,
    ServiceSituation,
    meant,
    service_reasons,
)

PORT = PortFacts("http", "TCP", 80, 0)


def backend(*, is_ready: bool = True, node: str = "n2", zones: tuple[str, ...] = ()) -> Backend:
    address = read_address("10.1.0.1")
    assert address is not None
    return Backend(
        endpoint_key("10.1.0.1", 8080), address.packed + bytes(4), node, is_ready, is_ready, False, zones, ()
    )


def port(selection: Selection, *fronts: Frontend, **fields: Any) -> PortSituation:
    plan = PortPlan(PORT, selection, fronts, 0)
    return PortSituation(**{"family": "IPv4", "plan": plan, "backends": (), **fields})


NONE = Selection((), (), (), has_any=False)
GOOD = backend()
ALL = Selection((GOOD,), None, (GOOD,), has_any=True)


def situation(one: PortSituation | None, **fields: Any) -> ServiceSituation:
    known = {"key": ServiceKey("default", "web"), "place": Place("n1", "a")}
    return ServiceSituation(**{**known, "ports": (one,) if one is not None else (), **fields})


def chosen(*pods: SelectedPod, others: tuple[SelectedPod, ...] = (), target: int | str = 80) -> SelectedPods:
    return SelectedPods(selector={"app": "web"}, targets=[("http", "TCP", target)], chosen=pods, others=others)


IGNORED = Selection((GOOD,), None, (GOOD,), has_any=True, ignored=(IgnoredHints("zone", 0, ""),))
LOCAL = Frontend("nodePort", None, "TCP", 30080, True, "local-host", "drop")
FAULTS = [
    (situation(port(NONE), pods=chosen(others=(SelectedPod(name="wep-n", labels={"app": "wep"}),))),
     "its selector app=web matches no pod of namespace default: wep-n has app=wep", "kepctl get pods --show-labels"),
    (situation(port(NONE), pods=chosen()), "matches no pod of namespace default: there is no pod in it", "kepctl get"),
    (situation(port(NONE), pods=chosen(SelectedPod(name="web-n", cause="its readiness probe fails: 500"))),
     "none of the 1 pods that its selector app=web chooses is ready: web-n: its readiness probe fails: 500",
     "kepctl explain pod web-n"),
    (situation(port(NONE), pods=chosen(SelectedPod(name="web-n", is_ready=True, ports={("web", "TCP"): 80}),
                                       target="http")),
     'no container of its pods has a port named "http" with protocol TCP: web-n has web 80/TCP', "kepctl edit service"),
    (situation(port(NONE), pods=chosen(SelectedPod(name="web-n", is_ready=True))), "no address of IPv4", "kepctl"),
    (situation(port(NONE, backends=(backend(is_ready=False),))), 'none of the 1 endpoints of port "http" is ready',
     "kubectl get endpointslices -n default -l kubernetes.io/service-name=web"),
    (situation(port(NONE, offered=["http/UDP"])), 'has port "http" with protocol TCP: they have http/UDP', "kubectl"),
    (situation(port(NONE)), "no EndpointSlice has an endpoint for it in IPv4", "kubectl"),
    (situation(None, findings=["spec.clusterIP: 10.9.9.9 is in no Service network"]),
     "it is not programmed on this node, so nothing answers at its address: spec.clusterIP: 10.9.9.9", "kepctl edit"),
    (situation(None, whose="another proxy programs it"), "another proxy programs it", "kepctl explain dns web.default"),
    (situation(port(ALL), findings=["nodePort 30080: belongs to default/old"]),
     "a part of it is left out: nodePort 30080: belongs to default/old", "kepctl edit service web"),
    (situation(port(ALL, LOCAL, backends=(GOOD,))), "policy Local forbids others (nodePort): its 1 endpoints are on n2",
     "kepctl get endpoints web"),
    (situation(port(IGNORED, backends=(backend(zones=("b",)),))),
     "none of its zone hints names this zone (a): they name b", "kepctl explain hints default/web"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "first", "helps"), FAULTS, ids=lambda one: str(one)[:30])
def test_the_cause_comes_first_with_words_and_what_helps(at: ServiceSituation, first: str, helps: str) -> None:
    reason = next(service_reasons(at))

    assert first in reason.line
    assert reason.command.startswith(helps)


def test_a_service_that_is_not_there_may_be_one_of_the_same_name_or_of_nearly_that() -> None:
    known = {ServiceKey("shop", "web"), ServiceKey("default", "cart")}

    assert meant(ServiceKey("default", "web"), known) == "; there is shop/web"
    assert meant(ServiceKey("default", "carl"), known) == '; did you mean "default/cart"?'
    assert meant(ServiceKey("default", "elsewhere"), known) == ""


def test_a_service_that_lets_few_in_says_so_and_one_that_is_well_says_nothing() -> None:
    narrow = Frontend("clusterIP", None, "TCP", 80, False, "off-cluster", "", (), True)

    assert [one.cause for one in service_reasons(situation(port(ALL, narrow)))] == [
        "only callers from its source ranges are let in"
    ]
    assert not list(service_reasons(situation(port(ALL))))
