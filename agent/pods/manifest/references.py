# SPDX-License-Identifier: Apache-2.0
"""Which ConfigMaps and Secrets a pod speaks of, so that a change of one wakes no other pod."""

from collections.abc import Iterator

from agent.model.pods.container_fields import Container
from agent.model.pods.fields import Volume
from agent.model.pods.pod import PodSpec

CONFIG_MAP, SECRET = "ConfigMap", "Secret"


def source_references(pod: PodSpec) -> frozenset[tuple[str, str, str]]:
    volumes = (which for volume in pod.spec.volumes for which in _of_volume(volume))
    variables = (which for one in pod.containers for which in _of_container(one.fields))
    pulls = ((SECRET, one.name) for one in pod.spec.image_pull_secrets)
    return frozenset((kind, pod.namespace, name) for kind, name in (*volumes, *variables, *pulls))


def _of_volume(volume: Volume) -> Iterator[tuple[str, str]]:
    if volume.config_map is not None:
        yield CONFIG_MAP, volume.config_map.name
    if volume.secret is not None:
        yield SECRET, volume.secret.secret_name
    for part in volume.projected.sources if volume.projected is not None else ():
        if part.config_map is not None:
            yield CONFIG_MAP, part.config_map.name
        if part.secret is not None:
            yield SECRET, part.secret.name


def _of_container(container: Container) -> Iterator[tuple[str, str]]:
    for entry in container.env_from:
        if entry.config_map_ref is not None:
            yield CONFIG_MAP, entry.config_map_ref.name
        if entry.secret_ref is not None:
            yield SECRET, entry.secret_ref.name
    for env in container.env:
        if env.value_from is not None and env.value_from.config_map_key_ref is not None:
            yield CONFIG_MAP, env.value_from.config_map_key_ref.name
        if env.value_from is not None and env.value_from.secret_key_ref is not None:
            yield SECRET, env.value_from.secret_key_ref.name
