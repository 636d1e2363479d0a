# SPDX-License-Identifier: Apache-2.0
"""PolicyService: what a policy means now, and what policies say of a packet."""

from ipaddress import ip_address

from google.rpc import code_pb2

from agent.api.errors import ApiError, FailureReason, invalid
from agent.model.finding import shown
from agent.model.refused import Refused
from agent.policies.manifest.faults import MOST_PORT, PROTOCOLS
from agent.policies.manifest.objects import DIRECTIONS, KIND
from agent.policies.ports import NodeAddresses
from agent.policies.rules.judging import Packet
from agent.policies.run.plane import PolicyPlane
from agent.policies.view.explained import policy_lines, traced
from agent.wire.kepd.v1 import policy_pb2 as pb


class PolicyService:
    def __init__(self, plane: PolicyPlane, node: NodeAddresses) -> None:
        self._plane, self._node = plane, node

    async def explain_policy(self, request: pb.ExplainPolicyRequest) -> pb.ExplainPolicyResponse:
        plane, key = self._plane, f"{request.namespace or 'default'}/{request.name}"
        policy = plane.objects.policies.get(key)
        if policy is None:
            faults = [str(one) for one in plane.objects.findings if request.name in str(one)]
            more = f"; manifests with faults: {'; '.join(faults[:3])}" if faults else ""
            raise Refused("not_found", f"no {KIND} {key} is here{more}")
        aside = f"it {text}" if (text := plane.asides.sentences().get(key)) else ""
        why_not = (
            plane.off or plane.problem or aside or ("" if plane.builder.policy(key) else "it is not in the kernel yet")
        )
        lines = [
            *policy_lines(policy, plane.pods, why_not),
            *filter(None, [plane.bridge_problem, plane.bridge.problem]),
        ]
        return pb.ExplainPolicyResponse(is_in_force=not why_not, lines=lines)

    async def judge_packet(self, request: pb.JudgePacketRequest) -> pb.JudgePacketResponse:
        if self._plane.off:
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.PLANE_DISABLED, self._plane.off)
        protocol = (request.protocol or "TCP").upper()
        ends: list[str] = []
        for name, text in (("from", getattr(request, "from")), ("to", request.to)):
            try:
                ends.append(str(ip_address(text)))
            except ValueError as error:
                words = f"{shown(text)} is no address; expected one such as 10.0.0.7 or fd00::7"
                raise invalid(FailureReason.MALFORMED_REQUEST, words, [(name, words)]) from error
        if protocol not in PROTOCOLS or request.port > MOST_PORT or (":" in ends[0]) != (":" in ends[1]):
            words = f"expected TCP, UDP or SCTP, a port up to {MOST_PORT}, and two addresses of one family"
            raise invalid(FailureReason.MALFORMED_REQUEST, words, [("protocol", words)])
        node = {str(ip_address(one)) for one in await self._node()}
        builder = self._plane.builder
        limiting = [
            (direction, key)
            for pod in self._plane.pods
            for direction, end in zip(DIRECTIONS, ends, strict=True)
            if end in (pod.addresses or ())
            for key, one in builder.policies_of(pod.uid).items()
            if direction in one.limited
        ]
        packet = Packet(ends[0], ends[1], protocol.lower(), request.port)
        is_allowed, steps = traced(self._plane.standing, packet, node, limiting)
        found = [pb.PolicyStep(place=place, found=text) for place, text in steps if self._plane.objects.policies]
        return pb.JudgePacketResponse(is_allowed=is_allowed, steps=found)
