# SPDX-License-Identifier: Apache-2.0
"""What people are told: a policy in words, and the policy that lets a packet through or refuses it."""

import json
from dataclasses import replace

import pytest

from agent.api.errors import ApiError
from agent.cli.commands.planes import services
from agent.cli.session import CommandFailed, Session
from agent.config.document import Configuration
from agent.host.compose import reads_policies
from agent.host.joints.manifests import faults_of
from agent.host.plane_checks import PLANE_CHECKS
from agent.kinds.services.networkpolicies import pod_selector
from agent.model.component import State
from agent.model.refused import Refused
from agent.policies.attach.policy_service import PolicyService
from agent.policies.attach.unit import why_off
from agent.wire.kepd.v1 import policy_pb2 as pb
from agent.wire.kepd.v1 import service_proxy_pb2
from tests.policies.running import GivenManifests, GivenPods, node_addresses, running
from tests.policies.test_plane import DB, pod, policy

PODS = (pod("web", "10.0.0.16", ports=(("http", "TCP", 8080),)), pod("db", "10.0.0.17", DB), pod("x", "10.0.0.18", ()))
FROM_DB = {
    "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": "http"}]},
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.8/29"]}}]},
    ]
}


def packet(source: str, target: str, port: int = 8080) -> pb.JudgePacketRequest:
    request = pb.JudgePacketRequest(to=target, port=port, protocol="TCP")
    setattr(request, "from", source)
    return request


async def test_a_policy_is_explained_with_the_addresses_of_its_pods_and_peers() -> None:
    manifests = GivenManifests(policy(**FROM_DB))
    async with running(manifests, GivenPods(*PODS)) as node:
        await node.plane.hold("uid-web")
        answer = await PolicyService(node.plane, node_addresses).explain_policy(pb.ExplainPolicyRequest(name="closed"))

    assert answer.is_in_force
    assert list(answer.lines) == [
        "selects pods of namespace default by app=web: default/web 10.0.0.16",
        "default/web: on no bridge that CNI names, so its source addresses are not held",
        "egress: not limited by this policy",
        "ingress: from pods of namespace default by app=db (default/db 10.0.0.17), TCP http",
        "ingress: from 192.0.2.0/24 without 192.0.2.8/29, every port and protocol",
    ]


@pytest.mark.parametrize(
    ("ends", "is_allowed", "place", "says"),
    [
        (("10.0.0.17", "10.0.0.16"), True, "policies ingress", "allowed by policy default/closed"),
        (("10.0.0.18", "10.0.0.16"), False, "policies ingress", "refused: no rule allows it of default/closed"),
        (("10.0.0.16", "10.0.0.16"), True, "policies ingress", "a pod may always talk to itself"),
        (("10.0.0.1", "10.0.0.16"), True, "policies", "from or to the node itself, which no policy limits"),
        (("10.0.0.16", "10.0.0.18"), True, "policies", "no policy selects sender or receiver"),
    ],
)
async def test_a_packet_is_told_which_policy_lets_it_through_or_refuses_it(
    ends: tuple[str, str], is_allowed: bool, place: str, says: str
) -> None:
    async with running(GivenManifests(policy(**FROM_DB)), GivenPods(*PODS)) as node:
        await node.plane.hold("uid-web")
        answer = await PolicyService(node.plane, node_addresses).judge_packet(packet(*ends))

    assert answer.is_allowed == is_allowed
    assert [(one.place, one.found) for one in answer.steps] == [(place, says)]


async def test_a_policy_that_is_not_here_and_a_packet_that_is_none_are_refused_with_the_reason() -> None:
    async with running(GivenManifests(), GivenPods(), off="no pods run from files in this kepd") as node:
        await node.until(State.READY)
        service = PolicyService(node.plane, node_addresses)
        with pytest.raises(Refused, match="no NetworkPolicy default/none is here"):
            await service.explain_policy(pb.ExplainPolicyRequest(name="none"))
        with pytest.raises(ApiError, match="no pods run"):
            await service.judge_packet(packet("10.0.0.1", "10.0.0.2"))
        node.plane.off = ""
        with pytest.raises(ApiError, match="'x' is no address"):
            await service.judge_packet(packet("x", "10.0.0.2"))
        with pytest.raises(ApiError, match="two addresses of one family"):
            await service.judge_packet(packet("fd00::1", "10.0.0.2"))


def test_a_trace_that_policies_refuse_ends_in_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_session: Session, _method: str, request: pb.JudgePacketRequest, _kind: object) -> pb.JudgePacketResponse:
        assert (request.to, request.port) == ("10.0.0.16", 8080)
        steps = [pb.PolicyStep(place="policies ingress", found="refused")]
        return pb.JudgePacketResponse(is_allowed=False, steps=steps)

    monkeypatch.setattr(services, "ask", ask)
    answer = service_proxy_pb2.TracePacketResponse(verdict="dnat", targets=["10.0.0.16:8080"])
    services.add_policies(Session(), answer, "10.0.0.18", "10.96.0.1:80", "TCP")

    assert answer.verdict == "drop"
    assert [(one.place, one.found) for one in answer.steps] == [("policies ingress", "refused")]


def test_a_trace_without_the_plane_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise CommandFailed("policies is off")

    monkeypatch.setattr(services, "ask", ask)
    answer = service_proxy_pb2.TracePacketResponse(verdict="pass")
    services.add_policies(Session(), answer, "fd00::1", "[fd00::2]:80", "TCP")

    assert (answer.verdict, len(answer.steps)) == ("pass", 0)


@pytest.mark.parametrize(
    ("selector", "shown"),
    [
        ({}, "<none>"),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}, "a in (x,y)"),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a"),
    ],
)
def test_a_pod_selector_is_shown_as_kubectl_does(selector: dict[str, object], shown: str) -> None:
    assert pod_selector({"spec": {"podSelector": selector}}) == shown


BESIDE = replace(Configuration(), pods=replace(Configuration().pods, enabled=False))


def test_beside_a_cluster_policies_are_refused_and_the_key_says_why() -> None:
    """POL-10."""
    content = json.dumps(policy()).encode()
    (finding,) = faults_of(content, BESIDE)
    (of_key,) = (one for check in PLANE_CHECKS for one in check(BESIDE, frozenset({"policies.enabled"})))

    assert "is not enforced here: no pods run from files in this kepd; beside a cluster its CNI plugin" in str(finding)
    assert of_key.path == "policies.enabled"
    assert "its CNI plugin enforces NetworkPolicies" in of_key.text
    assert faults_of(content, Configuration()) == []


def test_where_manifests_are_read_somebody_says_that_policies_do_nothing() -> None:
    """POL-10."""
    with_services = replace(BESIDE, services=replace(BESIDE.services, source="manifests"))

    assert reads_policies(with_services, frozenset({"services"}))
    assert not reads_policies(BESIDE, frozenset({"services"}))
    assert why_off(replace(Configuration(), policies=replace(Configuration().policies, enabled=False)))
