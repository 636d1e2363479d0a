# SPDX-License-Identifier: Apache-2.0
"""Objects as Kubernetes has them, made of what planes report, for kubectl's recipes and jq.

Zeros stand where Kubernetes has them (`exitCode: 0`, `restartCount: 0`, `ready: false`), for a recipe that asks for
one must not get `null`. What stands in a manifest is the object; what the node knows is laid over it.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from agent.kinds.table import FACTS, Object

Ports = tuple[tuple[str, str, int], ...]


def list_of(objects: Iterable[Object]) -> Object:
    """What kubectl prints for more than one."""
    return {"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {"resourceVersion": ""}}


def service_object(service: Object, manifest: Object) -> Object:
    """`service` is what is programmed of it; `manifest` what its file says, empty where no file has it."""
    facts = service[FACTS]
    made = manifest or service
    spec: Object = dict(made.get("spec", {}))
    ports = spec.get("ports", ()) if manifest else _service_ports(facts["ports"])
    spec["ports"] = [{"protocol": "TCP", "targetPort": port.get("port"), **port} for port in ports]
    spec |= _set(type=facts["type"], clusterIP=next(iter(facts["clusterIps"]), ""))
    spec |= _set(clusterIPs=facts["clusterIps"], externalIPs=spec.get("externalIPs") or facts["externalIps"])
    affinity_s = facts["affinitySeconds"]
    spec |= {"sessionAffinity": "ClientIP" if affinity_s else "None"}
    if affinity_s:
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": affinity_s}}
    status = {"loadBalancer": {}, **made.get("status", {})}
    shown = {"apiVersion": "v1", "kind": "Service", "metadata": made["metadata"], "spec": spec, "status": status}
    return {**shown, FACTS: facts}


def _service_ports(ports: Iterable[Object]) -> list[Object]:
    """One for each port, whatever its families."""
    shown: dict[tuple[str, str, int], Object] = {}
    for port in ports:
        said = {"port": port["port"], "protocol": port["protocol"]}
        said |= _set(name=port["name"], nodePort=port["nodePort"])
        shown.setdefault((port["name"], port["protocol"], port["port"]), said)
    return list(shown.values())


def slice_objects(endpoints: Sequence[Object]) -> list[tuple[Object, list[int]]]:
    """EndpointSlices: the endpoints of one Service and family whose ports have the same numbers, with their places."""
    by_address: dict[tuple[str, ...], list[tuple[int, Object]]] = {}
    for place, made in enumerate(endpoints):
        endpoint = made["status"]
        key = (endpoint["namespace"], endpoint["service"], endpoint["family"], _host(endpoint))
        by_address.setdefault(key, []).append((place, endpoint))
    slices: dict[tuple[str, str, str, Ports], list[list[tuple[int, Object]]]] = {}
    for (namespace, service, family, _), ports in by_address.items():
        numbers: Ports = tuple(sorted({(each["port"], each["protocol"], _port(each)) for _, each in ports}))
        slices.setdefault((namespace, service, family, numbers), []).append(ports)
    counts: dict[str, int] = {}
    made_slices = []
    for (namespace, service, family, numbers), addresses in slices.items():
        stem = f"{service}-{family.lower()}"
        counts[f"{namespace}/{stem}"] = count = counts.get(f"{namespace}/{stem}", 0) + 1
        metadata = {
            "name": stem if count == 1 else f"{stem}-{count}",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        }
        body: Object = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata}
        body["addressType"] = family
        body["ports"] = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in numbers]
        body["endpoints"] = [_endpoint(ports[0][1]) for ports in addresses]
        body[FACTS] = {"endpoints": [endpoint for ports in addresses for _, endpoint in ports]}
        made_slices.append((body, sorted(place for ports in addresses for place, _ in ports)))
    return made_slices


def _endpoint(endpoint: Object) -> Object:
    state: str = endpoint["state"]
    conditions = {
        "ready": state.startswith("ready"),
        "serving": state.startswith("ready") or "serving" in state,
        "terminating": "terminating" in state,
    }
    hints = _set(
        forZones=[{"name": zone} for zone in endpoint["zones"]], forNodes=[{"name": node} for node in endpoint["nodes"]]
    )
    shown = {"addresses": [_host(endpoint)], "conditions": conditions}
    return shown | _set(nodeName=endpoint["node"], hints=hints)


def _host(endpoint: Object) -> str:
    address: str = endpoint["endpoint"]
    return address.rpartition(":")[0].strip("[]")


def _port(endpoint: Object) -> int:
    return int(endpoint["endpoint"].rpartition(":")[2] or 0)


KIND_BY_PLANE = {"services": "Service", "topology": "Service"}


def kind_of(event: Object) -> str:
    kind: str = event["objectKind"]
    return kind or (KIND_BY_PLANE.get(event["plane"], "Pod") if event["objectName"] else "Node")


def event_object(event: Object) -> Object:
    """`event` has the fields of the plane's report."""
    involved: Object = {"kind": kind_of(event)}
    involved |= _set(name=event["objectName"], namespace=event["namespace"])
    if event["container"]:
        involved["fieldPath"] = f"spec.containers{{{event['container']}}}"
    first, last = event.get("firstSeen"), event.get("lastSeen")
    metadata = {"name": event["id"], "namespace": event["namespace"] or "default"} | _set(creationTimestamp=first)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": involved,
        "type": "Warning" if event["isWarning"] else "Normal",
        "reason": event["reason"],
        "message": event["message"],
        "count": max(event["count"], 1),
        "source": {"component": "kepd"},
        "reportingComponent": f"kepd/{event['plane']}",
        "reportingInstance": "",
        "firstTimestamp": first,
        "lastTimestamp": last,
        FACTS: event,
    }


READY = {"True": "KubeletReady", "False": "KubeletNotReady"}
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
PRESSURE_REASONS = {
    "MemoryPressure": "KubeletHasSufficientMemory", "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}  # fmt: skip


def node_object(node: Object) -> Object:
    """`node` has the fields of GetNode."""
    runtime = node.get("runtime") or {}
    is_ready = bool(runtime.get("isConnected"))
    status = str(is_ready)
    # When the daemon began: what changed since then is told by events.
    since = {"lastHeartbeatTime": node.get("startedAt"), "lastTransitionTime": node.get("startedAt")}
    told = [
        {"type": name, "status": str(name in node.get("conditions", ())), "reason": PRESSURE_REASONS[name], **since}
        for name in PRESSURES
    ]
    ready = {"type": "Ready", "status": status, "reason": READY[status], "message": runtime.get("message", "")}
    addresses = [{"type": "InternalIP", "address": address} for address in node.get("addresses", ())]
    runtime_version = f"{runtime.get('name', '')}://{runtime.get('version', '')}" if is_ready else ""
    info = {
        "kubeletVersion": f"kepd {node.get('kepdVersion', '')}", "containerRuntimeVersion": runtime_version,
        "kernelVersion": node.get("kernelVersion", ""), "operatingSystem": "linux", "osImage": node.get("osImage", ""),
        "architecture": node.get("architecture", ""), "bootID": node.get("bootId", ""),
        "machineID": node.get("machineId", ""), "systemUUID": "", "kubeProxyVersion": "",
    }  # fmt: skip
    metadata = {"name": node["name"], "labels": node.get("labels", {})} | _set(creationTimestamp=node.get("startedAt"))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"unschedulable": True} if node.get("drain") else {},
        "status": {
            "capacity": node.get("capacity", {}),
            "allocatable": node.get("allocatable", {}),
            "conditions": [*told, {**ready, **since}],
            "addresses": [*addresses, {"type": "Hostname", "address": node["name"]}],
            "nodeInfo": info,
        },
        FACTS: node,
    }


class Listed(Protocol):
    """An object of the manifests, as it comes in the process or as a message."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def content(self) -> bytes: ...
    @property
    def source(self) -> str: ...
    @property
    def version(self) -> str: ...


def manifest_object(listed: Listed) -> Object:
    content: Object = json.loads(listed.content)
    metadata = {**(content.get("metadata") or {}), "name": listed.name} | _set(namespace=listed.namespace)
    facts = {"source": listed.source, "version": listed.version}
    return {"apiVersion": "v1", "kind": listed.kind, **content, "metadata": metadata, FACTS: facts}


def _set(**values: object) -> Object:
    """Those that say something."""
    return {name: value for name, value in values.items() if value}
