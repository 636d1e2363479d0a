# SPDX-License-Identifier: Apache-2.0
"""Which kinds are shown with more than what their planes offer, and where that is asked for."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from agent.kinds.kind import Kind
from agent.kinds.parts import part
from agent.kinds.shown import How, Offer
from agent.model.placed import Walk
from agent.wire.kepd.v1 import node_pb2
from kepd_door.run.calls import OURSELVES, Calls
from kepd_door.run.kinds.endpoints import all_endpoints
from kepd_door.run.kinds.lasting import (
    FindOffer,
    node_lease,
    own_range,
    own_service,
    own_slice,
    root_certificates,
    with_lasting,
)
from kepd_door.run.kinds.slices import by_address, empty_slices, is_of_another, mirrored, with_targets, written_slices
from kepd_door.run.store import KindStore
from kepd_door.shape.resources import ENDPOINTS

Object = dict[str, Any]
RANGES = "services.serviceCIDRs"


class Always:
    """`store_of` finds a kind by its plural; `address` is the door's, and `authority` that of its certificate."""

    def __init__(
        self, calls: Calls, store_of: Callable[[str], KindStore | None], address: str, authority: Callable[[], str]
    ) -> None:
        self._calls, self._store_of, self._authority = calls, store_of, authority
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)

    def offer_of(self, kind: Kind) -> FindOffer:
        if kind is ENDPOINTS:
            return self._endpoints
        found = partial(self._calls.offer, kind)
        if kind.api == "EndpointSlice":
            return with_lasting(found, self._slices, self._targets)
        made = {
            "ConfigMap": self._certificates, "Service": self._service, "Lease": self._leases,
            "ServiceCIDR": self._ranges, "Node": self._nodes,
        }.get(kind.api or kind.observed_as)  # fmt: skip
        return with_lasting(found, made) if made is not None else found

    async def _seen(self, plural: str) -> list[Object]:
        store = self._store_of(plural)
        return [entry.made for entry in await store.seen()] if store is not None else []

    async def _certificates(self, _others: Sequence[Object]) -> Sequence[Object]:
        names = [made["metadata"]["name"] for made in await self._seen("namespaces")]
        return root_certificates(self._authority(), names)

    async def _service(self, _others: Sequence[Object]) -> Sequence[Object]:
        return [own_service(self._port)]

    async def _leases(self, _others: Sequence[Object]) -> Sequence[Object]:
        own = [made for made in await self._seen("nodes") if part(made, "status").get("nodeInfo")]
        return [node_lease(made, time.time()) for made in own[:1]]

    async def _ranges(self, _others: Sequence[Object]) -> Sequence[Object]:
        found = await self._calls.ask(OURSELVES, node_pb2.GetConfigRequest(), node_pb2.GetConfigResponse)
        given = next((one.value for one in found.values if one.path == RANGES), "[]")
        return [own_range(networks)] if (networks := msgspec.json.decode(given)) else []

    async def _nodes(self, _others: Sequence[Object]) -> Sequence[Object]:
        """Others than this one, which stand in manifests."""
        return await self._calls.objects("Node")

    async def _slices(self, others: Sequence[Object]) -> Sequence[Object]:
        written = written_slices(await self._calls.objects("EndpointSlice"))
        mirrors = [*mirrored(await self._calls.objects(ENDPOINTS.api), [*others, *written])]
        empty = empty_slices(await self._seen("services"), [*others, *written, *mirrors])
        return [own_slice(self._host, self._port), *written, *mirrors, *empty]

    async def _targets(self) -> Callable[[Object], Object | None]:
        written, pods = await self._calls.objects("EndpointSlice"), by_address(await self._seen("pods"))
        return lambda made: None if is_of_another(made, written) else with_targets(made, pods)

    async def _endpoints(self) -> Offer:
        async def walk(_how: How, _after: str) -> Walk[Object]:
            written = await self._calls.objects(ENDPOINTS.api)
            services, slices = await self._seen("services"), await self._seen("endpointslices")
            for key, made in all_endpoints(written, services, slices):
                yield "/".join(key), made

        return Offer(walk)
