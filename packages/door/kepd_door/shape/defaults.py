# SPDX-License-Identifier: Apache-2.0
"""What an API server fills in where an object says nothing, and clients with types of their own rely on. Never written:
what is shown beside a manifest is taken off again before it is compared with what a client sends back."""

from collections.abc import Mapping
from typing import Any

from agent.kinds.parts import items, part

Object = dict[str, Any]
POD: Mapping[str, Any] = {
    "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30, "securityContext": {}, "serviceAccountName": "default",
    "enableServiceLinks": True,
}  # fmt: skip
CONTAINER: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {},
}  # fmt: skip
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
SERVICE: Mapping[str, Any] = {"type": "ClusterIP", "sessionAffinity": "None"}
TEMPLATES = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job")
# Which a pod gets when it is made, and no template has.
OF_PODS = ("serviceAccountName", "enableServiceLinks")
STRATEGIES: Mapping[str, tuple[str, Object]] = {
    "Deployment": ("strategy", {"maxSurge": "25%", "maxUnavailable": "25%"}),
    "DaemonSet": ("updateStrategy", {"maxSurge": 0, "maxUnavailable": 1}),
    "StatefulSet": ("updateStrategy", {"partition": 0}),
}
OUTSIDE = ("NodePort", "LoadBalancer")


def filled(kind: str, body: Object) -> Object:
    """Of a Pod, a Service or a Secret; every other kind stays as it is."""
    spec = body.get("spec")
    if kind == "Namespace":
        status = {"phase": "Active", **(body.get("status") or {})}
        return {**body, "spec": {"finalizers": ["kubernetes"], **(spec or {})}, "status": status}
    if kind == "Secret":
        return {"type": "Opaque", **body}
    if not isinstance(spec, dict):
        return body
    if kind == "Pod":
        return {**body, "spec": _pod(spec)}
    if kind in TEMPLATES:
        return {**body, "spec": _with_strategy(kind, _with_template(spec))}
    if kind == "CronJob":
        jobs = part(spec, "jobTemplate")
        return {**body, "spec": {**spec, "jobTemplate": {**jobs, "spec": _with_template(part(jobs, "spec"))}}}
    if kind == "Service":
        ports = [_service_port(port) for port in items(spec, "ports")]
        return {**body, "spec": {**_of_service(spec), **({"ports": ports} if ports else {})}}
    return body


def _with_template(spec: Object) -> Object:
    template = part(spec, "template")
    if not template:
        return spec
    given = part(template, "spec")
    pod = {name: value for name, value in _pod(given).items() if name in given or name not in OF_PODS}
    return {**spec, "template": {**template, "spec": pod}}


def _with_strategy(kind: str, spec: Object) -> Object:
    if (usual := STRATEGIES.get(kind)) is None:
        return spec
    name, steps = usual
    strategy = {"type": "RollingUpdate", **part(spec, name)}
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = {**steps, **part(strategy, "rollingUpdate")}
    return {**spec, name: strategy}


def _pod(spec: Object) -> Object:
    lists = {part: [_container(each) for each in items(spec, part)] for part in CONTAINERS if spec.get(part)}
    return {**POD, **spec, **lists}


def _container(container: Object) -> Object:
    image = str(container.get("image") or "")
    is_latest = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
    ports = [{"protocol": "TCP", **port} for port in items(container, "ports")]
    policy = "Always" if is_latest else "IfNotPresent"
    return {**CONTAINER, "imagePullPolicy": policy, **container, **({"ports": ports} if ports else {})}


def _of_service(spec: Object) -> Object:
    """Of one that only names another host nothing is chosen."""
    if spec.get("type") == "ExternalName":
        return {
            "sessionAffinity": "None",
            **{name: it for name, it in spec.items() if not name.startswith("clusterIP")},
        }
    addresses = [str(each) for each in spec.get("clusterIPs") or [spec.get("clusterIP") or ""]]
    families = ["IPv6" if ":" in each else "IPv4" for each in addresses]
    more: Object = {"internalTrafficPolicy": "Cluster", "ipFamilies": families}
    more["ipFamilyPolicy"] = "SingleStack" if len(families) == 1 else "RequireDualStack"
    if spec.get("type") in OUTSIDE:
        more["externalTrafficPolicy"] = "Cluster"
    if spec.get("type") == "LoadBalancer":
        more["allocateLoadBalancerNodePorts"] = True
    return {**SERVICE, **more, **spec}


def _service_port(port: Object) -> Object:
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}
