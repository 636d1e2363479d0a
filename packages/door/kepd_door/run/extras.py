# SPDX-License-Identifier: Apache-2.0
"""What has no objects on the node and is answered all the same: reviews of rights, figures for `top`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from agent.wire.kepd.v1 import access_pb2, node_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.shape.resources import READ, Resource
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
# More than reading, beside what is written: they are levels of the calls that carry them out.
OPERATED = ("exec", "attach", "portforward", "eviction", "scale")
WINDOW = "30s"


def review(resource: Resource, body: Any, caller: Caller) -> Object:  # noqa: ANN401  # JSON
    if not isinstance(body, dict):
        raise Failure(400, f"the body is no {resource.object_kind}")
    made: Object = {
        "apiVersion": resource.api_version,
        "kind": resource.object_kind,
        "metadata": {"creationTimestamp": None},
    }
    made["spec"] = body.get("spec") or {}
    if resource.object_kind == "SelfSubjectReview":
        return made | {"status": {"userInfo": {"username": caller.name, "groups": [caller.name]}}}
    if resource.object_kind == "SelfSubjectRulesReview":
        verbs = ["*"] if caller.level >= access_pb2.LEVEL_OPERATE else list(READ)
        rule = {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]}
        return made | {"status": {"resourceRules": [rule], "nonResourceRules": [], "incomplete": False}}
    asked = made["spec"].get("resourceAttributes") or {}
    is_read = asked.get("verb", "get") in READ and asked.get("subresource", "") not in OPERATED
    is_allowed = is_read or caller.level >= access_pb2.LEVEL_OPERATE
    reason = "" if is_allowed else f"{caller.name} may read; `kepctl kubeconfig --level operate` gives more"
    return made | {"status": {"allowed": is_allowed} | ({"reason": reason} if reason else {})}


async def usage(calls: Calls, caller: Caller, resource: Resource, namespace: str, name: str) -> Object:
    """Figures of the node or of pods, as the metrics API has them."""
    found = await calls.ask(caller, node_pb2.ListStatsRequest(), node_pb2.ListStatsResponse)
    made = [_node(found.node)] if resource.name == "nodes" else [_pod(one) for one in found.pods]
    if namespace:
        made = [one for one in made if one["metadata"].get("namespace") == namespace]
    made = [one for one in made if name in ("", one["metadata"]["name"])]
    if name:
        if not made:
            raise Failure(404, f'{resource.name}.metrics.k8s.io "{name}" not found', name=name, kind=resource.name)
        return made[0]
    return {"kind": f"{resource.object_kind}List", "apiVersion": resource.api_version, "metadata": {}, "items": made}


def _head(kind: str, metadata: Object) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": kind,
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": metadata,
        "timestamp": now,
        "window": WINDOW,
    }


def _amounts(one: node_pb2.Usage) -> Object:
    return {"cpu": f"{int(one.cpu_cores * 1e9)}n", "memory": f"{one.memory_bytes >> 10}Ki"}


def _node(one: node_pb2.NodeUsage) -> Object:
    return _head("NodeMetrics", {"name": one.name}) | {"usage": _amounts(one.usage)}


def _pod(one: node_pb2.PodUsage) -> Object:
    containers: Sequence[Object] = [{"name": each.name, "usage": _amounts(each.usage)} for each in one.containers]
    return _head("PodMetrics", {"name": one.name, "namespace": one.namespace}) | {"containers": containers}
