# SPDX-License-Identifier: Apache-2.0
"""Random clusters without kubelets, and random changes of them: what a scheduler, hints and spread decide upon."""

import random
from collections.abc import Sequence
from typing import Any

Object = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
MODES: tuple[Object, ...] = (
    {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    {"trafficDistribution": "PreferSameZone"},
    {"trafficDistribution": "PreferSameNode"},
    {},
)
POLICIES = ("Auto", "None", "PreferSameZone", "PreferSameNode", "Local", "Cluster")


def nodes(dice: random.Random) -> list[Object]:
    zones = "abcd"[: dice.choice((2, 3, 3, 3, 4))]
    even = dice.random() < 0.5
    size = dice.choice(("2", "4", "8"))
    found = []
    for number in range(dice.randint(len(zones), 8)):
        name = f"n{number}"
        labels = {HOST: name, ZONE: zones[number % len(zones)], "disk": dice.choice(("ssd", "hdd"))}
        if dice.random() < 0.05:
            labels["node-role.kubernetes.io/control-plane"] = ""
        taints = []
        if dice.random() < 0.15:
            taints.append({"key": "dedicated", "value": "x", "effect": "NoSchedule"})
        if dice.random() < 0.2:
            taints.append({"key": "slow", "value": "yes", "effect": "PreferNoSchedule"})
        cpu = size if even else dice.choice(("2", "3", "4", "8"))
        room = {"cpu": cpu, "memory": dice.choice(("4Gi", "8Gi", "16Gi")), "pods": dice.choice(("110", "110", "6"))}
        found.append(node(name, labels, taints, room, is_cordoned=dice.random() < 0.05))
    return found


def node(name: str, labels: Object, taints: Sequence[Object], room: Object, *, is_cordoned: bool = False) -> Object:
    spec: Object = {"taints": list(taints)} | ({"unschedulable": True} if is_cordoned else {})
    status = {
        "capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True", "reason": "Told"}],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": status}  # fmt: skip


def workloads(dice: random.Random) -> list[Object]:
    """Each with its Service."""
    found: list[Object] = []
    for name in ("web", "api", "db")[: dice.randint(1, 3)]:
        kind = dice.choice(("Deployment", "Deployment", "Deployment", "StatefulSet"))
        spec: Object = {
            "replicas": dice.randint(1, 9), "selector": {"matchLabels": {"app": name}},
            "template": template(dice, name),
        }  # fmt: skip
        if kind == "StatefulSet":
            spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        found += [_named("apps/v1", kind, name, spec), service(dice, name)]
    if dice.random() < 0.3:
        inner = {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [container(dice)]}}
        spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": inner}
        found += [_named("apps/v1", "DaemonSet", "agent", spec), service(dice, "agent")]
    return found


def _named(version: str, kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    about = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec}


def service(dice: random.Random, name: str) -> Object:
    mode = dice.choice(MODES)
    spec: Object = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 80}]}
    if "trafficDistribution" in mode:
        spec["trafficDistribution"] = mode["trafficDistribution"]
    if dice.random() < 0.15:
        spec["internalTrafficPolicy"] = "Local"
    return _named("v1", "Service", name, spec, annotations=mode.get("annotations", {}))


def template(dice: random.Random, name: str) -> Object:
    labels = {"app": name}
    spec: Object = {"containers": [container(dice) for _ in range(dice.choice((1, 1, 2)))]}
    if dice.random() < 0.6:
        spec["topologySpreadConstraints"] = [_constraint(dice, labels, key) for key in _keys(dice)]
    if dice.random() < 0.2:
        spec["nodeSelector"] = {"disk": "ssd"}
    if dice.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if dice.random() < 0.3:
        spec["affinity"] = {"nodeAffinity": _affinity(dice)}
    if dice.random() < 0.4:
        spec.setdefault("affinity", {})[dice.choice(("podAffinity", "podAntiAffinity"))] = _between_pods(dice)
    if dice.random() < 0.2:
        spec["initContainers"] = [container(dice), {**container(dice), "restartPolicy": "Always"}]
        for number, one in enumerate(spec["initContainers"]):
            one["name"] = f"first{number}"
    for number, one in enumerate(spec["containers"]):
        one["name"] = f"c{number}"
    return {"metadata": {"labels": labels}, "spec": spec}


def _keys(dice: random.Random) -> list[str]:
    return dice.choice(([ZONE], [HOST], [ZONE, HOST]))


def _constraint(dice: random.Random, labels: Object, key: str) -> Object:
    hard = dice.random() < 0.5
    made: Object = {
        "maxSkew": dice.choice((1, 1, 2)), "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway", "labelSelector": {"matchLabels": labels},
    }  # fmt: skip
    if dice.random() < 0.3:
        made["nodeTaintsPolicy"] = "Honor"
    if dice.random() < 0.2:
        made["matchLabelKeys"] = ["pod-template-hash"]
    if hard and dice.random() < 0.15:
        made["minDomains"] = dice.randint(2, 4)
    return made


def _affinity(dice: random.Random) -> Object:
    ssd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    away = {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]}
    found: Object = {}
    if dice.random() < 0.4:
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [dice.choice((ssd, away))]}
    preferred = [{"weight": dice.randint(1, 100), "preference": one} for one in (ssd, away) if dice.random() < 0.6]
    if preferred:
        found["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return found


def _between_pods(dice: random.Random) -> Object:
    def term() -> Object:
        chosen = {"matchLabels": {"app": dice.choice(("web", "api", "db"))}}
        return {"topologyKey": dice.choice((HOST, HOST, ZONE)), "labelSelector": chosen}

    if dice.random() < 0.5:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term()]}
    weighted = [{"weight": dice.randint(1, 100), "podAffinityTerm": term()} for _ in range(dice.randint(1, 2))]
    return {"preferredDuringSchedulingIgnoredDuringExecution": weighted}


def container(dice: random.Random) -> Object:
    asks: Object = {}
    if dice.random() < 0.8:
        asks["cpu"] = dice.choice(("100m", "250m", "500m", "1", "1500m"))
    if dice.random() < 0.8:
        asks["memory"] = dice.choice(("64Mi", "256Mi", "512Mi", "1Gi"))
    return {"name": "c", "image": "registry.example/app:1", "resources": {"requests": asks}}


def change(dice: random.Random, there: Sequence[Object]) -> tuple[str, str]:
    """The option of kepctl and its value, for a cluster of these objects."""
    hosts = [one for one in there if one["kind"] == "Node"]
    crews = [one for one in there if one["kind"] in ("Deployment", "StatefulSet")]
    deployments = [one for one in crews if one["kind"] == "Deployment"]
    names = [one["metadata"]["name"] for one in hosts]
    zones = {one["metadata"]["labels"][ZONE] for one in hosts}
    ways = ["scale", "scale", "scale", "drain", "add-node", "traffic"]
    ways += ["roll"] if deployments else []
    ways += ["lose-node"] if len(hosts) > 2 else []
    ways += ["lose-zone"] if len(zones) > 2 else []
    way = dice.choice(ways)
    if way == "scale":
        return way, f"default/{dice.choice(crews)['metadata']['name']}={dice.randint(1, 12)}"
    if way == "traffic":
        services = [one["metadata"]["name"] for one in there if one["kind"] == "Service"]
        return way, f"default/{dice.choice(services)}={dice.choice(POLICIES)}"
    if way == "roll":
        return way, f"default/{dice.choice(deployments)['metadata']['name']}"
    if way == "add-node":
        return way, f"LIKE={dice.choice(names)},zone={dice.choice(sorted(zones))}"
    return way, dice.choice(sorted(zones)) if way == "lose-zone" else dice.choice(names)
