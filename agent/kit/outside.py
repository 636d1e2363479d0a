# SPDX-License-Identifier: Apache-2.0
"""What the daemon has anyway, handed to the wiring of each plane."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.model.ending_pods import EndingPods
from agent.model.event import Event
from agent.model.file_system import ImagesOnDisk
from agent.model.span import Traces

if TYPE_CHECKING:
    # Importing them takes longer than a daemon without images, runtime or cluster has to start.
    from agent.devices.run.pod_devices import PodDevices
    from agent.drivers.kube.client import KubeClient
    from agent.images.run.puller import Puller
    from agent.kit.runtime import Runtime


log = structlog.get_logger(plane="daemon")


class CollectImages(Protocol):
    """Remove images that nothing needs; of some file systems `only`, by their devices."""

    async def __call__(self, *, only: Collection[int] = ()) -> object: ...


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration` gives the one in force; `kube` may find no API server yet; `collect_images` removes all that
    nothing needs, where the images plane runs here."""

    runtime: "Runtime"
    clock: SystemClock
    configuration: Callable[[], Configuration]
    environment: Mapping[str, str]
    tell: Callable[[Event], None]
    kube: "Callable[[], KubeClient | None]" = lambda: None
    puller: "Puller | None" = None
    collect_images: CollectImages | None = None
    images_on_disks: Callable[[], Awaitable[Sequence[ImagesOnDisk]]] | None = None
    devices: "PodDevices | None" = None
    endings: EndingPods = msgspec.field(default_factory=EndingPods)
    traces: Traces | None = None


def new_kube(configuration: Configuration, environment: Mapping[str, str], clock: SystemClock) -> "KubeClient | None":
    """A client of the API server, if this node has one; one that cannot work is reported, not used."""
    from agent.drivers.kube.errors import KubeError
    from agent.drivers.kube.kubeconfig import find_access

    kubernetes = configuration.kubernetes
    try:
        access = find_access(kubernetes.kubeconfig, kubernetes.servers, environment)
    except (KubeError, OSError) as error:
        log.error("kubernetes_access_failed", error=str(error))
        return None
    if access is None:
        return None
    # Only who has a cluster pays for what speaks HTTP.
    from agent.drivers.kube.client import KubeClient

    access = replace(access, compresses=kubernetes.compression == "auto")
    return KubeClient(access, clock=clock, qps=kubernetes.qps, burst=kubernetes.burst)
