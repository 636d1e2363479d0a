# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices as a cluster's controller writes them: with the pods behind addresses, and one, without endpoints, for
a Service that selects no pod which is ready. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.kinds.parts import items, part
from agent.kinds.table import FACTS

Object = dict[str, Any]
OF_SERVICE, MANAGER = "kubernetes.io/service-name", "endpointslice.kubernetes.io/managed-by"
CONTROLLER, MIRROR = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"


def by_address(pods: Iterable[Object]) -> Mapping[str, Object]:
    return {part(pod, "status")["podIP"]: pod for pod in pods if part(pod, "status").get("podIP")}


def written_slices(objects: Iterable[Object]) -> list[Object]:
    """As their manifests have them, and for rows."""
    return [{**made, FACTS: {**part(made, FACTS), "endpoints": [NO_ENDPOINT]}} for made in objects]


def is_of_another(made: Object, written: Sequence[Object]) -> bool:
    """Made of slices that are shown themselves."""
    service = _service_of(made)
    return any(_service_of(each) == service for each in written)


def _service_of(made: Object) -> tuple[str, str]:
    metadata = part(made, "metadata")
    return str(metadata.get("namespace") or ""), str(part(metadata, "labels").get(OF_SERVICE) or "")


def with_targets(made: Object, pods: Mapping[str, Object]) -> Object:
    """Of a slice that kepd made of the pods that run here; one of a manifest says itself whose its addresses are."""
    metadata = part(made, "metadata")
    if metadata.get("uid") or not part(metadata, "labels").get(OF_SERVICE):
        return made
    endpoints = [_with_target(one, metadata.get("namespace", ""), pods) for one in items(made, "endpoints")]
    if not any("targetRef" in one for one in endpoints):
        return made
    labels = {**part(metadata, "labels"), MANAGER: CONTROLLER}
    return {**made, "metadata": {**metadata, "labels": labels}, "endpoints": endpoints}


def _with_target(endpoint: Object, namespace: str, pods: Mapping[str, Object]) -> Object:
    pod = next((pods[one] for one in endpoint.get("addresses") or () if one in pods), None)
    if pod is None or pod["metadata"].get("namespace") != namespace or "targetRef" in endpoint:
        return endpoint
    named = {name: pod["metadata"].get(name) for name in ("name", "namespace", "uid")}
    node = part(pod, "spec").get("nodeName")
    return {**endpoint, "targetRef": {"kind": "Pod", **named}} | ({"nodeName": node} if node else {})


def empty_slices(services: Iterable[Object], slices: Sequence[Object]) -> Iterator[Object]:
    known = set(map(_service_of, slices))
    for service in services:
        namespace, name = service["metadata"].get("namespace", ""), service["metadata"]["name"]
        if not part(service, "spec").get("selector") or (namespace, name) in known:
            continue
        labels = {OF_SERVICE: name, MANAGER: CONTROLLER}
        yield {
            "metadata": {"name": f"{name}-ipv4", "namespace": namespace, "labels": labels},
            "addressType": "IPv4", "ports": [], "endpoints": [], FACTS: {"source": "", "endpoints": [NO_ENDPOINT]},
        }  # fmt: skip


def mirrored(endpoints: Iterable[Object], slices: Sequence[Object]) -> Iterator[Object]:
    """Of Endpoints that somebody wrote, whichever of their ports a Service has."""
    known = set(map(_service_of, slices))
    for made in endpoints:
        namespace, name = made["metadata"].get("namespace", ""), made["metadata"]["name"]
        for number, subset in enumerate(items(made, "subsets") if (namespace, name) not in known else ()):
            addresses = [one.get("ip") for one in items(subset, "addresses")]
            ready = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
            labels = {OF_SERVICE: name, MANAGER: MIRROR}
            yield {
                "metadata": {"name": f"{name}-mirror-{number + 1}", "namespace": namespace, "labels": labels},
                "addressType": "IPv6" if any(":" in str(address) for address in addresses) else "IPv4",
                "ports": items(subset, "ports"), "endpoints": ready,
                FACTS: {"source": "", "endpoints": [NO_ENDPOINT]},
            }  # fmt: skip


NO_ENDPOINT = dict.fromkeys(("namespace", "service", "port", "protocol", "endpoint", "node", "state", "reason"), "") | {
    "zones": [], "nodes": [], "isUsed": False, "isUsedLocally": False,
}  # fmt: skip
