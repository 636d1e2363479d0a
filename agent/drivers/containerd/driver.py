# SPDX-License-Identifier: Apache-2.0
"""containerd's own services: what a pull has fetched, leases, image names and labels, its event bus, and transfers.

Never: sends a request without its sub-message; some versions of containerd crash on those. Never touches pods:
that is CRI's, but for a task that CRI has lost.
"""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf import field_mask_pb2
from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent.drivers.grpc_channel import Observer, observed, open_channel, translated
from agent.model.images.credential import Credential
from agent.model.images.platform import ImagePlatform
from agent.model.images.store import BlobInfo, ImageRecord, Ingest, StoreEvent, StoreEventKind, StoreRoots
from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.model.text.outside_text import login_values
from agent.wire.containerd import (
    content_v1_pb2,
    events_v1_pb2,
    eventtypes_pb2,
    images_v1_pb2,
    introspection_v1_pb2,
    leases_v1_pb2,
    streaming_v1_pb2,
    tasks_v1_pb2,
    transfer_v1_pb2,
    types_pb2,
    types_transfer_pb2,
    version_v1_pb2,
)

SERVICES = "/containerd.services."
# The bus has many topics; those of tasks are the life of containers.
TASK_FILTER = 'topic~="/tasks/(create|start|exit|delete|oom)"'
STORE_FILTER = 'topic~="/(snapshot/(prepare|commit)|images/(create|update|delete))"'

SNAPSHOTTER_PLUGIN, CONTENT_PLUGIN = "io.containerd.snapshotter.v1", "io.containerd.content.v1"

REQUEST_S, TRANSFER_S = 10.0, 3600.0
Answer = TypeVar("Answer", bound=Message)


class Containerd:
    def __init__(self, endpoint: str, namespace: str = "k8s.io", *, observe: Observer | None = None) -> None:
        self.endpoint = endpoint
        self._namespace = namespace
        self._channel = open_channel(endpoint)
        self._observe = observe or (lambda _method, _code, _seconds: None)

    async def close(self) -> None:
        await self._channel.close()

    async def version(self) -> str:
        """containerd's version, such as `1.6.20`."""
        answer = await self._call("version.v1.Version/Version", Empty(), version_v1_pb2.VersionResponse)
        return answer.version.removeprefix("v").partition("~")[0].partition("+")[0]

    async def store_roots(self) -> StoreRoots:
        """Where its plugins say that they keep things."""
        kinds = (f"type=={SNAPSHOTTER_PLUGIN}", f"type=={CONTENT_PLUGIN}")
        request = introspection_v1_pb2.PluginsRequest(filters=kinds)
        answer = await self._call(
            "introspection.v1.Introspection/Plugins", request, introspection_v1_pb2.PluginsResponse
        )
        roots = [(one.type, one.id, one.exports.get("root", "")) for one in answer.plugins]
        content = next((root for kind, _, root in roots if kind == CONTENT_PLUGIN), "")
        named = {name: root for kind, name, root in roots if kind == SNAPSHOTTER_PLUGIN and root}
        return StoreRoots(content=content, snapshotters=named)

    async def list_ingests(self) -> list[Ingest]:
        answer = await self._call(
            "content.v1.Content/ListStatuses", content_v1_pb2.ListStatusesRequest(), content_v1_pb2.ListStatusesResponse
        )
        return [
            Ingest(status.ref, status.offset, status.total, _seconds(status.updated_at)) for status in answer.statuses
        ]

    async def image_records(self) -> list[ImageRecord]:
        answer = await self._call(
            "images.v1.Images/List", images_v1_pb2.ListImagesRequest(), images_v1_pb2.ListImagesResponse
        )
        return [_record(image) for image in answer.images]

    async def label_image(self, name: str, labels: Mapping[str, str]) -> None:
        """Set labels of a name, or take them away where the value is empty; others stay. Raises NotFound."""
        # The mask keeps the empty target from being stored. Without one, containerd 1.7 and later ends in a panic.
        request = images_v1_pb2.UpdateImageRequest(
            image=images_v1_pb2.Image(name=name, labels=dict(labels), target=types_pb2.Descriptor()),
            update_mask=field_mask_pb2.FieldMask(paths=[f"labels.{key}" for key in labels]),
        )
        await self._call("images.v1.Images/Update", request, images_v1_pb2.UpdateImageResponse)

    async def create_image(self, record: ImageRecord) -> None:
        """Give what is there one more name. Raises AlreadyExists."""
        target = types_pb2.Descriptor(media_type=record.media_type, digest=record.digest, size=record.size_bytes)
        image = images_v1_pb2.Image(name=record.name, labels=dict(record.labels), target=target)
        request = images_v1_pb2.CreateImageRequest(image=image)
        await self._call("images.v1.Images/Create", request, images_v1_pb2.CreateImageResponse)

    async def delete_image(self, name: str) -> None:
        """Take a name away; what has no name left is collected before this returns. Raises NotFound."""
        await self._call("images.v1.Images/Delete", images_v1_pb2.DeleteImageRequest(name=name, sync=True), Empty)

    async def list_blobs(self, label: str) -> list[BlobInfo]:
        """Whole blobs that carry a label, whatever its value."""
        request = content_v1_pb2.ListContentRequest(filters=[f'labels."{label}"'])
        found: list[BlobInfo] = []
        async for answer in self._stream("content.v1.Content/List", request, content_v1_pb2.ListContentResponse):
            found += [_blob(info) for info in answer.info]
        return found

    async def blob_info(self, digest: str) -> BlobInfo | None:
        request = content_v1_pb2.InfoRequest(digest=digest)
        try:
            answer = await self._call("content.v1.Content/Info", request, content_v1_pb2.InfoResponse)
        except NotFound:
            return None
        return _blob(answer.info)

    async def read_blob(self, digest: str, most_bytes: int) -> bytes:
        """The content of a small blob. Raises NotFound, or RuntimeCallFailed if it is larger."""
        request = content_v1_pb2.ReadContentRequest(digest=digest)
        content = bytearray()
        async for answer in self._stream("content.v1.Content/Read", request, content_v1_pb2.ReadContentResponse):
            content += answer.data
            if len(content) > most_bytes:
                raise RuntimeCallFailed("Read", f"{digest} has more than {most_bytes} bytes", "OUT_OF_RANGE")
        return bytes(content)

    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None:
        """Keep what is written under this lease from the collector."""
        request = leases_v1_pb2.CreateRequest(id=lease_id, labels=dict(labels))
        await self._call("leases.v1.Leases/Create", request, leases_v1_pb2.CreateResponse)

    async def list_leases(self) -> dict[str, dict[str, str]]:
        answer = await self._call("leases.v1.Leases/List", leases_v1_pb2.ListRequest(), leases_v1_pb2.ListResponse)
        return {lease.id: dict(lease.labels) for lease in answer.leases}

    async def delete_lease(self, lease_id: str) -> None:
        """Give up a lease. One that is gone raises NotFound."""
        await self._call("leases.v1.Leases/Delete", leases_v1_pb2.DeleteRequest(id=lease_id), Empty)

    async def add_to_lease(self, lease_id: str, kind: str, resource_id: str) -> None:
        """Keep one thing, such as a half-written blob (`ingests`), from the collector. Raises NotFound."""
        resource = leases_v1_pb2.Resource(id=resource_id, type=kind)
        await self._call(
            "leases.v1.Leases/AddResource", leases_v1_pb2.AddResourceRequest(id=lease_id, resource=resource), Empty
        )

    async def fetch_content(
        self,
        reference: str,
        platform: ImagePlatform,
        *,
        hosts_folder: str,
        labels: Mapping[str, str],
        credential: Credential | None = None,
        server: str = "",
    ) -> None:
        """Fetch what an image is made of and name it, without unpacking it. Raises NotImplementedByRuntime (1.6). The
        credential is for `server` alone, or for all hosts that are asked. 1.7 reads no hosts files."""
        resolver = types_transfer_pb2.RegistryResolver(host_dir=hosts_folder)
        wanted = types_pb2.Platform(os=platform.os, architecture=platform.architecture, variant=platform.variants[0])
        store = types_transfer_pb2.ImageStore(name=reference, labels=dict(labels), platforms=[wanted], manifest_limit=1)
        failure: RuntimeCallFailed | None = None
        async with asyncio.TaskGroup() as group:
            if credential is not None:
                resolver.auth_stream = f"kepd-{uuid.uuid4().hex}"
                is_registered = asyncio.Event()
                answering = group.create_task(
                    self._answer(resolver.auth_stream, is_registered, credential, server), name="containerd-auth"
                )
                await is_registered.wait()
            source = types_transfer_pb2.OCIRegistry(reference=reference, resolver=resolver)
            request = transfer_v1_pb2.TransferRequest(source=_any(source), destination=_any(store))
            secrets = _secrets(credential) if credential is not None else ()
            try:
                await self._call("transfer.v1.Transfer/Transfer", request, Empty, timeout_s=TRANSFER_S, secrets=secrets)
            except RuntimeCallFailed as error:
                failure = error
            if credential is not None:
                answering.cancel()
        if failure is not None:
            raise failure

    async def _answer(self, stream: str, is_registered: asyncio.Event, credential: Credential, server: str) -> None:
        """Answer containerd's questions for credentials. Where the stream fails, the transfer says so itself."""
        invoke = self._channel.stream_stream(
            f"{SERVICES}streaming.v1.Streaming/Stream",
            request_serializer=Any.SerializeToString,
            response_deserializer=Any.FromString,
        )
        call = invoke(timeout=TRANSFER_S, metadata=self._metadata())
        try:
            await call.write(_any(streaming_v1_pb2.StreamInit(id=stream)))
            async for question in call:
                if is_registered.is_set():
                    asked = types_transfer_pb2.AuthRequest.FromString(question.value)
                    is_meant = not server or urlsplit(server).netloc == asked.host
                    await call.write(_any(_login(credential) if is_meant else types_transfer_pb2.AuthResponse()))
                is_registered.set()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            is_registered.set()
            call.cancel()

    async def abort_ingest(self, ref: str) -> None:
        """Throw a half-written blob away. Raises NotFound."""
        await self._call("content.v1.Content/Abort", content_v1_pb2.AbortRequest(ref=ref), Empty)

    async def end_task(self, container_id: str) -> None:
        """Kill what runs as a container, and forget that it ran. One that is gone, or has ended, is fine."""
        with suppress(NotFound):
            kill = tasks_v1_pb2.KillRequest(container_id=container_id, signal=signal.SIGKILL)
            await self._call("tasks.v1.Tasks/Kill", kill, Empty)
            wait = tasks_v1_pb2.WaitRequest(container_id=container_id)
            await self._call("tasks.v1.Tasks/Wait", wait, tasks_v1_pb2.WaitResponse)
        with suppress(NotFound):
            delete = tasks_v1_pb2.DeleteTaskRequest(container_id=container_id)
            await self._call("tasks.v1.Tasks/Delete", delete, tasks_v1_pb2.DeleteResponse)

    async def store_events(self) -> AsyncIterator[StoreEvent]:
        """News of snapshots and names from the event bus, until the stream breaks."""
        async for envelope in self._envelopes(STORE_FILTER):
            event = store_event(envelope.event.type_url, envelope.event.value)
            if event is not None:
                yield event

    async def task_events(self) -> AsyncIterator[RuntimeEvent]:
        """Life of containers from the event bus, until the stream breaks."""
        async for envelope in self._envelopes(TASK_FILTER):
            event = task_event(envelope.event.type_url, envelope.event.value)
            if event is not None:
                yield event

    async def _envelopes(self, topics: str) -> AsyncIterator[types_pb2.Envelope]:
        stream = self._channel.unary_stream(
            f"{SERVICES}events.v1.Events/Subscribe",
            request_serializer=events_v1_pb2.SubscribeRequest.SerializeToString,
            response_deserializer=types_pb2.Envelope.FromString,
        )
        request = events_v1_pb2.SubscribeRequest(filters=[f"namespace=={self._namespace},{topics}"])
        try:
            async for envelope in stream(request, metadata=self._metadata()):
                yield envelope
        except grpc.aio.AioRpcError as error:
            raise translated("Subscribe", error) from None

    async def _stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        invoke = self._channel.unary_stream(
            SERVICES + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            async for part in invoke(request, timeout=REQUEST_S, metadata=self._metadata()):
                yield part
        except grpc.aio.AioRpcError as error:
            raise translated(method.rpartition("/")[2], error) from None

    def _metadata(self) -> list[tuple[str, str]]:
        return [("containerd-namespace", self._namespace)]

    async def _call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        *,
        timeout_s: float | None = None,
        secrets: Iterable[str] = (),
    ) -> Answer:
        name = method.rpartition("/")[2]
        invoke = self._channel.unary_unary(
            SERVICES + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        call = invoke(request, timeout=timeout_s or REQUEST_S, metadata=self._metadata())
        return await observed(name, call, self._observe, secrets=secrets)


def task_event(type_url: str, value: bytes) -> RuntimeEvent | None:
    """The news in an event of the bus, or None. Exits of exec'd processes are no news of the container."""
    match type_url:
        case "containerd.events.TaskCreate":
            return RuntimeEvent(EventKind.CREATED, eventtypes_pb2.TaskCreate.FromString(value).container_id)
        case "containerd.events.TaskStart":
            return RuntimeEvent(EventKind.STARTED, eventtypes_pb2.TaskStart.FromString(value).container_id)
        case "containerd.events.TaskOOM":
            return RuntimeEvent(EventKind.OOM, eventtypes_pb2.TaskOOM.FromString(value).container_id)
        case "containerd.events.TaskExit":
            ended = eventtypes_pb2.TaskExit.FromString(value)
            if ended.id != ended.container_id:
                return None
            return RuntimeEvent(EventKind.STOPPED, ended.container_id, exit_code=ended.exit_status)
        case "containerd.events.TaskDelete":
            gone = eventtypes_pb2.TaskDelete.FromString(value)
            return RuntimeEvent(EventKind.DELETED, gone.container_id) if gone.id in ("", gone.container_id) else None
    return None


def store_event(type_url: str, value: bytes) -> StoreEvent | None:
    match type_url:
        case "containerd.events.SnapshotPrepare":
            return StoreEvent(StoreEventKind.UNPACKING, eventtypes_pb2.SnapshotPrepare.FromString(value).key)
        case "containerd.events.SnapshotCommit":
            return StoreEvent(StoreEventKind.UNPACKED, eventtypes_pb2.SnapshotCommit.FromString(value).name)
        case "containerd.services.images.v1.ImageCreate" | "containerd.events.ImageCreate":
            return StoreEvent(StoreEventKind.NAMED, images_v1_pb2.ImageCreate.FromString(value).name)
        case "containerd.services.images.v1.ImageUpdate" | "containerd.events.ImageUpdate":
            return StoreEvent(StoreEventKind.NAMED, images_v1_pb2.ImageUpdate.FromString(value).name)
        case "containerd.services.images.v1.ImageDelete" | "containerd.events.ImageDelete":
            return StoreEvent(StoreEventKind.UNNAMED, images_v1_pb2.ImageDelete.FromString(value).name)
    return None


def _any(message: Message) -> Any:
    """As containerd wants it: the type's bare name, without a host in front."""
    return Any(type_url=message.DESCRIPTOR.full_name, value=message.SerializeToString())


def _login(credential: Credential) -> types_transfer_pb2.AuthResponse:
    token = credential.identity_token.reveal()
    if token and not credential.username:
        return types_transfer_pb2.AuthResponse(authType=types_transfer_pb2.REFRESH, secret=token)
    return types_transfer_pb2.AuthResponse(
        authType=types_transfer_pb2.CREDENTIALS, username=credential.username, secret=credential.password.reveal()
    )


def _secrets(credential: Credential) -> list[str]:
    return login_values(credential.username, credential.password.reveal(), credential.identity_token.reveal())


def _blob(info: content_v1_pb2.Info) -> BlobInfo:
    return BlobInfo(info.digest, info.size, _seconds(info.created_at), dict(info.labels))


def _record(image: images_v1_pb2.Image) -> ImageRecord:
    target = image.target
    created_s = _seconds(image.created_at)
    return ImageRecord(image.name, target.digest, target.media_type, target.size, created_s, dict(image.labels))


def _seconds(moment: Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9
