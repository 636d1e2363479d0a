# SPDX-License-Identifier: Apache-2.0
"""Objects with the values that stores leave out, for callers who may read the files that have them. A list, a watch and
a GET show one caller the same object, so that it can be changed and written back."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from agent.api.errors import ApiError
from agent.kinds.kube_shape import manifest_object
from agent.kinds.table import without_facts
from agent.model.pods.shown_spec import LEFT_OUT
from agent.wire.kepd.v1 import access_pb2, list_pb2, object_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.store import PAGE, Entry, KindStore, at_version
from kepd_door.run.writing import is_of, shown_with, with_data

Manifests = dict[tuple[str, str], object_pb2.Object]


class Whole:
    def __init__(self, calls: Calls, caller: Caller, store: KindStore) -> None:
        self._calls, self._caller, self.store = calls, caller, store
        self.is_for_all = caller.level >= access_pb2.LEVEL_OPERATE

    async def all(self, entries: Sequence[Entry], *, is_watched: bool = False) -> list[Entry]:
        """`is_watched`: each stays of the version that its change has, for a client goes on from the last it saw."""
        if not self.is_for_all or not any(map(_lacks, entries)):
            return list(entries)
        manifests = await self._manifests()
        filled = [self._filled(entry, manifests) if _lacks(entry) else entry for entry in entries]
        return (
            [at_version(each, entry.version) for each, entry in zip(filled, entries, strict=True)]
            if is_watched
            else filled
        )

    async def one(self, entry: Entry) -> Entry:
        return (await self.all([entry]))[0]

    async def _manifests(self) -> Manifests:
        found: Manifests = {}
        options = list_pb2.ListOptions(page_size=PAGE)
        request = object_pb2.ReadManifestsRequest(kind=self.store.kind.api, options=options)
        with suppress(ApiError):
            async for answer in self._calls.pages(self._caller, request, object_pb2.ReadManifestsResponse):
                found |= {(manifest.namespace, manifest.name): manifest for manifest in answer.objects}
        return found

    def _filled(self, entry: Entry, manifests: Manifests) -> Entry:
        """As it is, with its mark, where no manifest has it: a pod of a workload."""
        names = (entry.key[1], *entry.short.split())
        manifest = next((manifests[entry.key[0], name] for name in names if (entry.key[0], name) in manifests), None)
        if manifest is None or not is_of(written := without_facts(manifest_object(manifest)), entry):
            return entry
        version = self.store.version_with(entry.key, entry, manifest.version)
        known: Entry | None = entry.cache.get(manifest.version)
        if known is None or known.version != version:
            made = shown_with(self.store, with_data(written), entry, version)
            known = msgspec.structs.replace(entry, made=made, version=version, cache={})
            entry.cache[manifest.version] = known
        return known


def _lacks(entry: Entry) -> bool:
    return LEFT_OUT in (entry.made["metadata"].get("annotations") or {})
