# SPDX-License-Identifier: Apache-2.0
"""TopologyService: why hints and spread are as they are. Converts and delegates."""

from google.rpc import code_pb2

from agent.api.errors import ApiError, FailureReason, invalid, not_found
from agent.api.ports import TopologyView
from agent.model.refused import Refused
from agent.wire.kepd.v1 import topology_pb2 as pb


class TopologyService:
    def __init__(self, view: TopologyView) -> None:
        self._view = view

    async def explain_hints(self, request: pb.ExplainHintsRequest) -> pb.ExplainHintsResponse:
        try:
            explanation, is_active = await self._view.hints(_named(request.service, "service"))
        except LookupError as error:
            raise not_found(FailureReason.NO_SUCH_OBJECT, str(error)) from error
        except Refused as error:
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.OTHER_SOURCE, str(error)) from error
        return pb.ExplainHintsResponse(explanation=explanation, is_active=is_active)

    async def explain_spread(self, request: pb.ExplainSpreadRequest) -> pb.ExplainSpreadResponse:
        try:
            explanation, is_feasible = await self._view.spread(
                _named(request.pod, "pod"),
                honors_taints=request.honor_taints,
                min_domains=request.min_domains or None,
                dropped_nodes=frozenset(request.without_nodes),
                ignores_dead_domains=request.ignore_dead_domains,
            )
        except LookupError as error:
            raise not_found(FailureReason.NO_SUCH_OBJECT, str(error)) from error
        return pb.ExplainSpreadResponse(explanation=explanation, is_feasible=is_feasible)


def _named(name: str, field: str) -> str:
    if not name:
        text = f"{field} is empty; expected namespace/name"
        raise invalid(FailureReason.MALFORMED_REQUEST, text, [(field, text)])
    return name
