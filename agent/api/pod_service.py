# SPDX-License-Identifier: Apache-2.0
"""PodService: the pods of this node. Converts and delegates."""

from collections.abc import AsyncIterator

from google.rpc import code_pb2

from agent.api.errors import ApiError, Reason
from agent.api.paging import page, parse_filter
from agent.api.ports import PodView
from agent.api.service import Call
from agent.api.timestamps import timestamp
from agent.api.watching import watched
from agent.model.pod_state import PodState
from agent.wire.kepd.v1 import list_pb2, pod_pb2

__all__ = ["PodService"]


class PodService:
    """kepd.v1.PodService. `pods` is None while the plane is off."""

    def __init__(self, pods: PodView | None) -> None:
        self._view = pods

    async def list_pods(self, request: pod_pb2.ListPodsRequest, _call: Call) -> pod_pb2.ListPodsResponse:
        """All pods, in pages if wanted."""
        feed = self._pods().pods
        items, token = page([_pod(pod) for pod in feed.items.values()], request.options, _key, pod_pb2.Pod)
        meta = list_pb2.ListMeta(next_page_token=token, resource_version=feed.version)
        return pod_pb2.ListPodsResponse(pods=items, meta=meta)

    async def watch_pods(
        self, request: pod_pb2.WatchPodsRequest, _call: Call
    ) -> AsyncIterator[pod_pb2.WatchPodsResponse]:
        """All pods, then their changes."""
        holds = parse_filter(request.filter, pod_pb2.Pod)
        async for kind, pod, version in watched(self._pods().pods, _pod, holds, _key):
            yield pod_pb2.WatchPodsResponse(type=kind, pod=pod, resource_version=version)

    def _pods(self) -> PodView:
        if self._view is None:
            raise ApiError(
                code_pb2.FAILED_PRECONDITION,
                Reason.PLANE_DISABLED,
                "the pods plane does not run here; set pods.enabled to true and restart kepd",
                metadata={"plane": "pods"},
            )
        return self._view


def _pod(pod: PodState) -> pod_pb2.Pod:
    containers = [
        pod_pb2.Container(
            name=one.name,
            image=one.image,
            id=one.id,
            state=one.state,
            reason=one.reason,
            exit_code=one.exit_code,
            started_at=timestamp(one.started_at_s),
            restart_count=one.restart_count,
            pod_namespace=pod.namespace,
            pod_name=pod.name,
        )
        for one in pod.containers
    ]
    return pod_pb2.Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=pod.phase,
        message="; ".join(
            part for part in (pod.message, f"waits for: {pod.waits_for}" if pod.waits_for else "") if part
        ),
        ip=pod.ip,
        containers=containers,
        sandbox_id=pod.sandbox_id,
        created_at=timestamp(pod.created_at_s),
    )


def _key(pod: pod_pb2.Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
