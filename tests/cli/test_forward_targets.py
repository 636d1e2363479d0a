# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl port-forward` to a Service, and to ports by their names."""

from typing import Any

import pytest

from agent.cli.session import CommandFailed
from agent.cli.streams.forward_targets import found_target
from agent.wire.kepd.v1 import pod_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

WEB = pod_pb2.Pod(namespace="default", name="web-n", manifest_name="web", ip="10.0.0.1")
WEB.ports.add(name="http", port=8080)
OTHER = pod_pb2.Pod(namespace="default", name="other-n", manifest_name="other", ip="fd00::2")
SERVICE = pb.Service(namespace="default", name="front", cluster_ips=["10.96.0.1"])
SERVICE.ports.add(name="http", port=80, protocol="TCP")
SERVICE.ports.add(name="admin", port=81, protocol="TCP")


def endpoint(address: str, port: str, state: str = "ready") -> pb.Endpoint:
    return pb.Endpoint(namespace="default", service="front", port=port, endpoint=address, state=state)


class Daemon:
    namespace = ""

    def __init__(self, *endpoints: pb.Endpoint) -> None:
        self.endpoints = endpoints

    def call(self, method: str, request: Any, _answer: object) -> Any:
        match method.rpartition("/")[2]:
            case "ListPods":
                return pod_pb2.ListPodsResponse(pods=[WEB, OTHER])
            case "GetPod":
                return pod_pb2.GetPodResponse(pod=next(one for one in (WEB, OTHER) if one.name == request.name))
            case "ListServices":
                is_meant = request.options.filter == "namespace=default,name=front"
                return pb.ListServicesResponse(services=[SERVICE] if is_meant else [])
            case _:
                return pb.ListEndpointsResponse(endpoints=self.endpoints)


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
