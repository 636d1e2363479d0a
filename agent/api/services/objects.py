# SPDX-License-Identifier: Apache-2.0
"""ObjectService: objects of every kind, and those of the manifest directory. Converts and delegates."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from google.protobuf.descriptor import ServiceDescriptor

from agent.api.errors import FailureReason, invalid
from agent.api.messages import to_message
from agent.api.offers import ObjectWalk, listed
from agent.api.paging import in_order, page, place_of
from agent.api.ports import ObjectsView
from agent.api.services.kinds import ShownKinds
from agent.config.strict_yaml import MAX_BYTES
from agent.kinds.kube_shape import manifest_object
from agent.kinds.registry import KINDS
from agent.kinds.shown import Offer
from agent.model.nodes.manifest_report import ListedObject
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb

DEFAULT_NAMESPACE = "default"
PATCH_TYPES = {
    pb.PATCH_TYPE_UNSPECIFIED: "strategic",
    pb.PATCH_TYPE_STRATEGIC: "strategic",
    pb.PATCH_TYPE_MERGE: "merge",
    pb.PATCH_TYPE_JSON: "json",
}


class ObjectService:
    """`services` are all others of the API."""

    def __init__(self, objects: ObjectsView, services: Mapping[ServiceDescriptor, object]) -> None:
        self._objects = objects
        own = pb.DESCRIPTOR.services_by_name["ObjectService"]
        self.kinds = kinds = ShownKinds({**services, own: self})
        self.list_kinds, self.list, self.get, self.watch = kinds.list_kinds, kinds.objects, kinds.get, kinds.watch
        self.table, self.watch_table, self.describe = kinds.table, kinds.watch_table, kinds.describe

        self.offers = {kind.plural: Offer(self._offered(kind.api)) for kind in KINDS if kind.api}

    def _offered(self, kind: str) -> ObjectWalk:
        return listed(lambda _: self._objects.listed(kind, is_whole=False), lambda each: each.place, manifest_object)

    async def written(self) -> object:
        """Another value once the files may say something else."""
        return await asyncio.to_thread(self._objects.files)

    async def list_objects(self, request: pb.ListObjectsRequest) -> pb.ListObjectsResponse:
        items, meta = await self._listed(request, is_whole=False)
        return pb.ListObjectsResponse(objects=items, meta=meta)

    async def read_manifests(self, request: pb.ReadManifestsRequest) -> pb.ReadManifestsResponse:
        items, meta = await self._listed(request, is_whole=True)
        return pb.ReadManifestsResponse(objects=items, meta=meta)

    async def _listed(
        self, request: pb.ListObjectsRequest | pb.ReadManifestsRequest, *, is_whole: bool
    ) -> tuple[Sequence[pb.Object], list_pb2.ListMeta]:
        objects = await self._objects.listed(request.kind, is_whole=is_whole)
        walk = in_order(objects, lambda each: each.place, place_of(request.options))
        return await page(walk, request.options, _object)

    async def get_manifest(self, request: pb.GetManifestRequest) -> pb.GetManifestResponse:
        key = request.kind, request.namespace or DEFAULT_NAMESPACE, request.name
        content, source, version = await self._objects.manifest(key)
        return pb.GetManifestResponse(content=content.encode(), source=source, version=version)

    async def apply(self, parts: AsyncIterator[pb.ApplyRequest]) -> pb.ApplyResponse:
        content, is_dry, is_new, version = bytearray(), False, False, ""
        async for part in parts:
            content += part.content
            is_dry |= part.dry_run
            is_new |= part.create_only
            version = version or part.version
            if len(content) > MAX_BYTES:
                text = f"the manifest has more than {MAX_BYTES} bytes; divide it into several files"
                raise invalid(FailureReason.BAD_MANIFEST, text, [("content", text)])
        applied = await self._objects.apply(bytes(content), dry_run=is_dry, create_only=is_new, version=version)
        return pb.ApplyResponse(objects=[to_message(pb.AppliedObject, one) for one in applied])

    async def patch(self, request: pb.PatchRequest) -> pb.PatchResponse:
        if (how := PATCH_TYPES.get(request.type)) is None:
            text = f"type is {request.type}; expected one of {', '.join(pb.PatchType.keys()[1:])}"
            raise invalid(FailureReason.BAD_MANIFEST, text, [("type", text)])
        try:
            patch = msgspec.json.decode(request.patch)
        except (msgspec.DecodeError, RecursionError) as error:
            text = f"the patch is no JSON: {error}"
            raise invalid(FailureReason.BAD_MANIFEST, text, [("patch", text)]) from error
        key = request.kind, request.namespace or DEFAULT_NAMESPACE, request.name
        applied = await self._objects.patch(key, patch, how, dry_run=request.dry_run, version=request.version)
        return pb.PatchResponse(object=to_message(pb.AppliedObject, applied))

    async def delete(self, request: pb.DeleteRequest) -> pb.DeleteResponse:
        grace_s = float(request.grace_seconds) if request.HasField("grace_seconds") else None
        key = request.kind, request.namespace or DEFAULT_NAMESPACE, request.name
        path = await self._objects.delete(
            key, grace_s, dry_run=request.dry_run, evicts=request.evicts, version=request.version
        )
        return pb.DeleteResponse(path=path)


def _object(one: ListedObject) -> pb.Object:
    return to_message(pb.Object, one)
