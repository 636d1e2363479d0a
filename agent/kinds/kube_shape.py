# SPDX-License-Identifier: Apache-2.0
"""Objects as Kubernetes has them, made of the daemon's messages, for kubectl's recipes and jq.

Zeros stand where Kubernetes has them (`exitCode: 0`, `restartCount: 0`, `ready: false`), for a recipe that asks for
one must not get `null`. What stands in a manifest is the object; what the node knows is laid over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from agent.wire.kepd.v1 import node_pb2, object_pb2, pod_pb2
    from agent.wire.kepd.v1 import service_proxy_pb2 as pb

Object = dict[str, Any]
Ports = tuple[tuple[str, str, int], ...]
STATUS_LISTS = {"main": "containerStatuses", "ephemeral": "ephemeralContainerStatuses"}
INIT_STATUSES = "initContainerStatuses"


def list_of(objects: Iterable[Object]) -> Object:
    """What kubectl prints for more than one."""
    return {"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {"resourceVersion": ""}}


def pod_object(pod: pod_pb2.Pod) -> Object:
    metadata: Object = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    metadata |= _set(
        labels=dict(pod.labels), annotations=dict(pod.annotations), creationTimestamp=_time(pod.created_at)
    )
    if pod.HasField("deletion_at"):
        metadata |= {
            "deletionTimestamp": _time(pod.deletion_at), "deletionGracePeriodSeconds": pod.deletion_grace_seconds
        }  # fmt: skip
    if pod.HasField("owner"):
        metadata["ownerReferences"] = [_owner(pod.owner)]
    spec: Object = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}
    spec |= json.loads(pod.spec or b"{}")
    spec["containers"] = [_with_zeros(one) for one in spec.get("containers", ())]
    # No manifest has them.
    spec |= _set(
        ephemeralContainers=[
            {"name": one.name, "image": one.image} for one in pod.containers if one.kind == "ephemeral"
        ]
    )
    if pod.name.startswith(f"{pod.manifest_name}-") and pod.manifest_name:
        # Whoever appended the node's name runs it there.
        spec = {"nodeName": pod.name.removeprefix(f"{pod.manifest_name}-"), **spec}
    status: Object = {"phase": pod.phase}
    status |= _set(reason=pod.reason, message=pod.message, qosClass=pod.qos_class, startTime=_time(pod.created_at))
    status |= _set(hostIP=next(iter(pod.host_ips), ""), hostIPs=[{"ip": one} for one in pod.host_ips])
    if pod.ip:
        status |= {"podIP": pod.ip, "podIPs": [{"ip": pod.ip}]}
    status["conditions"] = [
        {"type": one.type, "status": "True" if one.status else "False"}
        | _set(reason=one.reason, message=one.message, lastTransitionTime=_time(one.since) or _time(pod.created_at))
        for one in pod.conditions
    ]
    status |= _set(
        resourceClaimStatuses=[{"name": one.name, "resourceClaimName": one.claim} for one in pod.resource_claims]
    )
    for one in pod.containers:
        status.setdefault(STATUS_LISTS.get(one.kind, INIT_STATUSES), []).append(_container_status(one))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _owner(owner: pod_pb2.PodOwner) -> Object:
    group = "batch/v1" if owner.kind == "Job" else "apps/v1"
    named = {"apiVersion": group, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def _with_zeros(container: Object) -> Object:
    ports = [{"protocol": "TCP", **port} for port in container.get("ports", ())]
    return {**container, "resources": container.get("resources", {}), **_set(ports=ports)}


def _container_status(one: pod_pb2.Container) -> Object:
    last: Object = {}
    if one.HasField("last"):
        last = {"terminated": _terminated(one.last)}
    return {
        "name": one.name,
        "state": _state(one),
        "lastState": last,
        "ready": one.ready,
        "started": one.started,
        "restartCount": one.restart_count,
        "image": one.image,
        "imageID": one.image_id,
    } | _set(
        containerID=f"containerd://{one.id}" if one.id else "",
        resources=_set(requests=dict(one.resources.requests), limits=dict(one.resources.limits)),
        allocatedResources=dict(one.resources.requests),
        allocatedResourcesStatus=[
            {"name": name, "resources": found} for name, found in _devices_by_resource(one).items()
        ],
    )


def _devices_by_resource(one: pod_pb2.Container) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for device in one.devices:
        found.setdefault(device.resource, []).append({"resourceID": device.id, "health": device.health})
    return found


def _state(one: pod_pb2.Container) -> Object:
    if one.state == "Running":
        return {"running": _set(startedAt=_time(one.started_at))}
    if one.state == "Terminated":
        return {"terminated": _terminated(one) | _set(containerID=f"containerd://{one.id}" if one.id else "")}
    return {"waiting": _set(reason=one.reason, message=one.message)}


def _terminated(one: pod_pb2.Container | pod_pb2.Termination) -> Object:
    times = _set(startedAt=_time(one.started_at), finishedAt=_time(one.finished_at))
    return {"exitCode": one.exit_code, "reason": one.reason} | _set(message=one.message) | times


def service_object(service: pb.Service, manifest: Object | None = None) -> Object:
    made: Object = manifest or {"metadata": {"name": service.name, "namespace": service.namespace}, "spec": {}}
    spec: Object = dict(made.get("spec", {}))
    ports = _service_ports(service) if not manifest else spec.get("ports", ())
    spec["ports"] = [{"protocol": "TCP", "targetPort": port.get("port"), **port} for port in ports]
    spec |= _set(type=service.type, clusterIP=service.cluster_ips[0] if service.cluster_ips else "")
    spec |= _set(
        clusterIPs=list(service.cluster_ips), externalIPs=spec.get("externalIPs") or list(service.external_ips)
    )
    spec |= {"sessionAffinity": "ClientIP" if service.affinity_s else "None"}
    if service.affinity_s:
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": service.affinity_s}}
    status = {"loadBalancer": {}, **made.get("status", {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": made["metadata"], "spec": spec, "status": status}


def _service_ports(service: pb.Service) -> list[Object]:
    """One for each port, whatever its families."""
    found: dict[tuple[str, str, int], Object] = {}
    for one in service.ports:
        port = {"port": one.port, "protocol": one.protocol} | _set(name=one.name, nodePort=one.node_port)
        found.setdefault((one.name, one.protocol, one.port), port)
    return list(found.values())


def slice_objects(endpoints: Sequence[pb.Endpoint]) -> list[tuple[Object, list[int]]]:
    """EndpointSlices: the endpoints of one Service and family whose ports have the same numbers, with their places."""
    by_address: dict[tuple[str, str, str, str], list[pb.Endpoint]] = {}
    places: dict[int, int] = {}
    for place, one in enumerate(endpoints):
        by_address.setdefault((one.namespace, one.service, one.family, _host(one)), []).append(one)
        places[id(one)] = place
    slices: dict[tuple[str, str, str, Ports], list[Sequence[pb.Endpoint]]] = {}
    for (namespace, service, family, _), ports in by_address.items():
        numbers: Ports = tuple(sorted({(one.port, one.protocol, _port(one)) for one in ports}))
        slices.setdefault((namespace, service, family, numbers), []).append(ports)
    counts: dict[str, int] = {}
    made = []
    for (namespace, service, family, group), found in slices.items():
        stem = f"{service}-{family.lower()}"
        counts[f"{namespace}/{stem}"] = place = counts.get(f"{namespace}/{stem}", 0) + 1
        metadata = {
            "name": stem if place == 1 else f"{stem}-{place}",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        }
        body: Object = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata}
        body["addressType"] = family
        body["ports"] = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in group]
        body["endpoints"] = [_endpoint(ports) for ports in found]
        made.append((body, sorted(places[id(one)] for ports in found for one in ports)))
    return made


def _endpoint(ports: Sequence[pb.Endpoint]) -> Object:
    one = ports[0]
    conditions = {
        "ready": one.state.startswith("ready"),
        "serving": one.state.startswith("ready") or "serving" in one.state,
        "terminating": "terminating" in one.state,
    }
    hints = _set(forZones=[{"name": zone} for zone in one.zones], forNodes=[{"name": node} for node in one.nodes])
    return {"addresses": [_host(one)], "conditions": conditions} | _set(nodeName=one.node, hints=hints)


def _host(one: pb.Endpoint) -> str:
    return one.endpoint.rpartition(":")[0].strip("[]")


def _port(one: pb.Endpoint) -> int:
    return int(one.endpoint.rpartition(":")[2] or 0)


KIND_BY_PLANE = {"services": "Service", "topology": "Service"}


def kind_of(event: node_pb2.Event) -> str:
    return event.object_kind or (KIND_BY_PLANE.get(event.plane, "Pod") if event.object_name else "Node")


def event_object(event: node_pb2.Event) -> Object:
    namespace = event.namespace or "default"
    involved: Object = {"kind": kind_of(event)}
    involved |= _set(name=event.object_name, namespace=event.namespace)
    if event.container:
        involved["fieldPath"] = f"spec.containers{{{event.container}}}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.id, "namespace": namespace} | _set(creationTimestamp=_time(event.first_seen)),
        "involvedObject": involved,
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "count": max(event.count, 1),
        "source": {"component": "kepd"},
        "reportingComponent": f"kepd/{event.plane}",
        "reportingInstance": "",
        "firstTimestamp": _time(event.first_seen) or None,
        "lastTimestamp": _time(event.last_seen) or None,
    }


def manifest_object(one: object_pb2.Object) -> Object:
    content: Object = json.loads(one.content)
    metadata = {**(content.get("metadata") or {}), "name": one.name} | _set(namespace=one.namespace)
    return {"apiVersion": "v1", "kind": one.kind, **content, "metadata": metadata}


def labels_of(made: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: str(value) for name, value in (made.get("metadata", {}).get("labels") or {}).items()}


def _set(**values: object) -> Object:
    """Those that say something."""
    return {name: value for name, value in values.items() if value}


def _time(stamp: Timestamp) -> str:
    return stamp.ToDatetime().strftime("%Y-%m-%dT%H:%M:%SZ") if stamp.seconds else ""
