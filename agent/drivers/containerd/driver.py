# SPDX-License-Identifier: Apache-2.0
"""containerd's own services: what a pull has fetched, leases, image labels, and its event bus.

Owns: one channel with the namespace header on every call, deadlines, typed failures.
Never: sends a request without its sub-message; some versions of containerd crash on those (PRT-12). Never touches
pods: that is CRI's.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from agent.drivers.grpc_channel import open_channel, translated
from agent.model.ingest import Ingest
from agent.model.runtime_event import EventKind, RuntimeEvent
from agent.wire.containerd import (
    content_v1_pb2,
    events_v1_pb2,
    eventtypes_pb2,
    images_v1_pb2,
    introspection_v1_pb2,
    leases_v1_pb2,
    types_pb2,
    version_v1_pb2,
)

__all__ = ["Containerd", "task_event"]

SERVICES = "/containerd.services."
# The bus has many topics; those of tasks are the life of containers.
TASK_FILTER = 'topic~="/tasks/(create|start|exit|delete)"'

Observer = Callable[[str, str, float], None]
Answer = TypeVar("Answer", bound=Message)


class Containerd:
    """One containerd, in one of its namespaces."""

    def __init__(
        self,
        endpoint: str,
        namespace: str = "k8s.io",
        *,
        request_timeout_s: float = 10.0,
        observe: Observer | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.request_timeout_s = request_timeout_s
        self._namespace = namespace
        self._channel = open_channel(endpoint)
        self._observe = observe or (lambda _method, _code, _seconds: None)

    async def close(self) -> None:
        """End the channel; calls in flight are cancelled."""
        await self._channel.close()

    async def version(self) -> str:
        """containerd's version, such as `1.6.20`."""
        answer = await self._call("version.v1.Version/Version", Empty(), version_v1_pb2.VersionResponse)
        return answer.version.removeprefix("v").partition("~")[0].partition("+")[0]

    async def server_uuid(self) -> str:
        """Identity of the installation; it changes when its state directory is made anew."""
        answer = await self._call("introspection.v1.Introspection/Server", Empty(), introspection_v1_pb2.ServerResponse)
        return answer.uuid

    async def list_ingests(self) -> list[Ingest]:
        """Blobs that are being written right now."""
        answer = await self._call(
            "content.v1.Content/ListStatuses",
            content_v1_pb2.ListStatusesRequest(),
            content_v1_pb2.ListStatusesResponse,
        )
        return [Ingest(status.ref, status.offset, status.total) for status in answer.statuses]

    async def image_labels(self) -> dict[str, dict[str, str]]:
        """Labels of all image records by image name."""
        answer = await self._call(
            "images.v1.Images/List", images_v1_pb2.ListImagesRequest(), images_v1_pb2.ListImagesResponse
        )
        return {image.name: dict(image.labels) for image in answer.images}

    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None:
        """Keep what is written under this lease from the collector."""
        request = leases_v1_pb2.CreateRequest(id=lease_id, labels=dict(labels))
        await self._call("leases.v1.Leases/Create", request, leases_v1_pb2.CreateResponse)

    async def list_leases(self) -> dict[str, dict[str, str]]:
        """Labels of all leases by id."""
        answer = await self._call("leases.v1.Leases/List", leases_v1_pb2.ListRequest(), leases_v1_pb2.ListResponse)
        return {lease.id: dict(lease.labels) for lease in answer.leases}

    async def delete_lease(self, lease_id: str) -> None:
        """Give up a lease. One that is gone raises NotFound."""
        await self._call("leases.v1.Leases/Delete", leases_v1_pb2.DeleteRequest(id=lease_id), Empty)

    async def task_events(self) -> AsyncIterator[RuntimeEvent]:
        """Life of containers from the event bus, until the stream breaks."""
        stream = self._channel.unary_stream(
            f"{SERVICES}events.v1.Events/Subscribe",
            request_serializer=events_v1_pb2.SubscribeRequest.SerializeToString,
            response_deserializer=types_pb2.Envelope.FromString,
        )
        request = events_v1_pb2.SubscribeRequest(filters=[f"namespace=={self._namespace},{TASK_FILTER}"])
        try:
            async for envelope in stream(request, metadata=self._metadata()):
                event = task_event(envelope.event.type_url, envelope.event.value)
                if event is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise translated("Subscribe", error) from error

    def _metadata(self) -> list[tuple[str, str]]:
        return [("containerd-namespace", self._namespace)]

    async def _call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        name = method.rpartition("/")[2]
        invoke = self._channel.unary_unary(
            SERVICES + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        began_s = time.monotonic()
        code = "OK"
        try:
            result: Answer = await invoke(request, timeout=self.request_timeout_s, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            raise translated(name, error) from error
        finally:
            self._observe(name, code, time.monotonic() - began_s)
        return result


def task_event(type_url: str, value: bytes) -> RuntimeEvent | None:
    """The news in an event of the bus, or None. Exits of exec'd processes are no news of the container."""
    match type_url:
        case "containerd.events.TaskCreate":
            return RuntimeEvent(EventKind.CREATED, eventtypes_pb2.TaskCreate.FromString(value).container_id)
        case "containerd.events.TaskStart":
            return RuntimeEvent(EventKind.STARTED, eventtypes_pb2.TaskStart.FromString(value).container_id)
        case "containerd.events.TaskExit":
            ended = eventtypes_pb2.TaskExit.FromString(value)
            if ended.id != ended.container_id:
                return None
            return RuntimeEvent(EventKind.STOPPED, ended.container_id, exit_code=ended.exit_status)
        case "containerd.events.TaskDelete":
            gone = eventtypes_pb2.TaskDelete.FromString(value)
            return RuntimeEvent(EventKind.DELETED, gone.container_id) if gone.id in ("", gone.container_id) else None
    return None
