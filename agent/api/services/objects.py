# SPDX-License-Identifier: Apache-2.0
"""ObjectService: objects of the manifest directory. Converts and delegates."""

from collections.abc import AsyncIterator

from agent.api.errors import FailureReason, invalid
from agent.api.messages import to_message
from agent.api.paging import in_order, page, place_of
from agent.api.ports import ObjectsView
from agent.config.strict_yaml import MAX_BYTES
from agent.model.nodes.manifest_report import ListedObject
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb

DEFAULT_NAMESPACE = "default"


class ObjectService:
    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects

    async def list_objects(self, request: pb.ListObjectsRequest) -> pb.ListObjectsResponse:
        items, meta = await self._listed(request, is_whole=False)
        return pb.ListObjectsResponse(objects=items, meta=meta)

    async def read_manifests(self, request: pb.ReadManifestsRequest) -> pb.ReadManifestsResponse:
        items, meta = await self._listed(request, is_whole=True)
        return pb.ReadManifestsResponse(objects=items, meta=meta)

    async def _listed(
        self, request: pb.ListObjectsRequest | pb.ReadManifestsRequest, *, is_whole: bool
    ) -> tuple[list[pb.Object], list_pb2.ListMeta]:
        listed = await self._objects.listed(request.kind, is_whole=is_whole)
        walk = in_order(listed, lambda each: each.place, place_of(request.options))
        return await page(walk, request.options, _object, pb.Object)

    async def get_manifest(self, request: pb.GetManifestRequest) -> pb.GetManifestResponse:
        key = request.kind, request.namespace or DEFAULT_NAMESPACE, request.name
        content, source, version = await self._objects.manifest(key)
        return pb.GetManifestResponse(content=content.encode(), source=source, version=version)

    async def apply_objects(self, parts: AsyncIterator[pb.ApplyObjectsRequest]) -> pb.ApplyObjectsResponse:
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
        return pb.ApplyObjectsResponse(objects=[to_message(pb.AppliedObject, one) for one in applied])

    async def delete_object(self, request: pb.DeleteObjectRequest) -> pb.DeleteObjectResponse:
        grace_s = float(request.grace_seconds) if request.HasField("grace_seconds") else None
        key = request.kind, request.namespace or DEFAULT_NAMESPACE, request.name
        path = await self._objects.delete(
            key, grace_s, dry_run=request.dry_run, evicts=request.evicts, version=request.version
        )
        return pb.DeleteObjectResponse(path=path)


def _object(one: ListedObject) -> pb.Object:
    return to_message(pb.Object, one)
