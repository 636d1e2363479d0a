# SPDX-License-Identifier: Apache-2.0
"""What an API server fills in where an object says nothing, and clients with types of their own rely on. Never written:
what is shown beside a manifest is taken off again before it is compared with what a client sends back."""

from collections.abc import Mapping
from typing import Any

from agent.kinds.parts import items

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
SERVICE: Mapping[str, Any] = {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}


def filled(kind: str, body: Object) -> Object:
    """Of a Pod, a Service or a Secret; every other kind stays as it is."""
    spec = body.get("spec")
    if kind == "Secret":
        return {"type": "Opaque", **body}
    if not isinstance(spec, dict):
        return body
    if kind == "Pod":
        return {**body, "spec": _pod(spec)}
    if kind == "Service":
        ports = [_service_port(port) for port in items(spec, "ports")]
        return {**body, "spec": {**SERVICE, **spec, **({"ports": ports} if ports else {})}}
    return body


def _pod(spec: Object) -> Object:
    lists = {part: [_container(each) for each in items(spec, part)] for part in CONTAINERS if spec.get(part)}
    return {**POD, **spec, **lists}


def _container(container: Object) -> Object:
    image = str(container.get("image") or "")
    is_latest = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
    ports = [{"protocol": "TCP", **port} for port in items(container, "ports")]
    policy = "Always" if is_latest else "IfNotPresent"
    return {**CONTAINER, "imagePullPolicy": policy, **container, **({"ports": ports} if ports else {})}


def _service_port(port: Object) -> Object:
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}
