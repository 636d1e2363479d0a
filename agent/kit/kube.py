# SPDX-License-Identifier: Apache-2.0
"""The client of the API server, for the planes that have use of one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="daemon")


def new_kube(configuration: Configuration, environment: Mapping[str, str], clock: SystemClock) -> "KubeClient | None":
    """None where this node has no API server, and where access to it cannot work, which the log says."""
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
