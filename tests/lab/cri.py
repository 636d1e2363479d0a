# SPDX-License-Identifier: Apache-2.0
"""CRI calls by method name over a unix socket.

Owns: one gRPC channel and the rule that method X of the runtime or image service takes XRequest and returns XResponse.
Never: retries, or hides an error; `grpc.RpcError` reaches the caller as it came.
"""

from pathlib import Path
from typing import Any, Self

import grpc

from agent.wire.cri import runtime_v1_pb2 as cri_pb

__all__ = ["Cri"]

IMAGE_METHODS = frozenset({"ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"})
METADATA_BYTES = 1 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Cri:
    """A client; usable as a context manager."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel = self._connect()

    def _connect(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix://{self.socket}", options=OPTIONS)

    def reconnect(self) -> None:
        """Forget an earlier connection and its back-off, after the other side was started anew."""
        self._channel.close()
        self._channel = self._connect()

    def call(self, method: str, request: Any, within_s: float = 30.0) -> Any:
        """One unary call; the deadline is always set."""
        service = "ImageService" if method in IMAGE_METHODS else "RuntimeService"
        invoke = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(cri_pb, f"{method}Response").FromString,
        )
        return invoke(request, timeout=within_s)

    def pull(self, reference: str, within_s: float = 60.0) -> str:
        """Pull an image; returns its id."""
        request = cri_pb.PullImageRequest(image=cri_pb.ImageSpec(image=reference))
        return str(self.call("PullImage", request, within_s).image_ref)

    def has_image(self, reference: str) -> bool:
        request = cri_pb.ImageStatusRequest(image=cri_pb.ImageSpec(image=reference))
        return bool(self.call("ImageStatus", request).HasField("image"))

    def remove_image(self, reference: str) -> None:
        self.call("RemoveImage", cri_pb.RemoveImageRequest(image=cri_pb.ImageSpec(image=reference)))

    def remove_all_pods(self, within_s: float = 30.0) -> None:
        """Stop and remove every pod, then what containers are left."""
        pods = self.call("ListPodSandbox", cri_pb.ListPodSandboxRequest(), within_s).items
        for pod in pods:
            self.call("StopPodSandbox", cri_pb.StopPodSandboxRequest(pod_sandbox_id=pod.id), within_s)
            self.call("RemovePodSandbox", cri_pb.RemovePodSandboxRequest(pod_sandbox_id=pod.id), within_s)
        for container in self.call("ListContainers", cri_pb.ListContainersRequest(), within_s).containers:
            self.call("RemoveContainer", cri_pb.RemoveContainerRequest(container_id=container.id), within_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
