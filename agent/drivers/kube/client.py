# SPDX-License-Identifier: Apache-2.0
"""The client: follow what changes, and the few single requests that planes need.

One connection pool, one rate limit, one user for all of a process; wiring opens it and closes it last.
Never: keeps objects, or ends a `follow` by itself: an outage is news, not an exception.
"""

import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar, cast, overload

import msgspec

from agent import __version__
from agent.drivers.kube.access import KubeAccess
from agent.drivers.kube.connection import KubeConnection, KubeRequest, KubeTiming
from agent.drivers.kube.decoding import ApiObject, Decoding
from agent.drivers.kube.errors import AnswerUnreadable, CredentialsFailed, Unanswered, Unreachable
from agent.drivers.kube.follower import Follower
from agent.drivers.kube.listing import Plain, list_objects
from agent.drivers.kube.rate_limit import RequestBucket
from agent.drivers.kube.resource import MERGE_PATCH, News, Resource
from agent.drivers.kube.tls import pem_content
from agent.model.clock import Clock

K = TypeVar("K", bound=ApiObject)
T = TypeVar("T")


class KubeClient:
    """One cluster, as one user."""

    def __init__(
        self,
        access: KubeAccess,
        *,
        clock: Clock,
        qps: float = 5.0,
        burst: int = 10,
        timing: KubeTiming | None = None,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._timing = timing or KubeTiming()
        self._luck = luck
        self._bucket = RequestBucket(qps, burst)
        self._servers = (*access.cluster.servers, *access.cluster.unasked)
        self._cluster = access.cluster
        self._connection = KubeConnection(
            access, clock=clock, timing=self._timing, bucket=self._bucket, luck=luck, user_agent=f"kepd/{__version__}"
        )

    def __repr__(self) -> str:
        return f"KubeClient({self._connection.ring!r})"

    @property
    def servers(self) -> tuple[str, ...]:
        """URLs of all that may be asked, and of those that the access names beside."""
        return self._servers

    @property
    def cluster(self) -> str:
        """What tells this cluster from others while none of its servers answers: its authority, else its addresses."""
        found = ""
        with suppress(CredentialsFailed):
            found = pem_content(self._cluster.ca).hex() if self._cluster.ca is not None else ""
        text = found or "\n".join(sorted(self._cluster.servers))
        return sha256(text.encode()).hexdigest()

    async def close(self) -> None:
        """End all connections; generators that are still followed end with an error of theirs."""
        await self._connection.close()

    def set_rate(self, qps: float, burst: int) -> None:
        """Other limits from now on (`kubernetes.qps`, `.burst`)."""
        self._bucket.change(qps, burst, self._clock.now_s())

    @overload
    def follow(self, resource: Resource[K]) -> AsyncGenerator[News[K], None]: ...
    @overload
    def follow(self, resource: Resource[K], convert: Callable[[K], T]) -> AsyncGenerator[News[T], None]: ...
    def follow(self, resource: Resource[K], convert: Callable[[K], object] | None = None) -> AsyncGenerator[Any, None]:
        """All objects of a resource and every change, for ever. Use it inside `contextlib.aclosing`. `convert` makes
        the values to deliver, object by object, so that a list is never in memory in both forms; if it raises
        ValueError, that object is Malformed."""
        source = cast("Resource[ApiObject]", resource)
        made = cast("Callable[[ApiObject], object]", convert or (lambda item: item))
        return Follower(
            self._connection, source, Decoding(source, made), clock=self._clock, timing=self._timing, luck=self._luck
        ).news()

    async def all_of(self, resource: Resource[Plain], convert: Callable[[Plain], T]) -> list[T]:
        """All there are at one moment, as `convert` makes them. Raises those of errors.py."""
        return await list_objects(self._connection, resource, convert, self._clock, self._timing)

    async def get(self, resource: Resource[K], name: str) -> K:
        """One object. Raises Missing, Denied, Unreachable and others of errors.py."""
        body = await self._once(KubeRequest(verb="get", what=_told(resource, name), path=resource.object_path(name)))
        try:
            return msgspec.json.decode(body, type=resource.kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AnswerUnreadable(f"get {_told(resource, name)}: {error}") from error

    async def create(self, resource: Resource[K], body: Mapping[str, object]) -> None:
        """A new object. Raises Conflict if there is one of that name."""
        content = msgspec.json.encode(body)
        await self._once(
            KubeRequest(verb="create", what=str(resource), path=resource.path, method="POST", body=content)
        )

    async def patch(
        self, resource: Resource[K], name: str, body: object, *, content_type: str = MERGE_PATCH, subresource: str = ""
    ) -> None:
        ask = KubeRequest(
            verb="patch",
            what=_told(resource, name),
            path=resource.object_path(name, subresource),
            method="PATCH",
            body=msgspec.json.encode(body),
            content_type=content_type,
        )
        await self._once(ask)

    async def delete(self, resource: Resource[K], name: str) -> None:
        """Raises Missing where it is gone already."""
        await self._once(
            KubeRequest(verb="delete", what=_told(resource, name), path=resource.object_path(name), method="DELETE")
        )

    async def _once(self, ask: KubeRequest) -> bytearray:
        """One answer. What only reads is asked of each server before it fails; what writes may have been done."""
        for _ in range(len(self._connection.ring) - 1 if ask.method == "GET" else 0):
            with suppress(Unreachable, Unanswered):
                return await self._body(ask)
        return await self._body(ask)

    async def _body(self, ask: KubeRequest) -> bytearray:
        async with self._connection.opened(ask) as opened:
            return await opened.body(self._timing.body_silence_s)


def _told(resource: Resource[K], name: str) -> str:
    return f"{resource.plural}/{name}" + (f" in {resource.namespace}" if resource.namespace else "")
