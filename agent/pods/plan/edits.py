# SPDX-License-Identifier: Apache-2.0
"""Which edits of a manifest replace the pod that runs. docs/edits.md says in words what comes of each field.

A pod without a uid of its own is another after any edit but one of images. One with its own is replaced where its
sandbox is made of what changed; else it goes on, and containers whose definition changed restart (`container_hash`).
Pure.
"""

import msgspec
from msgspec.structs import fields, replace

from agent.model.pods.fields import PodFields, Volume
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.model.pods.shown_spec import without_copy

CONTAINERS = ("containers", "init_containers")
IN_PLACE, REPLACED, RESIZED = "in place", "pod replaced", "resized"
_IN_PLACE = """
containers initContainers volumes restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds hostAliases os
priority priorityClassName preemptionPolicy readinessGates serviceAccountName serviceAccount
automountServiceAccountToken enableServiceLinks imagePullSecrets tolerations schedulerName schedulingGates
topologySpreadConstraints
"""
_REPLACED = """
dnsPolicy dnsConfig hostNetwork hostPID hostIPC hostUsers shareProcessNamespace hostname hostnameOverride subdomain
setHostnameAsFQDN securityContext overhead runtimeClassName nodeName nodeSelector affinity resourceClaims
"""
# Each field of a pod's spec and of a volume has a row.
POD = dict.fromkeys(_IN_PLACE.split(), IN_PLACE) | dict.fromkeys(_REPLACED.split(), REPLACED) | {"resources": RESIZED}
VOLUME = dict.fromkeys(("name", "configMap", "secret", "downwardAPI"), IN_PLACE)
VOLUME |= dict.fromkeys(("emptyDir", "hostPath", "projected", "image", "persistentVolumeClaim"), REPLACED)


def replaced_by(before: PodSpec, after: PodSpec) -> str:
    """The field for which the pod has to be replaced; empty where it goes on."""
    if before.key != after.key:
        return "metadata.name"
    found = [f"spec.{name}" for name in _changed(before.spec, after.spec) if POD[name] == REPLACED]
    volumes = {one.name: one for one in before.spec.volumes}
    for one in after.spec.volumes:
        changed = _changed(volumes.get(one.name, one), one)
        # A volume of another kind stands elsewhere than what is mounted.
        if len(changed) > 1 or any(VOLUME[name] == REPLACED for name in changed):
            found.append(f"spec.volumes[{one.name}]")
    if _of_sandbox(before) != _of_sandbox(after):
        found.append("ports.hostPort or securityContext.privileged")
    return ", ".join(found)


def has_new_images_alone(before: PodSpec, after: PodSpec) -> bool:
    """Whether nothing else differs. A pod of a cluster takes an edit of images in place as well."""
    return _without_images(before) == _without_images(after)


def _without_images(pod: PodSpec) -> object:
    lists = {name: tuple(replace(one, image="") for one in getattr(pod.spec, name)) for name in CONTAINERS}
    return pod.labels, without_copy(pod.notes), pod.file, replace(pod.spec, **lists)


def _changed(before: PodFields | Volume, after: PodFields | Volume) -> list[str]:
    return [one.encode_name for one in fields(after) if getattr(before, one.name) != getattr(after, one.name)]


def _of_sandbox(pod: PodSpec) -> object:
    """What containers need of it: ports of the node, and the right to be privileged."""
    listed = [one.fields for one in pod.containers if one.kind is not ContainerKind.INIT]
    ports = {msgspec.structs.replace(port, name="") for one in listed for port in one.ports if port.host_port}
    contexts = [one.fields.security_context for one in pod.containers]
    return ports, any(one is not None and one.privileged for one in contexts)
