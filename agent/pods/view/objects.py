# SPDX-License-Identifier: Apache-2.0
"""A pod as Kubernetes has it, made of its state in one step, for kubectl's recipes, jq and every reader of kepd.

Zeros stand where Kubernetes has them (`exitCode: 0`, `restartCount: 0`, `ready: false`), for a recipe that asks for
one must not get `null`. What only kepd knows stands in `kepd`. Variables are shown by name alone.
"""

from functools import lru_cache
from typing import Any

import msgspec

from agent.kinds.table import FACTS, Object
from agent.model.pods.pod import PodOwner
from agent.model.pods.shown_spec import LEFT_OUT, has_values, without_copy, without_values
from agent.model.pods.state import RUNNING, TERMINATED, ContainerState, PodState, Termination
from agent.model.pods.wall_clock import stamp

OWNER_VERSIONS = {"Job": "batch/v1", "ReplicationController": "v1"}
STATUS_LISTS = {"main": "containerStatuses", "ephemeral": "ephemeralContainerStatuses"}
INIT_STATUSES = "initContainerStatuses"


def pod_object(pod: PodState) -> Object:
    # With lists, as all that reads JSON expects them.
    manifest: Object = msgspec.json.decode(msgspec.json.encode(pod.spec))
    annotations = without_copy(dict(pod.annotations)) | ({LEFT_OUT: "true"} if has_values(manifest) else {})
    created = _time(pod.created_at_s)
    metadata: Object = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    metadata |= _set(labels=dict(pod.labels), annotations=annotations, creationTimestamp=created)
    metadata |= msgspec.to_builtins(pod.given) | {"generation": _generation(pod)}
    if pod.deletion_at_s:
        metadata["deletionTimestamp"] = _time(pod.deletion_at_s)
        metadata["deletionGracePeriodSeconds"] = pod.deletion_grace_s
    if pod.owner is not None:
        metadata["ownerReferences"] = [_owner(pod.owner)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(pod, without_values(manifest)),
        "status": _status(pod, created),
        FACTS: _facts(pod),
    }


def container_object(part: tuple[PodState, ContainerState]) -> Object:
    """One container beside its pod."""
    pod, container = part
    return {
        "kind": "Container",
        "metadata": {"name": container.name, "namespace": pod.namespace},
        "spec": {"pod": pod.name, "kind": container.kind},
        "status": _container_status(container),
    }


def _generation(pod: PodState) -> int:
    """That of its manifest, and one more for each change that stands in no manifest."""
    added = sum(container.kind == "ephemeral" for container in pod.containers)
    return pod.given.generation + added + bool(pod.deletion_at_s)


def _spec(pod: PodState, manifest: Object) -> Object:
    spec: Object = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}
    if pod.manifest_name and pod.name.startswith(f"{pod.manifest_name}-"):
        # Whoever appended the node's name runs it there.
        spec["nodeName"] = pod.name.removeprefix(f"{pod.manifest_name}-")
    spec |= manifest
    spec["containers"] = [_with_zeros(container) for container in spec.get("containers", ())]
    # No manifest has them.
    ephemeral = [container for container in pod.containers if container.kind == "ephemeral"]
    spec |= _set(ephemeralContainers=[{"name": each.name, "image": each.image} for each in ephemeral])
    return spec


def _status(pod: PodState, created: str) -> Object:
    parts = (pod.message, f"waits for: {pod.waits_for}" if pod.waits_for else "")
    message = "; ".join(part for part in parts if part)
    status: Object = {"phase": pod.phase, "observedGeneration": _generation(pod)}
    status |= _set(reason=pod.reason, message=message, qosClass=pod.qos, startTime=created)
    status |= _set(hostIP=next(iter(pod.host_ips), ""), hostIPs=[{"ip": address} for address in pod.host_ips])
    if pod.ip:
        status |= {"podIP": pod.ip, "podIPs": [{"ip": pod.ip}]}
    status["conditions"] = [
        {
            "type": condition.type,
            "status": "True" if condition.is_true else "False",
            "observedGeneration": status["observedGeneration"],
        }
        | _set(
            reason=condition.reason,
            message=condition.message,
            lastTransitionTime=_time(condition.since_s) or created,
        )
        for condition in pod.conditions
    ]
    status |= _set(
        resourceClaimStatuses=[{"name": use.name, "resourceClaimName": use.claim} for use in pod.resource_claims]
    )
    for container in pod.containers:
        status.setdefault(STATUS_LISTS.get(container.kind, INIT_STATUSES), []).append(_container_status(container))
    return status


def _facts(pod: PodState) -> Object:
    return {"status": pod.status} | _set(
        cause=pod.cause,
        waitsFor=pod.waits_for,
        manifest=pod.file,
        manifestName=pod.manifest_name,
        nameServers=pod.name_servers,
        sandboxID=pod.sandbox_id,
        resources=_amounts(pod.resources.requests, pod.resources.limits),
        sidecars=[container.name for container in pod.containers if container.kind == "sidecar"],
        volumes=[
            {"name": volume.name, "source": volume.source} | _set(mounts=list(volume.mounts)) for volume in pod.volumes
        ],
    )


def _owner(owner: PodOwner) -> Object:
    group = OWNER_VERSIONS.get(owner.kind, "apps/v1")
    named = {"apiVersion": group, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def _with_zeros(container: Object) -> Object:
    ports = [{"protocol": "TCP", **port} for port in container.get("ports", ())]
    return {**container, "resources": container.get("resources", {}), **_set(ports=ports)}


def _container_status(container: ContainerState) -> Object:
    last = container.last
    amounts = _amounts(container.resources.requests, container.resources.limits)
    return {
        "name": container.name,
        "state": _state(container),
        "lastState": {"terminated": _terminated(last)} if last is not None else {},
        "ready": container.is_ready,
        "started": container.is_started,
        "restartCount": container.restart_count,
        "image": container.image,
        "imageID": container.image_id,
    } | _set(
        containerID=_runtime_id(container.id),
        resources=amounts,
        allocatedResources=amounts.get("requests"),
        stopSignal=container.stop_signal,
        allocatedResourcesStatus=[
            {"name": name, "resources": devices} for name, devices in _devices_by_resource(container).items()
        ],
    )


def _amounts(requests: dict[str, Any], limits: dict[str, Any]) -> Object:
    return _set(
        requests={name: str(amount) for name, amount in requests.items()},
        limits={name: str(amount) for name, amount in limits.items()},
    )


def _devices_by_resource(container: ContainerState) -> dict[str, list[Object]]:
    devices: dict[str, list[Object]] = {}
    for device in container.devices:
        devices.setdefault(device.resource, []).append({"resourceID": device.id, "health": device.health})
    return devices


def _state(container: ContainerState) -> Object:
    if container.state == RUNNING:
        return {"running": _set(startedAt=_time(container.started_at_s))}
    if container.state == TERMINATED:
        return {"terminated": _terminated(container.end) | _set(containerID=_runtime_id(container.id))}
    return {"waiting": _set(reason=container.reason, message=container.message)}


def _terminated(end: Termination) -> Object:
    times = _set(startedAt=_time(end.started_at_s), finishedAt=_time(end.finished_at_s))
    return {"exitCode": end.exit_code, "reason": end.reason} | _set(message=end.message) | times


def _runtime_id(container: str) -> str:
    return f"containerd://{container}" if container else ""


def _set(**values: object) -> Object:
    """Those that say something."""
    return {name: value for name, value in values.items() if value}


@lru_cache(1024)
def _time(wall_s: float) -> str:
    """Most of a pod's are the same."""
    return stamp(wall_s) if wall_s else ""
