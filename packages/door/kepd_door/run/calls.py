# SPDX-License-Identifier: Apache-2.0
"""Calls of the daemon's own services, inside of this process, by a caller of some level.

The level that stands beside an rpc holds here as well, so that no door opens what another keeps shut.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from agent.api.access import LEVEL_NAMES
from agent.api.errors import Absent, ApiError, not_permitted, refused, runtime_unavailable
from agent.api.service import level_of, served_method
from agent.api.services.kinds import ShownKinds
from agent.api.services.objects import ObjectService
from agent.kinds.kind import Kind
from agent.kinds.kube_shape import manifest_object
from agent.kinds.shown import Offer
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.kepd.v1 import access_pb2, list_pb2, object_pb2

log = structlog.get_logger(plane="api")
Answer = TypeVar("Answer", bound=Message)


class Caller(msgspec.Struct, frozen=True):
    """`name` is for logs, and for what is told of who did something."""

    name: str
    level: int


PAGE = 500
OURSELVES = Caller("kepd", access_pb2.LEVEL_READ)


class Calls:
    def __init__(self, services: Mapping[ServiceDescriptor, object]) -> None:
        self._methods: dict[str, tuple[MethodDescriptor, object]] = {
            method.input_type.full_name: (method, served)
            for one, served in services.items()
            if one.full_name.startswith("kepd.")
            for method in one.methods
        }
        self._services = {one.name: served for one, served in services.items()}
        self._kinds = ShownKinds(services)

    async def written(self) -> object:
        """Another value once files of manifests may say something else; None where nobody reads any."""
        objects = self._services.get("ObjectService")
        return await objects.written() if isinstance(objects, ObjectService) else None

    async def objects(self, kind: str) -> list[dict[str, Any]]:
        """Of the manifests, as who may read sees them."""
        request = object_pb2.ListObjectsRequest(kind=kind, options=list_pb2.ListOptions(page_size=PAGE))
        pages = self.pages(OURSELVES, request, object_pb2.ListObjectsResponse)
        return [manifest_object(one) async for answer in pages for one in answer.objects]

    async def offer(self, kind: Kind) -> Offer:
        """What is shown of a kind."""
        return await self._kinds.offer(kind)

    def is_served(self, service: str) -> bool:
        return not isinstance(self._services[service], Absent)

    async def ask(self, caller: Caller, request: Message, _answer: type[Answer]) -> Answer:
        served = self._admitted(caller, request)
        try:
            found = await served(request)
        except (Refused, RuntimeCallFailed) as error:
            raise _told(error) from error
        return cast("Answer", found)

    async def pages(self, caller: Caller, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """All answers of a list, page by page; `request` has its `options`, and is changed."""
        options = request.options  # type: ignore[attr-defined]
        while True:
            page = await self.ask(caller, request, answer)
            yield page
            options.page_token = page.meta.next_page_token  # type: ignore[attr-defined]
            if not options.page_token:
                return

    async def in_parts(self, caller: Caller, requests: Sequence[Message], _answer: type[Answer]) -> Answer:
        """One request that comes as several messages."""

        async def parts() -> AsyncIterator[Message]:
            for one in requests:
                yield one

        served = self._admitted(caller, requests[0])
        try:
            found = await served(parts())
        except (Refused, RuntimeCallFailed) as error:
            raise _told(error) from error
        return cast("Answer", found)

    async def stream(self, caller: Caller, request: Message) -> AsyncIterator[Any]:
        served = self._admitted(caller, request)
        try:
            async for one in served(request):
                yield one
        except (Refused, RuntimeCallFailed) as error:
            raise _told(error) from error

    def require(self, caller: Caller, level: int, what: str) -> None:
        """Raises ApiError where the caller is of a lower one."""
        if level != access_pb2.LEVEL_READ:
            word = "api_call_refused" if level > caller.level else "api_call_admitted"
            log.info(word, method=what, level_name=LEVEL_NAMES.get(level, "admin"), caller=caller.name, v=0)
        if level > caller.level:
            needed = LEVEL_NAMES.get(level, "admin")
            raise not_permitted(what, needed, caller.name, f"use a kubeconfig of `kepctl kubeconfig --level {needed}`")

    def _admitted(self, caller: Caller, request: Message) -> Any:  # noqa: ANN401  # each has its own
        method, served = self._methods[request.DESCRIPTOR.full_name]
        self.require(caller, level_of(method), f"/{method.containing_service.full_name}/{method.name}")
        return served_method(served, method)


def _told(error: Exception) -> ApiError:
    return refused(error) if isinstance(error, Refused) else runtime_unavailable(error)  # type: ignore[arg-type]
