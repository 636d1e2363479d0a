# SPDX-License-Identifier: Apache-2.0
"""The columns that an API server has of its kinds, where kepctl's are others: kubectl prints what the server sends.

A word stands for the column of that title that kepctl has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import labels_of
from agent.kinds.table import Column, Object
from agent.kinds.written import AGE

NONE, UNKNOWN = "<none>", "<unknown>"
MOST_IN_A_LINE = 3
ROLE = "node-role.kubernetes.io/"


def _wide(title: str, cell: Callable[[Object], str]) -> Column[Object]:
    return Column(title, cell, wide=True)


def _of(*path: str, empty: str = NONE) -> Callable[[Object], str]:
    def cell(made: Object) -> str:
        value = part(made, *path[:-1]).get(path[-1])
        return empty if value in (None, "") else str(value)

    return cell


def _joined(words: Iterable[str]) -> str:
    return ",".join(words) or NONE


def _pairs(pairs: Mapping[str, object]) -> str:
    return _joined(f"{name}={value}" for name, value in sorted(pairs.items()))


def _few(words: Sequence[str], empty: str) -> str:
    """As many as a line has room for."""
    more = f" + {len(words) - MOST_IN_A_LINE} more..." if len(words) > MOST_IN_A_LINE else ""
    return ",".join(words[:MOST_IN_A_LINE]) + more if words else empty


def _slice_ports(made: Object) -> str:
    return _few([str(port.get("port") or "*") for port in items(made, "ports")], "<unset>")


def _slice_endpoints(made: Object) -> str:
    return _few([str(each) for one in items(made, "endpoints") for each in one.get("addresses") or ()], "<unset>")


def _cidrs(made: Object) -> str:
    return ",".join(map(str, part(made, "spec").get("cidrs") or ()))


def _count(made: Object, *path: str) -> str:
    return str(len(part(made, *path)))


def _addresses(*path: str) -> Callable[[Object], str]:
    """Of a load balancer."""
    return lambda made: ",".join(
        str(each.get("ip") or each.get("hostname") or "") for each in items(made, *path, "loadBalancer", "ingress")
    )


def _external(made: Object) -> str:
    spec = part(made, "spec")
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName") or "")
    given = [*filter(None, _addresses("status")(made).split(",")), *map(str, spec.get("externalIPs") or ())]
    return ",".join(dict.fromkeys(given)) or ("<pending>" if spec.get("type") == "LoadBalancer" else NONE)


def _ports(made: Object) -> str:
    def told(port: Object) -> str:
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port.get('port')}{node_port}/{port.get('protocol') or 'TCP'}"

    return _joined(map(told, items(made, "spec", "ports")))


def _conditions(made: Object) -> str:
    ready = next((each for each in items(made, "status", "conditions") if each.get("type") == "Ready"), {})
    text = {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Unknown")
    return f"{text},SchedulingDisabled" if part(made, "spec").get("unschedulable") else text


def _address(kind: str) -> Callable[[Object], str]:
    return lambda made: next(
        (str(each.get("address")) for each in items(made, "status", "addresses") if each.get("type") == kind), NONE
    )


def _roles(made: Object) -> str:
    return _joined(sorted(name.removeprefix(ROLE) for name in labels_of(made) if name.startswith(ROLE)))


def _involved(made: Object) -> str:
    about = part(made, "involvedObject")
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _gates(made: Object) -> str:
    gates = [str(gate.get("conditionType")) for gate in items(made, "spec", "readinessGates")]
    held = {str(each.get("type")) for each in items(made, "status", "conditions") if each.get("status") == "True"}
    return f"{sum(gate in held for gate in gates)}/{len(gates)}" if gates else NONE


def _of_pods(*path: str) -> tuple[Column[Object], Column[Object]]:
    def each(field: str) -> Callable[[Object], str]:
        return lambda made: ",".join(str(one.get(field, "")) for one in items(made, *path, "spec", "containers"))

    return _wide("CONTAINERS", each("name")), _wide("IMAGES", each("image"))


def _selector(made: Object) -> str:
    """Of labels, and what must hold of them."""
    selector = part(made, "spec", "selector")
    if not selector.keys() & {"matchLabels", "matchExpressions"}:
        return _pairs(selector)
    words = [f"{name}={value}" for name, value in sorted(part(selector, "matchLabels").items())]
    for one in items(selector, "matchExpressions"):
        key, values = str(one.get("key")), ",".join(sorted(map(str, one.get("values") or ())))
        how = str(one.get("operator"))
        words.append(
            {"Exists": key, "DoesNotExist": f"!{key}"}.get(how, f"{key} {'in' if how == 'In' else 'notin'} ({values})")
        )
    return _joined(words)


TEMPLATE, SELECTOR = _of_pods("spec", "template"), _wide("SELECTOR", _selector)
KUBE_COLUMNS: Mapping[str, Sequence[str | Column[Object]]] = {
    "pods": (
        "NAME", "READY", "STATUS", "RESTARTS", "AGE",
        _wide("IP", _of("status", "podIP")),
        _wide("NODE", _of("spec", "nodeName")),
        _wide("NOMINATED NODE", _of("status", "nominatedNodeName")),
        _wide("READINESS GATES", _gates),
    ),
    "services": (
        "NAME",
        Column("TYPE", _of("spec", "type", empty="ClusterIP")),
        Column("CLUSTER-IP", _of("spec", "clusterIP")),
        Column("EXTERNAL-IP", _external),
        Column("PORT(S)", _ports),
        AGE,
        SELECTOR,
    ),
    "deployments": ("NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", *TEMPLATE, SELECTOR),
    "replicasets": ("NAME", "DESIRED", "CURRENT", "READY", "AGE", *TEMPLATE, SELECTOR),
    "replicationcontrollers": ("NAME", "DESIRED", "CURRENT", "READY", "AGE", *TEMPLATE, SELECTOR),
    "statefulsets": ("NAME", "READY", "AGE", *TEMPLATE),
    "daemonsets": (
        "NAME", "DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE",
        Column("NODE SELECTOR", lambda made: _pairs(part(made, "spec", "template", "spec", "nodeSelector"))),
        "AGE", *TEMPLATE, SELECTOR,
    ),
    "jobs": ("NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE", *TEMPLATE, SELECTOR),
    "cronjobs": (
        "NAME", "SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST SCHEDULE", "AGE",
        *_of_pods("spec", "jobTemplate", "spec", "template"),
        _wide("SELECTOR", lambda made: _selector(part(made, "spec", "jobTemplate"))),
    ),
    "configmaps": (
        "NAME", Column("DATA", lambda made: str(len(part(made, "data")) + len(part(made, "binaryData")))), AGE,
    ),
    "secrets": (
        "NAME", Column("TYPE", _of("type", empty="Opaque")), Column("DATA", lambda made: _count(made, "data")), AGE,
    ),
    "events": (
        "LAST SEEN", "TYPE", "REASON",
        Column("OBJECT", _involved),
        _wide("SUBOBJECT", _of("involvedObject", "fieldPath", empty="")),
        _wide("SOURCE", _of("source", "component", empty="")),
        "MESSAGE",
        _wide("FIRST SEEN", lambda made: AGE.cell({"metadata": {"creationTimestamp": made.get("firstTimestamp")}})),
        _wide("COUNT", _of("count", empty="1")),
        _wide("NAME", _of("metadata", "name")),
    ),
    "nodes": (
        Column("NAME", _of("metadata", "name")),
        Column("STATUS", _conditions),
        Column("ROLES", _roles),
        AGE,
        Column("VERSION", _of("status", "nodeInfo", "kubeletVersion", empty="")),
        _wide("INTERNAL-IP", _address("InternalIP")),
        _wide("EXTERNAL-IP", _address("ExternalIP")),
        _wide("OS-IMAGE", _of("status", "nodeInfo", "osImage", empty=UNKNOWN)),
        _wide("KERNEL-VERSION", _of("status", "nodeInfo", "kernelVersion", empty=UNKNOWN)),
        _wide("CONTAINER-RUNTIME", _of("status", "nodeInfo", "containerRuntimeVersion", empty=UNKNOWN)),
    ),
    "namespaces": ("NAME", "STATUS", "AGE"),
    "serviceaccounts": ("NAME", "AGE"),
    "ingresses": (
        "NAME", "CLASS", "HOSTS",
        Column("ADDRESS", _addresses("status")),
        Column("PORTS", lambda made: "80, 443" if items(made, "spec", "tls") else "80"),
        "AGE",
    ),
    "ingressclasses": ("NAME", "CONTROLLER", Column("PARAMETERS", _of("spec", "parameters", "name")), "AGE"),
    "networkpolicies": ("NAME", "POD-SELECTOR", "AGE"),
    "servicecidrs": ("NAME", Column("CIDRS", _cidrs), AGE),
    "endpointslices": (
        Column("NAME", _of("metadata", "name")), Column("ADDRESSTYPE", _of("addressType")),
        Column("PORTS", _slice_ports),
        Column("ENDPOINTS", _slice_endpoints), AGE,
    ),
    "persistentvolumeclaims": (
        "NAME", "STATUS", "VOLUME", "CAPACITY", "ACCESS MODES", "STORAGECLASS",
        Column("VOLUMEATTRIBUTESCLASS", _of("spec", "volumeAttributesClassName", empty="<unset>")), "AGE",
        _wide("VOLUMEMODE", _of("spec", "volumeMode", empty="Filesystem")),
    ),
    "persistentvolumes": (
        "NAME", "CAPACITY", "ACCESS MODES", "RECLAIM POLICY", "STATUS", "CLAIM", "STORAGECLASS",
        Column("VOLUMEATTRIBUTESCLASS", _of("spec", "volumeAttributesClassName", empty="<unset>")),
        Column("REASON", _of("status", "reason", empty="")), "AGE",
        _wide("VOLUMEMODE", _of("spec", "volumeMode", empty="Filesystem")),
    ),
    "limitranges": ("NAME", Column("CREATED AT", _of("metadata", "creationTimestamp", empty=""))),
    "resourcequotas": ("NAME", "REQUEST", "LIMIT", "AGE"),
    "podtemplates": (
        "NAME", *(Column(column.title, column.cell) for column in _of_pods("template")),
        Column("POD LABELS", lambda made: _pairs(part(made, "template", "metadata", "labels"))),
    ),
    "leases": ("NAME", "HOLDER", "AGE"),
    "runtimeclasses": ("NAME", "HANDLER", "AGE"),
    "priorityclasses": (
        "NAME", "VALUE", "GLOBAL-DEFAULT", "AGE",
        Column("PREEMPTIONPOLICY", _of("preemptionPolicy", empty="PreemptLowerPriority")),
    ),
    "resourceclaims": ("NAME", "STATE", "AGE"),
    "resourceclaimtemplates": ("NAME", AGE),
    "resourceslices": (
        "NAME", Column("NODE", _of("spec", "nodeName", empty="<unset>")), Column("DRIVER", _of("spec", "driver")),
        Column("POOL", _of("spec", "pool", "name")), AGE,
    ),
    "deviceclasses": ("NAME", AGE),
}  # fmt: skip


def columns_as_served(resource: str, columns: Sequence[Column[Object]]) -> list[Column[Object]]:
    """`columns` are those of kepctl."""
    if resource not in KUBE_COLUMNS:
        return list(columns)
    known = {column.title: column for column in columns}
    served = (known[column] if isinstance(column, str) else column for column in KUBE_COLUMNS[resource])
    return list(served)
