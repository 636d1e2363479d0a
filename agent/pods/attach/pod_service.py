# SPDX-License-Identifier: Apache-2.0
"""PodService: the pods of this node, as objects, and what is done with them. Converts and delegates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing

from msgspec.structs import replace

from agent.api.errors import FailureReason, not_found
from agent.api.log_lines import ContainerLog
from agent.api.messages import timestamp, to_message
from agent.api.offers import following, listed, own
from agent.api.peer import CALLER
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object
from agent.model.feed import Feed
from agent.model.nodes.drain import NodeDrain
from agent.model.pods.container_fields import Container
from agent.model.pods.state import ContainerState, PodState
from agent.model.refused import Refused
from agent.pods.manifest.container_part import read_container_part
from agent.pods.run.commands import LogPlace, PodCommands
from agent.pods.run.stream_urls import StreamUrls
from agent.pods.view.objects import container_object, pod_object
from agent.wire.kepd.v1 import pod_pb2 as pb
from agent.wire.kepd.v1 import reason_pb2

LOG_POLL_S = 0.2


class PodService:
    def __init__(
        self,
        pods: PodCommands,
        streams: StreamUrls,
        with_devices: Callable[[PodState], PodState] | None = None,
    ) -> None:
        self._with_devices = with_devices
        self._pods = pods
        self._streams = streams
        self.offers = {
            "pods": Offer(listed(self._states, lambda pod: pod.key, self._shown), following(self._looked, self._shown)),
            "containers": Offer(listed(self._containers, _container_place, container_object)),
            "checkpoints": own("Checkpoint", lambda _: pods.checkpoints.listed(), lambda report: report.name),
        }

    async def _looked(self) -> Feed[PodState]:
        await self._pods.looked()
        return self._pods.pods

    async def _states(self, _how: How) -> Iterable[PodState]:
        return (await self._looked()).items.values()

    def _shown(self, pod: PodState) -> Object:
        return pod_object(pod if self._with_devices is None else self._with_devices(pod))

    async def _containers(self, how: How) -> Iterable[tuple[PodState, ContainerState]]:
        return [(pod, container) for pod in await self._states(how) for container in pod.containers]

    async def get_timeline(self, request: pb.GetTimelineRequest) -> pb.GetTimelineResponse:
        moments, containers = self._pods.timeline(request.namespace, request.name)
        return pb.GetTimelineResponse(
            moments=[to_message(pb.Moment, one) for one in moments],
            containers=containers,
            now=timestamp(self._pods.now_s()),
        )

    async def explain_pod(self, request: pb.ExplainPodRequest) -> pb.ExplainPodResponse:
        found = await self._pods.explain(request.namespace, request.name)
        return pb.ExplainPodResponse(
            waits_for=found.waits_for,
            lines=found.details,
            status=found.state.status,
            phase=found.state.phase,
            reasons=[to_message(reason_pb2.Reason, one) for one in found.reasons],
        )

    async def stream_logs(self, request: pb.StreamLogsRequest) -> AsyncIterator[pb.StreamLogsResponse]:
        """Who follows does so over restarts, and from before the beginning, until no more lines can come."""
        place = self._log_place(request)
        if place.path is None and not request.follow:
            text = f"{place.container} has not begun yet, so it has no log; follow it, and its lines come when it has"
            raise not_found(FailureReason.NO_SUCH_OBJECT, text)
        since_s = request.since.ToNanoseconds() / 1e9 if request.HasField("since") else 0.0
        is_known = request.follow
        with closing(ContainerLog(tail=request.tail, since_s=since_s, has_timestamps=request.timestamps)) as reader:
            while True:
                lines = await asyncio.to_thread(reader.read, place.path) if place.path is not None else []
                for line in lines:
                    yield pb.StreamLogsResponse(line=line)
                if lines:
                    continue
                if not (is_known and place.goes_on):
                    return
                await asyncio.sleep(LOG_POLL_S)
                found = self._next_log_place(request)
                # Of a pod that is gone the files may be gone too; what is open is read to its end.
                is_known, place = found is not None, found or place

    def _next_log_place(self, request: pb.StreamLogsRequest) -> LogPlace | None:
        try:
            return self._log_place(request)
        except Refused:
            return None

    def _log_place(self, request: pb.StreamLogsRequest) -> LogPlace:
        return self._pods.log_place(request.namespace, request.name, request.container, is_previous=request.previous)

    async def delete_pod(self, request: pb.DeletePodRequest) -> pb.DeletePodResponse:
        grace_s = float(request.grace_seconds) if request.HasField("grace_seconds") else None
        await self._pods.delete(request.namespace, request.name, grace_s, evicts=request.evicts)
        return pb.DeletePodResponse()

    async def restart_container(self, request: pb.RestartContainerRequest) -> pb.RestartContainerResponse:
        names = self._pods.restart(request.namespace, request.name, request.container)
        return pb.RestartContainerResponse(containers=names)

    async def debug_pod(self, request: pb.DebugPodRequest) -> pb.DebugPodResponse:
        part = read_container_part(request.custom, "custom") if request.custom else Container()
        fields = replace(
            part,
            name=request.container,
            image=request.image,
            command=tuple(request.command),
            stdin=request.stdin,
            tty=request.tty,
        )
        pods = self._pods
        name = await pods.debug(request.namespace, request.name, fields, request.profile, request.target)
        return pb.DebugPodResponse(container=name)

    async def clear_backoff(self, request: pb.ClearBackoffRequest) -> pb.ClearBackoffResponse:
        self._pods.clear_backoff(request.namespace, request.name)
        return pb.ClearBackoffResponse()

    async def drain_node(self, request: pb.DrainNodeRequest) -> pb.DrainNodeResponse:
        caller = CALLER.get()
        by = caller.user if caller is not None else "an unknown user"
        if request.keeps_pods:
            await self._pods.cordon(by, request.reason)
            return pb.DrainNodeResponse()
        wish = NodeDrain(
            by=by, reason=request.reason, selector=request.selector, surges=request.surges,
            is_forced=request.is_forced, most_s=float(request.grace_seconds), began_at_s=0.0,
        )  # fmt: skip
        pods, kept = await self._pods.drain(wish)
        return pb.DrainNodeResponse(pods=pods, kept=[pb.KeptPod(pod=one.pod, why=one.why) for one in kept])

    async def uncordon_node(self, _request: pb.UncordonNodeRequest) -> pb.UncordonNodeResponse:
        return pb.UncordonNodeResponse(pods=await self._pods.uncordon())

    async def checkpoint_container(self, request: pb.CheckpointContainerRequest) -> pb.CheckpointContainerResponse:
        made = await self._pods.checkpoint(request.namespace, request.name, request.container)
        return to_message(pb.CheckpointContainerResponse, made)

    async def delete_checkpoint(self, request: pb.DeleteCheckpointRequest) -> pb.DeleteCheckpointResponse:
        await self._pods.checkpoints.delete(request.name)
        return pb.DeleteCheckpointResponse()

    async def get_exec_url(self, request: pb.GetExecUrlRequest) -> pb.GetExecUrlResponse:
        url = await self._streams.exec_url(
            (request.namespace, request.name, request.container),
            list(request.command),
            has_stdin=request.stdin,
            is_tty=request.tty,
        )
        return pb.GetExecUrlResponse(url=url)

    async def end_exec(self, request: pb.EndExecRequest) -> pb.EndExecResponse:
        target = (request.namespace, request.name, request.container)
        since_s = request.since.ToNanoseconds() / 1e9
        ended = await self._streams.end_exec(target, list(request.command), since_s)
        return pb.EndExecResponse(ended=ended)

    async def get_attach_url(self, request: pb.GetAttachUrlRequest) -> pb.GetAttachUrlResponse:
        target = (request.namespace, request.name, request.container)
        url, is_tty = await self._streams.attach_url(target, has_stdin=request.stdin)
        return pb.GetAttachUrlResponse(url=url, tty=is_tty)

    async def get_port_forward_url(self, request: pb.GetPortForwardUrlRequest) -> pb.GetPortForwardUrlResponse:
        streams = self._streams
        url = await streams.port_forward_url(request.namespace, request.name, list(request.ports))
        return pb.GetPortForwardUrlResponse(url=url)


def _container_place(part: tuple[PodState, ContainerState]) -> str:
    pod, container = part
    return f"{pod.key}/{container.name}"
