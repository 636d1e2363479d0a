# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl port-forward` to a Service, and to ports by their names."""

from typing import Any

import pytest

from agent.cli.session import CommandFailed
from agent.cli.streams.forward_targets import found_target
from agent.kinds.kube_shape import slice_objects
from agent.kinds.own_shape import own_object
from agent.kinds.table import Object
from agent.model.services.report import EndpointReport
from tests.cli.shown import answered


def pod(name: str, address: str, *ports: tuple[str, int]) -> Object:
    named = [{"name": port, "containerPort": number} for port, number in ports]
    return {
        "metadata": {"namespace": "default", "name": f"{name}-n"},
        "spec": {"containers": [{"name": "main", "ports": named}]},
        "status": {"podIP": address},
        "kepd": {"manifestName": name},
    }


WEB, OTHER = pod("web", "10.0.0.1", ("http", 8080)), pod("other", "fd00::2")
PORTS = [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "admin", "port": 81, "protocol": "TCP"}]
SERVICE = {"metadata": {"namespace": "default", "name": "front"}, "kepd": {"ports": PORTS}}


def endpoint(address: str, port: str, state: str = "ready") -> EndpointReport:
    return EndpointReport(
        namespace="default", service="front", port=port, protocol="TCP", family="IPv4", endpoint=address, node="",
        state=state,
    )  # fmt: skip


class Daemon:
    namespace = ""

    def __init__(self, *endpoints: EndpointReport) -> None:
        made = [own_object("Endpoint", "front", one, namespace="default") for one in endpoints]
        self.slices = [one for one, _ in slice_objects(made)]

    def call(self, method: str, request: Any, _answer: object) -> Any:
        return answered(method, request, {"pods": [WEB, OTHER], "services": [SERVICE], "endpoints": self.slices})


READY = (endpoint("10.0.9.9:8080", "http"), endpoint("10.0.0.1:8080", "http"), endpoint("10.0.0.1:9090", "admin"))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("web", "80"), ("web-n", [(80, 80)])),
        (("pod/web", "8000:http", ":http", "http"), ("web-n", [(8000, 8080), (0, 8080), (0, 8080)])),
        (("svc/front", "80"), ("web-n", [(80, 8080)])),
        (("service/default/front", "9000:admin", ":80"), ("web-n", [(9000, 9090), (0, 8080)])),
    ],
)
def test_ports_lead_to_those_of_a_pod(words: tuple[str, ...], found: tuple[str, list[tuple[int, int]]]) -> None:
    assert found_target(Daemon(*READY), words[0], words[1:]) == ("default", *found)  # type: ignore[arg-type]


def test_a_service_leads_to_a_ready_pod_of_either_family() -> None:
    endpoints = (endpoint("10.0.0.1:8080", "http", "not ready"), endpoint("[fd00::2]:8080", "http"))

    assert found_target(Daemon(*endpoints), "svc/front", ["80"])[1] == "other-n"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("web", "https"), 'pod web-n has no port "https"; it has http'),
        (("other", "http"), "none of its ports has a name"),
        (("web", ":99999"), "expected a number from 1 to 65535"),
        (("web", "99999:80"), "up to 65535"),
        (("web", "80:"), "expected PORT, LOCAL:PORT or :PORT"),
        (("svc/front", "82"), 'has no port "82"; it has admin (81), http (80)'),
        (("svc/none", "80"), 'no Service "default/none"'),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        found_target(Daemon(*READY), words[0], words[1:])  # type: ignore[arg-type]

    assert text in str(failed.value)


def test_a_service_without_a_pod_here_says_so() -> None:
    with pytest.raises(CommandFailed, match="has no ready endpoint in a pod of this node"):
        found_target(Daemon(endpoint("10.0.9.9:80", "http")), "svc/front", ["80"])  # type: ignore[arg-type]
