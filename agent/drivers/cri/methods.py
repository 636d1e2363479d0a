# SPDX-License-Identifier: Apache-2.0
"""The methods of CRI as typed values: path, request, answer, and how long each may take.

Source of the deadlines: what a kubelet sets.
"""

from typing import Generic, TypeVar

import msgspec
from google.protobuf.message import Message

from agent.wire.cri import runtime_v1_pb2 as pb

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGE = "/runtime.v1.ImageService/"


class Method(msgspec.Struct, Generic[Request, Answer], frozen=True):
    """One unary method. `deadline_factor` multiplies the configured request timeout."""

    path: str
    request: type[Request]
    answer: type[Answer]
    deadline_factor: float = 1.0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


VERSION = Method(RUNTIME + "Version", pb.VersionRequest, pb.VersionResponse)
STATUS = Method(RUNTIME + "Status", pb.StatusRequest, pb.StatusResponse)
RUNTIME_CONFIG = Method(RUNTIME + "RuntimeConfig", pb.RuntimeConfigRequest, pb.RuntimeConfigResponse)
RUN_POD_SANDBOX = Method(RUNTIME + "RunPodSandbox", pb.RunPodSandboxRequest, pb.RunPodSandboxResponse, 2.0)
STOP_POD_SANDBOX = Method(RUNTIME + "StopPodSandbox", pb.StopPodSandboxRequest, pb.StopPodSandboxResponse)
REMOVE_POD_SANDBOX = Method(RUNTIME + "RemovePodSandbox", pb.RemovePodSandboxRequest, pb.RemovePodSandboxResponse)
POD_SANDBOX_STATUS = Method(RUNTIME + "PodSandboxStatus", pb.PodSandboxStatusRequest, pb.PodSandboxStatusResponse)
LIST_POD_SANDBOX = Method(RUNTIME + "ListPodSandbox", pb.ListPodSandboxRequest, pb.ListPodSandboxResponse)
CREATE_CONTAINER = Method(RUNTIME + "CreateContainer", pb.CreateContainerRequest, pb.CreateContainerResponse)
START_CONTAINER = Method(RUNTIME + "StartContainer", pb.StartContainerRequest, pb.StartContainerResponse)
STOP_CONTAINER = Method(RUNTIME + "StopContainer", pb.StopContainerRequest, pb.StopContainerResponse)
REMOVE_CONTAINER = Method(RUNTIME + "RemoveContainer", pb.RemoveContainerRequest, pb.RemoveContainerResponse)
LIST_CONTAINERS = Method(RUNTIME + "ListContainers", pb.ListContainersRequest, pb.ListContainersResponse)
CONTAINER_STATUS = Method(RUNTIME + "ContainerStatus", pb.ContainerStatusRequest, pb.ContainerStatusResponse)
EXEC_SYNC = Method(RUNTIME + "ExecSync", pb.ExecSyncRequest, pb.ExecSyncResponse)
CONTAINER_STATS = Method(RUNTIME + "ContainerStats", pb.ContainerStatsRequest, pb.ContainerStatsResponse)
LIST_CONTAINER_STATS = Method(
    RUNTIME + "ListContainerStats", pb.ListContainerStatsRequest, pb.ListContainerStatsResponse
)
UPDATE_CONTAINER_RESOURCES = Method(
    RUNTIME + "UpdateContainerResources", pb.UpdateContainerResourcesRequest, pb.UpdateContainerResourcesResponse
)
REOPEN_CONTAINER_LOG = Method(
    RUNTIME + "ReopenContainerLog", pb.ReopenContainerLogRequest, pb.ReopenContainerLogResponse
)
CHECKPOINT_CONTAINER = Method(
    RUNTIME + "CheckpointContainer", pb.CheckpointContainerRequest, pb.CheckpointContainerResponse, deadline_factor=10
)
EXEC = Method(RUNTIME + "Exec", pb.ExecRequest, pb.ExecResponse)
ATTACH = Method(RUNTIME + "Attach", pb.AttachRequest, pb.AttachResponse)
PORT_FORWARD = Method(RUNTIME + "PortForward", pb.PortForwardRequest, pb.PortForwardResponse)
LIST_IMAGES = Method(IMAGE + "ListImages", pb.ListImagesRequest, pb.ListImagesResponse)
IMAGE_STATUS = Method(IMAGE + "ImageStatus", pb.ImageStatusRequest, pb.ImageStatusResponse)
PULL_IMAGE = Method(IMAGE + "PullImage", pb.PullImageRequest, pb.PullImageResponse)
REMOVE_IMAGE = Method(IMAGE + "RemoveImage", pb.RemoveImageRequest, pb.RemoveImageResponse)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Method))
