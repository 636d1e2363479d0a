# SPDX-License-Identifier: Apache-2.0
"""Objects that an API server always has, and nobody writes: the authority of its certificate in each namespace, and the
Service by which it is found. Who deletes or changes one finds it as it was."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.kinds.shown import How, Offer
from agent.kinds.table import FACTS, names_of
from agent.model.placed import Walk

Object = dict[str, Any]
FindOffer = Callable[[], Awaitable[Offer]]
Always = Callable[[Sequence[Object]], Awaitable[Iterable[Object]]]
FindChange = Callable[[], Awaitable[Callable[[Object], Object | None]]]
AUTHORITY, SERVICE = "kube-root-ca.crt", "kubernetes"
HTTPS = 443
LEASES, RENEWED_S = "kube-node-lease", 10


def with_lasting(find_offer: FindOffer, always: Always, changes: FindChange | None = None) -> FindOffer:
    """What is written under the name of one stands in its place. `always` is given all others, and `changes` finds what
    is made of each of these, None for one that is not shown."""

    async def found() -> Offer:
        offer = await find_offer()

        async def walk(how: How, after: str) -> Walk[Object]:
            change = await changes() if changes is not None else None
            others = []
            async for place, given in offer.walk(how, after):
                made = change(given) if change is not None else given
                if made is not None:
                    others.append(made)
                    yield place, made
            seen = set(map(names_of, others))
            for made in await always(others):
                if (key := names_of(made)) not in seen:
                    yield "/".join(key), made

        return Offer(walk, offer.follow, offer.notes)

    return found


def _lasting(namespace: str, name: str, body: Mapping[str, Any], **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace} | ({"labels": labels} if labels else {})
    return {"metadata": metadata, **body, FACTS: {"source": ""}}


def root_certificates(authority: str, namespaces: Iterable[str]) -> list[Object]:
    return [_lasting(namespace, AUTHORITY, {"data": {"ca.crt": authority}}) for namespace in namespaces]


def own_service(port: int) -> Object:
    """Without an address of its own: the door listens where its key says."""
    ports = [{"name": "https", "protocol": "TCP", "port": HTTPS, "targetPort": port}]
    spec = {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": ports}
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return _lasting("default", SERVICE, {"spec": spec, "status": {"loadBalancer": {}}}, **labels)


def own_slice(host: str, port: int) -> Object:
    family = "IPv6" if ":" in host else "IPv4"
    body = {
        "addressType": family, "ports": [{"name": "https", "protocol": "TCP", "port": port}],
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
    }  # fmt: skip
    made = _lasting("default", SERVICE, body)
    made["metadata"]["labels"] = {"kubernetes.io/service-name": SERVICE}
    no_use = dict.fromkeys(("isUsed", "isUsedLocally"), False) | {"zones": [], "nodes": [], "reason": "", "node": ""}
    shown = {"namespace": "default", "service": SERVICE, "port": "https", "protocol": "TCP", "state": "ready"}
    made[FACTS]["endpoints"] = [{**shown, **no_use, "endpoint": f"{host}:{port}"}]
    return made


def node_lease(node: Object, now_s: float) -> Object:
    """Renewed as long as anybody is answered."""
    name = node["metadata"]["name"]
    at = datetime.fromtimestamp(now_s - now_s % RENEWED_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    spec = {"holderIdentity": name, "leaseDurationSeconds": RENEWED_S * 4, "renewTime": at}
    made = _lasting(LEASES, name, {"spec": spec})
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    made["metadata"]["ownerReferences"] = [owner]
    return made


def own_range(networks: Sequence[str]) -> Object:
    """Where Services have their addresses from, beside what is written."""
    made = _lasting("", SERVICE, {"spec": {"cidrs": list(networks)}})
    ready = {"type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready"}
    return {**made, "status": {"conditions": [ready]}}
