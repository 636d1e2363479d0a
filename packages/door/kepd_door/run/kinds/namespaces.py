# SPDX-License-Identifier: Apache-2.0
"""The end of a namespace: everything in it is deleted, what makes pods first, and then the namespace itself.

That it ends stands in its manifest, so that the next process goes on with it. Nothing is made in it meanwhile.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.api.errors import ApiError
from agent.kinds.kind import DEFAULT_NAMESPACE
from agent.kinds.node.namespaces import phase_of
from agent.objects.documents import dumped
from agent.objects.run.kind_feed import Spawn
from agent.wire.kepd.v1 import access_pb2, object_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.deleting import Deleter, Options
from kepd_door.run.store import Entry, KindStore
from kepd_door.shape.resources import NAMESPACES, Resource
from kepd_door.shape.statuses import Failure
from kepd_door.shape.targets import Target

log = structlog.get_logger(plane="api")

Object = dict[str, Any]
OURSELVES = Caller("kepd", access_pb2.LEVEL_OPERATE)
TERMINATING = "Terminating"
LASTING = (DEFAULT_NAMESPACE, "kube-system", "kube-public", "kube-node-lease")
LOOK_S, SLOW_S = 0.3, 2.0
QUICK_LOOKS = 20


class Namespaces:
    """`stores` are those of all kinds."""

    def __init__(self, calls: Calls, stores: Mapping[Resource, KindStore], spawn: Spawn) -> None:
        self._calls, self._stores, self._spawn = calls, stores, spawn
        self._ending: set[str] = set()

    async def resume(self) -> None:
        """Go on with what the last process did not finish."""
        for entry in await self._stores[NAMESPACES].entries():
            if phase_of(entry.made) == TERMINATING:
                self._begin(entry.key[1])

    def check(self, target: Target) -> None:
        """Whether something may be made there. Raises Failure."""
        if target.namespace in self._ending:
            message = f"namespace {target.namespace} is being terminated"
            text = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            causes = [{"reason": "NamespaceTerminating", "message": message}]
            raise Failure(403, text, name=target.namespace, kind="namespaces", causes=causes)

    async def end(self, deleter: Deleter, target: Target) -> Object:
        """As it is from now on."""
        name = target.name
        if name in LASTING:
            text = f'namespaces "{name}" is forbidden: this namespace may not be deleted'
            raise Failure(403, text, name=name, kind="namespaces")
        made = await deleter.checked(target)
        if name not in self._ending:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata = {"deletionTimestamp": now, **made["metadata"]}
            made = {**made, "metadata": metadata, "status": {**(made.get("status") or {}), "phase": TERMINATING}}
            parts = [object_pb2.ApplyRequest(content=dumped(made).encode())]
            await self._calls.in_parts(OURSELVES, parts, object_pb2.ApplyResponse)
            self._begin(name)
        return made

    def _begin(self, name: str) -> None:
        self._ending.add(name)
        self._spawn(self._empty(name))

    async def _empty(self, name: str) -> None:
        try:
            looks, asked = 0, set[tuple[Resource, str]]()
            while await self._left(name, asked):
                looks += 1
                await asyncio.sleep(LOOK_S if looks < QUICK_LOOKS else SLOW_S)
            await self._deleted(Target(NAMESPACES, "", name))
        finally:
            self._ending.discard(name)

    async def _left(self, name: str, asked: set[tuple[Resource, str]]) -> bool:
        """Whether something is there still; each is asked once to go, and again where that failed."""
        is_left = False
        for resource, store in sorted(self._stores.items(), key=_turn):
            for entry in await _inside(resource, store, name):
                is_left = True
                place = resource, entry.made["metadata"]["uid"]
                if place not in asked and await self._deleted(Target(resource, name, entry.key[1])):
                    asked.add(place)
        return is_left

    async def _deleted(self, target: Target) -> bool:
        try:
            await Deleter(self._calls, OURSELVES, self._stores[target.resource], Options()).delete(target)
        except (Failure, ApiError) as error:
            if not isinstance(error, Failure) or error.code != 404:
                log.warning("namespace_not_emptied", kind=target.resource.name, namespace=target.namespace,
                            name=target.name, error=str(error)[:300], v=0)  # fmt: skip
                return False
        return True


def _turn(stored: tuple[Resource, KindStore]) -> int:
    kind = stored[1].kind
    return 0 if kind.pod_path and kind.api != "Pod" else 1


async def _inside(resource: Resource, store: KindStore, name: str) -> list[Entry]:
    """What a plane makes of other objects goes with those."""
    if not resource.has_namespace or not resource.is_written or store.kind.is_made:
        return []
    try:
        entries = await store.entries()
    except (Failure, ApiError):
        return []
    return [entry for entry in entries if entry.key[0] == name and not store.is_implied(entry)]
