# SPDX-License-Identifier: Apache-2.0
"""DnsService: names on this node. Converts and delegates."""

from agent.api.messages import to_message
from agent.dns.run.view import DnsView
from agent.wire.kepd.v1 import dns_pb2 as pb


class DnsService:
    def __init__(self, view: DnsView) -> None:
        self._view = view

    async def get_dns(self, _request: pb.GetDnsRequest) -> pb.GetDnsResponse:
        return to_message(pb.GetDnsResponse, await self._view.report())

    async def explain_name(self, request: pb.ExplainNameRequest) -> pb.ExplainNameResponse:
        pod = f"default/{request.pod}" if request.pod and "/" not in request.pod else request.pod
        view = self._view
        found = await view.explain(request.name, request.type or "A", pod, is_traced=request.is_traced)
        return to_message(pb.ExplainNameResponse, found)

    async def flush_names(self, request: pb.FlushNamesRequest) -> pb.FlushNamesResponse:
        return pb.FlushNamesResponse(entries=await self._view.flush(request.name, request.zone))
