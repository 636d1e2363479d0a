# SPDX-License-Identifier: Apache-2.0
"""The Pods API of a kubelet (KEP-4188): pods of the node for local programs, on a socket of root's, without a token."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from agent.wire.kubelet import pods_v1alpha1_pb2 as pb
from kepd_door.run.store import Entry, KindStore
from kepd_door.shape.protobuf import encoded_protobuf

SERVICE = "v1alpha1.Pods"
SOCKET_MODE = 0o600


class PodsApi:
    def __init__(self, path: Path, pods: KindStore) -> None:
        self._path, self._pods = path, pods

    async def run(self, opened: asyncio.Event) -> None:
        """Until cancelled. A socket that an earlier process left is taken over."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        server = grpc.aio.server()
        handlers = {
            "ListPods": grpc.unary_unary_rpc_method_handler(
                self._list, pb.ListPodsRequest.FromString, pb.ListPodsResponse.SerializeToString
            ),
            "GetPod": grpc.unary_unary_rpc_method_handler(
                self._get, pb.GetPodRequest.FromString, pb.GetPodResponse.SerializeToString
            ),
            "WatchPods": grpc.unary_stream_rpc_method_handler(
                self._watch, pb.WatchPodsRequest.FromString, pb.WatchPodsEvent.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        self._path.chmod(SOCKET_MODE)
        opened.set()
        try:
            await server.wait_for_termination()
        finally:
            # First, for the end of a server may itself be cut off.
            self._path.unlink(missing_ok=True)
            await server.stop(0)

    async def _list(self, _request: pb.ListPodsRequest, _context: object) -> pb.ListPodsResponse:
        return pb.ListPodsResponse(pods=[_pod(one) for one in await self._pods.seen()])

    async def _get(self, request: pb.GetPodRequest, context: grpc.aio.ServicerContext) -> pb.GetPodResponse:
        for one in await self._pods.seen():
            if one.made["metadata"]["uid"] == request.podUID:
                return pb.GetPodResponse(pod=_pod(one))
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no pod has the uid {request.podUID[:100]}")
        return pb.GetPodResponse()

    async def _watch(self, _request: pb.WatchPodsRequest, _context: object) -> AsyncIterator[pb.WatchPodsEvent]:
        entries = await self._pods.seen()
        since = self._pods.version
        for one in entries:
            yield pb.WatchPodsEvent(type=pb.ADDED, pod=_pod(one))
        yield pb.WatchPodsEvent(type=pb.INITIAL_SYNC_COMPLETE)
        async for change in self._pods.changes(since):
            if change is None:
                continue
            if change.now is not None:
                kind = pb.ADDED if change.before is None else pb.MODIFIED
                yield pb.WatchPodsEvent(type=kind, pod=_pod(change.now))
            elif change.before is not None:
                yield pb.WatchPodsEvent(type=pb.DELETED, pod=_pod(change.before))


def _pod(entry: Entry) -> bytes:
    return encoded_protobuf("Pod", entry.made)
