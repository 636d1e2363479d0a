# SPDX-License-Identifier: Apache-2.0
"""What people are told of a pod's volumes, and of its named ports. Never: what is in them."""

from collections.abc import Iterator

from agent.model.finding import printable
from agent.model.pods.fields import Projection, Volume
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import NamedPort, VolumeState


def volumes_of(pod: PodSpec) -> tuple[VolumeState, ...]:
    return tuple(
        VolumeState(name=one.name, source=printable(_source(one)), mounts=tuple(_mounts(pod, one.name)))
        for one in pod.spec.volumes
    )


def _mounts(pod: PodSpec, volume: str) -> Iterator[str]:
    for container in pod.containers:
        for mount in container.fields.volume_mounts:
            if mount.name == volume:
                yield printable(f"{container.name}:{mount.mount_path}") + (" (ro)" if mount.read_only else "")


def _source(one: Volume) -> str:
    if one.host_path is not None:
        return f"hostPath {one.host_path.path}"
    if one.config_map is not None:
        return f"configMap {one.config_map.name}"
    if one.secret is not None:
        return f"secret {one.secret.secret_name}"
    if one.image is not None:
        return f"image {one.image.reference}"
    if one.downward_api is not None:
        return "downwardAPI"
    if one.projected is not None:
        return f"projected {', '.join(_projected(source) for source in one.projected.sources)}"
    medium = one.empty_dir.medium if one.empty_dir is not None else ""
    return f"emptyDir in {medium}" if medium else "emptyDir"


def _projected(source: Projection) -> str:
    if source.config_map is not None:
        return f"configMap {source.config_map.name}"
    if source.secret is not None:
        return f"secret {source.secret.name}"
    return "downwardAPI" if source.downward_api is not None else "of another kind"


def named_ports(pod: PodSpec) -> tuple[NamedPort, ...]:
    return tuple(
        NamedPort(name=port.name, port=port.container_port)
        for container in pod.containers
        for port in container.fields.ports
        if port.name
    )
