# SPDX-License-Identifier: Apache-2.0
"""The container runtime by CRI, over gRPC: a deadline for every call, and counts of calls and their ends."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any

import grpc

from agent.drivers.cri import methods
from agent.drivers.cri.image_settings import read_image_settings
from agent.drivers.cri.methods import Answer, Method, Request
from agent.drivers.grpc_channel import Observer, observed, open_channel, translated
from agent.model.runtime.error import NotFound, NotImplementedByRuntime
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.model.runtime.features import RuntimeFeatures
from agent.model.text.outside_text import login_values
from agent.wire.cri import runtime_v1_pb2 as pb

EVENT_KINDS = {
    pb.CONTAINER_CREATED_EVENT: EventKind.CREATED,
    pb.CONTAINER_STARTED_EVENT: EventKind.STARTED,
    pb.CONTAINER_STOPPED_EVENT: EventKind.STOPPED,
    pb.CONTAINER_DELETED_EVENT: EventKind.DELETED,
}

SNAPSHOTTER_PATH = re.compile(r"io\.containerd\.snapshotter\.v1\.([\w.-]+)")
IMAGE_FS_INFO = Method(methods.IMAGE + "ImageFsInfo", pb.ImageFsInfoRequest, pb.ImageFsInfoResponse)


class CriRuntime:
    """CRI's runtime and image services. `observe` hears (method, code, seconds) of every call."""

    def __init__(
        self,
        endpoint: str,
        image_endpoint: str = "",
        *,
        request_timeout_s: float = 120.0,
        observe: Observer | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.request_timeout_s = request_timeout_s
        self._runtime = open_channel(endpoint)
        self._image = self._runtime if image_endpoint in ("", endpoint) else open_channel(image_endpoint)
        self._methods: dict[str, Any] = {}
        self._observe = observe or (lambda _method, _code, _seconds: None)

    async def close(self) -> None:
        await self._runtime.close()
        if self._image is not self._runtime:
            await self._image.close()

    async def call(
        self,
        method: Method[Request, Answer],
        request: Request,
        *,
        deadline_s: float | None = None,
        bounded: bool = True,
        secrets: Iterable[str] = (),
    ) -> Answer:
        """One call. Unless `bounded` is off, it ends after `deadline_s` or the method's own limit. No failure has the
        `secrets` of the request in its text."""
        channel = self._image if method.path.startswith(methods.IMAGE) else self._runtime
        limit_s = deadline_s if deadline_s is not None else self.request_timeout_s * method.deadline_factor
        invoke = self._methods.get(method.path)
        if invoke is None:
            invoke = self._methods[method.path] = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.answer.FromString,
            )
        asked = invoke(request, timeout=limit_s if bounded else None)
        return await observed(method.name, asked, self._observe, secrets=secrets)

    async def version(self, deadline_s: float | None = None) -> pb.VersionResponse:
        return await self.call(methods.VERSION, pb.VersionRequest(), deadline_s=deadline_s)

    async def status(self, deadline_s: float | None = None) -> pb.RuntimeStatus:
        return (await self.call(methods.STATUS, pb.StatusRequest(), deadline_s=deadline_s)).status

    async def features(self, deadline_s: float | None = None) -> RuntimeFeatures:
        """What it can do. Older runtimes tell their way with control groups only among other things, as JSON."""
        version = await self.version(deadline_s)
        told = await self.call(methods.STATUS, pb.StatusRequest(verbose=True), deadline_s=deadline_s)
        config = pb.RuntimeConfigResponse()
        with suppress(NotImplementedByRuntime):
            config = await self.call(methods.RUNTIME_CONFIG, pb.RuntimeConfigRequest(), deadline_s=deadline_s)
        # An answer without this part says nothing, though its first value would be systemd.
        is_told = config.HasField("linux")
        by_systemd = config.linux.cgroup_driver == pb.SYSTEMD
        uses_systemd = by_systemd if is_told else told_to_use_systemd(told.info.get("config", ""))
        return RuntimeFeatures(
            name=version.runtime_name,
            version=version.runtime_version,
            uses_systemd=uses_systemd,
            user_namespaces=frozenset(one.name for one in told.runtime_handlers if one.features.user_namespaces),
            recursive_read_only=frozenset(
                one.name for one in told.runtime_handlers if one.features.recursive_read_only_mounts
            ),
            has_group_policy=told.features.supplemental_groups_policy,
            resolves_cdi=told_to_resolve_cdi(told.info.get("config", "")),
            cdi_directories=told_cdi_directories(told.info.get("config", "")),
        )

    async def maps_host_ports(self) -> bool | None:
        """Whether the pod network does, as it is configured now; None where the runtime does not say."""
        answer = await self.call(methods.STATUS, pb.StatusRequest(verbose=True))
        return says_ports_are_mapped(answer.info.get("cniconfig", ""))

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        """Each once, however often the runtime names it."""
        found = (await self.call(methods.LIST_POD_SANDBOX, pb.ListPodSandboxRequest())).items
        return [*{one.id: one for one in found}.values()]

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        """All of them, or those of one sandbox; each once, however often the runtime names it."""
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=sandbox_id))
        found = (await self.call(methods.LIST_CONTAINERS, request)).containers
        return [*{one.id: one for one in found}.values()]

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        return (await self.call(methods.POD_SANDBOX_STATUS, request)).status

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        return (await self.call(methods.CONTAINER_STATUS, pb.ContainerStatusRequest(container_id=container_id))).status

    async def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        return (await self.call(methods.RUN_POD_SANDBOX, request)).pod_sandbox_id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Kill what runs in it and take its network away. Stopping twice, or what is gone, is fine."""
        with suppress(NotFound):
            await self.call(methods.STOP_POD_SANDBOX, pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Forget it, with its containers. One that is gone already is fine."""
        await self.call(methods.REMOVE_POD_SANDBOX, pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str:
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        return (await self.call(methods.CREATE_CONTAINER, request)).container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container; one that ran before cannot be started again."""
        await self.call(methods.START_CONTAINER, pb.StartContainerRequest(container_id=container_id))

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        """Signal it, wait for the grace period, kill it. One that is gone already is fine."""
        request = pb.StopContainerRequest(container_id=container_id, timeout=grace_s)
        # containerd 1.6 answers NOT_FOUND where later ones answer OK to stopping what is gone.
        with suppress(NotFound):
            await self.call(methods.STOP_CONTAINER, request, deadline_s=grace_s + self.request_timeout_s)

    async def remove_container(self, container_id: str) -> None:
        """Forget it. One that is gone already is fine."""
        await self.call(methods.REMOVE_CONTAINER, pb.RemoveContainerRequest(container_id=container_id))

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        """Run a command in a container and wait for it; a non-zero exit code is an answer, not an error. A limit of 0
        is none: whoever asks for that bounds the call itself."""
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout_s)
        limit_s = timeout_s + self.request_timeout_s
        return await self.call(methods.EXEC_SYNC, request, deadline_s=limit_s, bounded=timeout_s > 0)

    async def sandbox_details(self, sandbox_id: str) -> pb.PodSandboxStatusResponse:
        """With what the runtime tells beyond the protocol, as JSON by key."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return await self.call(methods.POD_SANDBOX_STATUS, request)

    async def container_details(self, container_id: str) -> pb.ContainerStatusResponse:
        """The same of a container."""
        return await self.call(
            methods.CONTAINER_STATUS, pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        )

    async def writable_layers(self) -> Mapping[str, tuple[int, int]]:
        """Bytes and inodes that containers wrote into their own layers, by their ids."""
        answer = await self.call(methods.LIST_CONTAINER_STATS, pb.ListContainerStatsRequest())
        return {
            one.attributes.id: (one.writable_layer.used_bytes.value, one.writable_layer.inodes_used.value)
            for one in answer.stats
            if one.HasField("writable_layer")
        }

    async def memory_used(self, container_id: str) -> int | None:
        """Bytes that a container uses now; None where the runtime cannot tell."""
        request = pb.ContainerStatsRequest(container_id=container_id)
        stats = (await self.call(methods.CONTAINER_STATS, request)).stats
        used = stats.memory.usage_bytes.value or stats.memory.working_set_bytes.value
        return used or None

    async def update_resources(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        request = pb.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self.call(methods.UPDATE_CONTAINER_RESOURCES, request)

    async def reopen_log(self, container_id: str) -> None:
        """Write on into a new log file, after the old one got another name."""
        await self.call(methods.REOPEN_CONTAINER_LOG, pb.ReopenContainerLogRequest(container_id=container_id))

    async def checkpoint_container(self, container_id: str, location: str) -> None:
        """Write what runs into an archive. Raises NotImplementedByRuntime where the runtime cannot."""
        request = pb.CheckpointContainerRequest(container_id=container_id, location=location)
        await self.call(methods.CHECKPOINT_CONTAINER, request)

    async def exec_url(self, request: pb.ExecRequest) -> str:
        """Where the streams of a command can be had, once."""
        return (await self.call(methods.EXEC, request)).url

    async def attach_url(self, request: pb.AttachRequest) -> str:
        return (await self.call(methods.ATTACH, request)).url

    async def port_forward_url(self, request: pb.PortForwardRequest) -> str:
        return (await self.call(methods.PORT_FORWARD, request)).url

    async def image_status(self, image: str, *, handler: str = "") -> pb.Image | None:
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=image, runtime_handler=handler))
        answer = await self.call(methods.IMAGE_STATUS, request)
        return answer.image if answer.HasField("image") and answer.image.id else None

    async def list_images(self) -> list[pb.Image]:
        return list((await self.call(methods.LIST_IMAGES, pb.ListImagesRequest())).images)

    async def pull_image(
        self,
        image: str,
        auth: pb.AuthConfig | None = None,
        sandbox_config: pb.PodSandboxConfig | None = None,
        *,
        handler: str = "",
    ) -> str:
        """Pull; answers the image's id. Without a deadline: progress tells a slow pull from a dead one."""
        spec = pb.ImageSpec(image=image, runtime_handler=handler)
        request = pb.PullImageRequest(image=spec, auth=auth, sandbox_config=sandbox_config)
        secrets = login_values(auth.username, auth.password, auth.identity_token) if auth is not None else ()
        return (await self.call(methods.PULL_IMAGE, request, bounded=False, secrets=secrets)).image_ref

    async def remove_image(self, image: str) -> None:
        """Remove an image with all its names. One that is gone already is fine."""
        await self.call(methods.REMOVE_IMAGE, pb.RemoveImageRequest(image=pb.ImageSpec(image=image)))

    async def image_filesystem(self) -> str:
        """Where the runtime keeps images; empty if it does not say."""
        answer = await self.call(IMAGE_FS_INFO, pb.ImageFsInfoRequest())
        return answer.image_filesystems[0].fs_id.mountpoint if answer.image_filesystems else ""

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths on those of images, and of writable layers where the runtime keeps those apart."""
        answer = await self.call(IMAGE_FS_INFO, pb.ImageFsInfoRequest())
        images = tuple(one.fs_id.mountpoint for one in answer.image_filesystems if one.fs_id.mountpoint)
        return images, tuple(one.fs_id.mountpoint for one in answer.container_filesystems if one.fs_id.mountpoint)

    async def image_use(self) -> dict[str, int]:
        """Bytes of unpacked images, by the paths that they lie at."""
        answer = await self.call(IMAGE_FS_INFO, pb.ImageFsInfoRequest())
        return {one.fs_id.mountpoint: one.used_bytes.value for one in answer.image_filesystems}

    async def sandbox_image(self) -> str:
        """What sandboxes are made of, as containerd tells in its configuration; empty if this runtime does not."""
        image = (await self._told_config()).get("sandboxImage")
        return image if isinstance(image, str) else ""

    async def cni_folders(self) -> tuple[str, str]:
        """Where the runtime looks for lists of networks and for plugins; empty what it does not tell."""
        cni = _mapping(await self._told_config(), "cni")
        binaries = cni.get("binDirs")
        plugins = binaries[0] if isinstance(binaries, list) and binaries else cni.get("binDir")
        return str(cni.get("confDir") or ""), str(plugins or "")

    async def hosts_folder(self) -> str:
        """Where the runtime's hosts files of registries lie; empty if it has none, or does not tell."""
        registry = (await self._told_config()).get("registry")
        path = registry.get("configPath") if isinstance(registry, dict) else None
        return path.partition(":")[0] if isinstance(path, str) else ""

    async def snapshotters(self) -> frozenset[str]:
        """What unpacks images: by default, and for handlers that have one of their own; empty if it does not say."""
        filesystem = await self.image_filesystem()
        return snapshotters_in(await self._told_config(), filesystem)

    async def are_snapshot_annotations_off(self) -> bool:
        """Whether containerd keeps from snapshotters which image a layer belongs to; False if it does not say."""
        containerd = (await self._told_config()).get("containerd")
        return isinstance(containerd, dict) and containerd.get("disableSnapshotAnnotations") is True

    async def _told_config(self) -> dict[str, object]:
        answer = await self.call(methods.STATUS, pb.StatusRequest(verbose=True))
        try:
            config = json.loads(answer.info.get("config", "{}"))
        except ValueError:
            return {}
        if not isinstance(config, dict) or "registry" in config or "containerd" not in config:
            return config if isinstance(config, dict) else {}
        # containerd 2.x tells what is the runtime's alone.
        of_images = await read_image_settings(self.endpoint)
        containerd = {**_mapping(of_images, "containerd"), **_mapping(config, "containerd")}
        return {**of_images, **config, "containerd": containerd}

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        """The runtime's own event stream, until it breaks. Raises NotImplementedByRuntime where it has none."""
        async for event in self.event_messages():
            yield _event(pb.ContainerEventResponse.FromString(event))

    async def event_messages(self) -> AsyncGenerator[bytes]:
        """The same as messages of CRI, byte for byte."""
        stream = self._runtime.unary_stream(methods.RUNTIME + "GetContainerEvents")
        try:
            async for message in stream(b""):
                yield message
        except grpc.aio.AioRpcError as error:
            raise translated("GetContainerEvents", error) from None


def _event(event: pb.ContainerEventResponse) -> RuntimeEvent:
    exit_codes = {status.id: status.exit_code for status in event.containers_statuses}
    stopped = event.container_event_type == pb.CONTAINER_STOPPED_EVENT
    return RuntimeEvent(
        kind=EVENT_KINDS.get(event.container_event_type, EventKind.LOST),
        container_id=event.container_id,
        sandbox_id=event.pod_sandbox_status.id,
        exit_code=exit_codes.get(event.container_id) if stopped else None,
    )


def told_to_use_systemd(config: str) -> bool:
    """From the configuration that containerd shows: what its default handler has."""
    try:
        containerd = json.loads(config)["containerd"]
        options = containerd["runtimes"][containerd["defaultRuntimeName"]]["options"]
        return options.get("SystemdCgroup") is True
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def told_to_resolve_cdi(config: str) -> bool:
    """From the configuration that containerd shows; one that does not know CDI does not speak of it."""
    try:
        return json.loads(config)["enableCDI"] is True
    except (ValueError, KeyError, TypeError):
        return False


def told_cdi_directories(config: str) -> tuple[str, ...]:
    """From the configuration that containerd shows."""
    try:
        return tuple(one for one in json.loads(config)["cdiSpecDirs"] if isinstance(one, str))
    except (ValueError, KeyError, TypeError):
        return ()


def snapshotters_in(config: Mapping[str, object], filesystem: str) -> frozenset[str]:
    """From the configuration that containerd shows, and the path of its images, which later versions show alone."""
    names: list[object] = [found[1]] if (found := SNAPSHOTTER_PATH.search(filesystem)) else []
    containerd = config.get("containerd")
    if isinstance(containerd, dict):
        handlers = containerd.get("runtimes")
        names += [containerd.get("snapshotter")]
        names += [one.get("snapshotter") for one in _values(handlers) if isinstance(one, dict)]
    return frozenset(name for name in names if isinstance(name, str) and name)


def _mapping(config: Mapping[str, object], key: str) -> dict[str, object]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _values(mapping: object) -> list[object]:
    return list(mapping.values()) if isinstance(mapping, dict) else []


def says_ports_are_mapped(networks: str) -> bool | None:
    """From the networks that containerd shows: whether a plugin of one has the capability. Loopback is no network."""
    try:
        listed = [plugin["Network"] for network in json.loads(networks)["Networks"] for plugin in _plugins_of(network)]
        found = [(plugin["type"], bool((plugin.get("capabilities") or {}).get("portMappings"))) for plugin in listed]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    own = [can for kind, can in found if kind != "loopback"]
    return any(own) if own else None


def _plugins_of(network: Mapping[str, Any]) -> list[Any]:
    plugins: list[Any] = network["Config"]["Plugins"]
    return plugins
