# SPDX-License-Identifier: Apache-2.0
"""NU-03: everyday faults of Services on a bare node; each command names the cause, with what the objects say.

A name that DNS does not have is asked for in packages/dns/tests/node/test_dns_names.py.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.lab import Lab
from tests.node.test_faults import Bad, Node, check, daemon_of

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

KEYS = (
    "services: {healthzAddress: '', conntrack: {maxPerCore: 0}, serviceCIDRs: [10.96.0.0/16],"
    " externalIPs: [192.0.2.0/24, 10.96.0.0/16]}\n"
)
OF_NODE = "labels: {topology.kubernetes.io/zone: here}, addresses: [192.168.77.1], "
LABEL = "service.kubernetes.io/service-proxy-name"


def wrong(name: str, spec: str, line: str, then: str, helps: str) -> Bad:
    """`MORE` has what is not of its spec."""
    return Bad(name, "", line, then, helps, spec)


READY, EDIT = "is used as soon as it is ready", "kepctl edit service"
LEFT_OUT, REST = "a part of it is left out", "the rest of it"
SERVICES = (
    wrong("lost", "selector: {app: wep}", "its selector app=wep matches no pod of namespace default: .*web has app=web",
          READY, "kepctl get pods --show-labels"),
    wrong("unready", "selector: {app: sick}", "none of the 1 pods that its selector app=sick chooses is ready: "
          r"sick: .* is not ready: its readiness probe fails \(exec false\)", READY, "kepctl explain pod sick"),
    wrong("port-unknown", "selector: {app: web}, ports: [{port: 80, targetPort: none}]",
          'no container of its pods has a port named "none" with protocol TCP: web has http 8080/TCP', "", EDIT),
    wrong("protocol-wrong", "selector: {app: web}, ports: [{port: 80, targetPort: http, protocol: UDP}]",
          'no container of its pods has a port named "http" with protocol UDP: web has http 8080/TCP', "", EDIT),
    wrong("taken", "selector: {app: web}, clusterIP: 10.96.0.50", "10.96.0.50:80/TCP: belongs to default/fine", "",
          EDIT),
    wrong("outside", "selector: {app: web}, externalIPs: [198.51.100.1]",
          f"{LEFT_OUT}: spec.externalIPs: 198.51.100.1 is outside of services.externalIPs", REST, EDIT),
    wrong("used", "selector: {app: web}, externalIPs: [10.96.0.50]",
          f"{LEFT_OUT}: spec.externalIPs: 10.96.0.50 is the cluster IP of default/(fine|taken)", REST, EDIT),
    wrong("port-taken", "selector: {app: web}, type: NodePort, ports: [{port: 80, targetPort: 8080, nodePort: 30500}]",
          rf"{LEFT_OUT}: nodePort \*:30500/TCP: belongs to default/fine", REST, EDIT),
    wrong("local", "type: NodePort, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30501}]",
          r"no endpoint of port 80/TCP is on this node, and its policy Local forbids others \(nodePort\): .*on n2", "",
          "kepctl get endpoints local"),
    wrong("hinted", "", r"none of its zone hints names this zone \(here\): they name there", "all its endpoints",
          "kepctl explain hints default/hinted"),
    wrong("narrow", "type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]",
          "only callers from its source ranges are let in: 192.0.2.0/24", "others get no answer", "kepctl trace"),
    wrong("foreign", "", f"its label {LABEL} is 'mesh', and .*: another proxy programs it", "", "kepctl explain dns"),
)  # fmt: skip
MORE: dict[str, Any] = {
    "foreign": {"metadata": {"name": "foreign", "labels": {LABEL: "mesh"}}},
    "narrow": {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}},
}
SLICED = ("local", "hinted", "narrow")
FINE = f"{next(one.spec for one in SERVICES if one.name == 'port-taken')}, clusterIP: 10.96.0.50"


def service(name: str, spec: str) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    given = yaml.safe_load(f"{{{spec}}}")
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": ports, **given}, **MORE.get(name, {}),
    }  # fmt: skip


def elsewhere(name: str) -> dict[str, Any]:
    """An endpoint on another node, in another zone."""
    hints = {"hints": {"forZones": [{"name": "there"}]}} if name == "hinted" else {}
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-1", "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.2.0.9"], "nodeName": "n2", **hints}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with daemon_of(lab, tmp_path_factory.mktemp("s"), KEYS, OF_NODE) as daemon:
        made = Node(daemon, lab)
        for name, probe in (("web", "tcpSocket: {port: http}"), ("sick", "exec: {command: ['false']}")):
            fields = f"command: [httpd, -f, -p, '8080'], readinessProbe: {{{probe}, periodSeconds: 1}}"
            pod = Bad(name, f"{fields}, ports: [{{name: http, containerPort: 8080}}]", "", "", "").pod(made.image)
            pod["metadata"]["labels"] = {"app": name}
            made.put(name, pod)
        made.put("a-fine", service("fine", FINE))
        for one in SERVICES:
            made.put(
                f"service-{one.name}", service(one.name, one.spec), *([elsewhere(one.name)] * (one.name in SLICED))
            )
        daemon.start("--planes", "pods,services,images")
        daemon.wait(lambda: re.search(r"fine .* 1/1 ", made.shown("get", "services")), "one is served")
        yield made
    lab.netns.run(["nft", "flush", "ruleset"])


@pytest.mark.parametrize("bad", SERVICES, ids=lambda one: one.name)
def test_the_commands_name_the_cause(node: Node, bad: Bad) -> None:
    # What another proxy programs is in no list here.
    check(node, "service", bad.name, bad, is_listed=bad.name != "foreign")
    assert re.search(f"^ROUTE default/{bad.name}: .*{bad.line}", node.shown("explain", "route", bad.name))


def test_a_service_that_is_not_there_is_told_with_the_one_that_is_meant(node: Node) -> None:
    assert 'did you mean "default/fine"' in node.kepd.ctl("explain", "service", "fime").stderr
    assert json.loads(node.shown("explain", "service", "fine", "-o", "json")).get("reasons") is None
