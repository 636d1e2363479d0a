# SPDX-License-Identifier: Apache-2.0
"""Services that offer what a test gives them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from agent.api.errors import Absent
from agent.api.offers import listed
from agent.api.services.kinds import ShownKinds
from agent.kinds.registry import BY_WORD
from agent.kinds.shown import Offer, shown_of
from agent.kinds.table import Object
from agent.model.feed import FeedChange
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    policy_pb2,
    service_proxy_pb2,
)

FILES = (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    policy_pb2,
    service_proxy_pb2,
)
DESCRIPTORS = {one.full_name: one for file in FILES for one in file.DESCRIPTOR.services_by_name.values()}


def offering(
    changes: Mapping[str, Sequence[FeedChange[Object]]] = {}, off: Sequence[str] = (), **objects: Sequence[Object]
) -> ShownKinds:
    """`objects` and `changes` by the plural of their kinds; planes of services that are `off` do not run."""
    services: dict[Any, object] = {}
    for plural in {*objects, *changes}:
        for name in shown_of(BY_WORD[plural]).services:
            descriptor = DESCRIPTORS[name]
            offer = offer_of(objects.get(plural, ()), changes.get(plural))
            if name in off:
                services[descriptor] = Absent(name)
            else:
                services.setdefault(descriptor, SimpleNamespace(offers={})).offers[plural] = offer  # type: ignore[attr-defined]
    return ShownKinds(services)


def offer_of(objects: Sequence[Object], changes: Sequence[FeedChange[Object]] | None = None) -> Offer:
    async def items(_how: object) -> Sequence[Object]:
        return objects

    async def follow() -> AsyncIterator[FeedChange[Object]]:
        for change in changes or ():
            yield change

    def place(made: Object) -> str:
        return f"{made['metadata'].get('namespace', '')}/{made['metadata']['name']}"

    return Offer(listed(items, place, lambda made: made), follow if changes is not None else None)
