# SPDX-License-Identifier: Apache-2.0
"""DnsService: names on this node. Converts and delegates."""

from agent.api.errors import running
from agent.api.messages import to_message
from agent.api.ports import NamesView
from agent.wire.kepd.v1 import dns_pb2 as pb

PLANE = "dns"


class DnsService:
    def __init__(self, view: NamesView | None) -> None:
        self._view = view

    async def get_dns(self, _request: pb.GetDnsRequest) -> pb.GetDnsResponse:
        return to_message(pb.GetDnsResponse, await running(self._view, PLANE).report())

    async def explain_name(self, request: pb.ExplainNameRequest) -> pb.ExplainNameResponse:
        pod = f"default/{request.pod}" if request.pod and "/" not in request.pod else request.pod
        view = running(self._view, PLANE)
        found = await view.explain(request.name, request.type or "A", pod, is_traced=request.is_traced)
        return to_message(pb.ExplainNameResponse, found)

    async def flush_names(self, request: pb.FlushNamesRequest) -> pb.FlushNamesResponse:
        return pb.FlushNamesResponse(entries=await running(self._view, PLANE).flush(request.name, request.zone))
