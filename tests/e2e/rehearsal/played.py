# SPDX-License-Identifier: Apache-2.0
"""Plays random changes on a real control plane and writes down what it did, a case of tests/vectors each.

`python -m tests.e2e.rehearsal.played KUBECONFIG CASES SEED FILE`, where the server is reached. There is no kubelet:
pods are called ready as soon as they have a node, and those that are to end are gone.
"""

import http.client
import json
import random
import re
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.rehearsal.worlds import HOST, ZONE, Object, change, node, nodes, workloads
from tests.vectors.rehearsal_adapter import cases, check

APPS, CORE, SLICES = "/apis/apps/v1", "/api/v1", "/apis/discovery.k8s.io/v1"
SPACE = "/namespaces/default"
PLURALS = {
    "Deployment": f"{APPS}{SPACE}/deployments", "StatefulSet": f"{APPS}{SPACE}/statefulsets",
    "DaemonSet": f"{APPS}{SPACE}/daemonsets", "ReplicaSet": f"{APPS}{SPACE}/replicasets",
    "Service": f"{CORE}{SPACE}/services", "Pod": f"{CORE}{SPACE}/pods", "Node": f"{CORE}/nodes",
    "EndpointSlice": f"{SLICES}{SPACE}/endpointslices",
}  # fmt: skip
KEPT = {
    "metadata": {"name", "namespace", "labels", "annotations", "ownerReferences", "resourceVersion"},
    "spec": {
        "replicas", "selector", "template", "strategy", "updateStrategy", "nodeName", "containers", "initContainers",
        "topologySpreadConstraints", "affinity", "tolerations", "nodeSelector", "taints", "unschedulable", "ports",
        "trafficDistribution", "internalTrafficPolicy", "externalTrafficPolicy", "overhead", "resources",
        "podManagementPolicy",
    },
    "status": {"allocatable", "conditions", "phase"},
}  # fmt: skip
ATTEMPT = re.compile(r'"Attempting to schedule pod" pod="default/([^"]+)"')
STEPS, LEAST_SHARED = 5, 60
STILL_S, LATER_S, LONGEST_S = 1.5, 0.5, 90.0


class Server:
    def __init__(self, path: Path) -> None:
        said = json.loads(path.read_text())
        cluster = said["clusters"][0]["cluster"]
        address = urlsplit(cluster["server"])
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._link = http.client.HTTPSConnection(address.hostname or "", address.port, context=context, timeout=30)
        self._token = said["users"][0]["user"]["token"]

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        self._link.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._link.getresponse()
        text = answer.read()
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status}: {text[:300]!r}")
        return json.loads(text)

    def listed(self, kind: str) -> list[Object]:
        items = self.ask("GET", PLURALS[kind])["items"]
        return [{"apiVersion": PLURALS[kind][1:].split("/namespaces")[0].removeprefix("apis/").removeprefix("api/")
                 .removesuffix("/nodes"), "kind": kind, **one} for one in items]  # fmt: skip

    def patch(self, kind: str, name: str, change_: Object, part: str = "") -> None:
        self.ask("PATCH", f"{PLURALS[kind]}/{name}{part}", change_, "application/merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        self.ask("DELETE", f"{PLURALS[kind]}/{name}", {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})


class Turns:
    """When the scheduler thought about a pod for the last time, from its log: pods get nodes beside each other, so that
    their writes stand in another order than its decisions."""

    def __init__(self, log: Path) -> None:
        self._file = log.open()
        self._turns: dict[str, int] = {}
        self._count = 0

    def read(self) -> dict[str, int]:
        for line in self._file:
            found = ATTEMPT.search(line)
            if found is not None:
                self._count += 1
                self._turns[found[1]] = self._count
        return self._turns


class Play:
    """One cluster, from its making to its end."""

    def __init__(self, server: Server, dice: random.Random, turns: "Turns") -> None:
        self.server, self.dice, self._turns = server, dice, turns
        self.events: list[list[Any]] = []
        self._seen: dict[str, Object] = {}
        self._addresses = 0

    def begin(self) -> None:
        for one in nodes(self.dice):
            self.add(one)
        for one in workloads(self.dice):
            self.add(one)
        self.settle()

    def add(self, made: Object) -> None:
        status = made.get("status")
        self.server.ask("POST", PLURALS[made["kind"]], made)
        if made["kind"] == "Node":
            # Admission says of a new node that it is not ready, and nobody else takes that back here.
            name = made["metadata"]["name"]
            self.server.patch("Node", name, {"status": status}, "/status")
            self.server.patch("Node", name, {"spec": {"taints": made["spec"]["taints"] or None}})

    def turn(self) -> None:
        """What kubelets would do, and what has happened since the last turn."""
        pods = {one["metadata"]["name"]: one for one in self.server.listed("Pod")}
        # One of a StatefulSet comes back by the same name.
        uids = {name: one["metadata"]["uid"] for name, one in pods.items()}
        for name in [name for name, one in self._seen.items() if uids.get(name) != one["metadata"]["uid"]]:
            self.events.append(["gone", f"default/{name}"])
            del self._seen[name]
        turns, hosts = self._turns.read(), [one["metadata"]["name"] for one in self.server.listed("Node")]
        for one in sorted(pods.values(), key=lambda each: turns.get(each["metadata"]["name"], -1)):
            name, spec = one["metadata"]["name"], one["spec"]
            before = self._seen.get(name)
            if before is None:
                self.events.append(["made", trimmed(one)])
            if spec.get("nodeName", "") not in ("", *hosts):
                # It got a node that had just gone, which collectors of garbage see to.
                self.server.delete("Pod", name)
            elif "deletionTimestamp" in one["metadata"]:
                if before is None or "deletionTimestamp" not in before["metadata"]:
                    self.events.append(["ends", f"default/{name}"])
                self.server.delete("Pod", name)
            elif "nodeName" in spec and (before is None or "nodeName" not in before["spec"]):
                self.events.append(["bound", f"default/{name}", spec["nodeName"]])
                self._call_ready(name)
            self._seen[name] = one

    def _call_ready(self, name: str) -> None:
        self._addresses += 1
        address = f"10.{self._addresses >> 16}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
        self.server.patch("Pod", name, {"status": status}, "/status")

    def settle(self) -> None:
        """Until everybody has done what there is to do, and nothing moves any more."""
        deadline_s, still_since_s, last = time.monotonic() + LONGEST_S, time.monotonic(), None
        while time.monotonic() - still_since_s < STILL_S:
            self.turn()
            now = self._versions()
            if now != last or self._unsettled():
                last, still_since_s = now, time.monotonic()
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the cluster did not come to rest: {self._unsettled()}; {self.events[-9:]}")
            time.sleep(0.05)

    def _versions(self) -> dict[str, str]:
        return {
            f"{kind}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for kind in ("Pod", "ReplicaSet", "Deployment", "StatefulSet", "EndpointSlice", "Service", "Node")
            for one in self.server.listed(kind)
        }

    def _unsettled(self) -> str:
        for name, one in self._seen.items():
            refused = any(
                each["type"] == "PodScheduled" and each["status"] == "False"
                for each in one.get("status", {}).get("conditions", ())
            )
            if "deletionTimestamp" in one["metadata"] or ("nodeName" not in one["spec"] and not refused):
                return f"pod {name}"
        for kind in ("Deployment", "StatefulSet"):
            for one in self.server.listed(kind):
                status = one.get("status", {})
                if status.get("observedGeneration") != one["metadata"]["generation"]:
                    return f"{kind} {one['metadata']['name']}: its controller"
                if status.get("replicas", 0) < one["spec"]["replicas"]:
                    return f"{kind} {one['metadata']['name']}: its pods"
        return self._unserved()

    def _unserved(self) -> str:
        """A Service whose slices do not have what its pods are."""
        slices = self.server.listed("EndpointSlice")
        for service in self.server.listed("Service"):
            name, selector = service["metadata"]["name"], service["spec"].get("selector", {})
            wanted = sum(
                "nodeName" in one["spec"] and selector.items() <= one["metadata"]["labels"].items()
                for one in self._seen.values() if selector
            )  # fmt: skip
            given = sum(
                one["conditions"]["ready"]
                for piece in slices if piece["metadata"]["labels"]["kubernetes.io/service-name"] == name
                for one in piece.get("endpoints") or ()
            )  # fmt: skip
            if selector and wanted != given:
                return f"Service {name}: {given} endpoints of {wanted}"
        return ""

    def objects(self) -> list[Object]:
        kinds = ("Node", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Service", "Pod", "EndpointSlice")
        return [trimmed(one) for kind in kinds for one in self.server.listed(kind) if _counts(one)]

    def carry_out(self, way: str, value: str) -> None:
        getattr(self, f"_{way.replace('-', '_')}")(value)

    def _scale(self, value: str) -> None:
        name, _, count = value.removeprefix("default/").partition("=")
        for kind in ("Deployment", "StatefulSet"):
            if self.server.ask("GET", f"{PLURALS[kind]}/{name}"):
                self.server.patch(kind, name, {"spec": {"replicas": int(count)}})

    def _roll(self, value: str) -> None:
        rolled = {"metadata": {"annotations": {"rolled": str(self.dice.random())}}}
        self.server.patch("Deployment", value.removeprefix("default/"), {"spec": {"template": rolled}})

    def _drain(self, value: str) -> None:
        self.server.patch("Node", value, {"spec": {"unschedulable": True}})
        self._end_pods({value}, with_daemons=False)

    def _lose_node(self, value: str) -> None:
        self._lose({value})

    def _lose_zone(self, value: str) -> None:
        self._lose({one["metadata"]["name"] for one in self.server.listed("Node")
                    if one["metadata"]["labels"].get(ZONE) == value})  # fmt: skip

    def _lose(self, names: set[str]) -> None:
        for name in names:
            self.server.delete("Node", name)
        # Pods of a lost node go long after it, when all controllers know.
        time.sleep(LATER_S)
        self._end_pods(names, with_daemons=True)

    def _end_pods(self, names: set[str], *, with_daemons: bool) -> None:
        for one in self.server.listed("Pod"):
            owner = one["metadata"].get("ownerReferences", [{}])[0].get("kind")
            if one["spec"].get("nodeName") in names and (with_daemons or owner != "DaemonSet"):
                self.server.delete("Pod", one["metadata"]["name"])

    def _add_node(self, value: str) -> None:
        like, _, zone = value.removeprefix("LIKE=").partition(",zone=")
        found = {one["metadata"]["name"]: one for one in self.server.listed("Node")}
        name = next(f"{like}-like-{place}" for place in range(1, 99) if f"{like}-like-{place}" not in found)
        old = found[like]
        labels = {**old["metadata"]["labels"], HOST: name, ZONE: zone}
        taints = [one for one in old["spec"].get("taints", ()) if not one["key"].startswith("node.kubernetes.io/")]
        self.add(node(name, labels, taints, old["status"]["allocatable"]))

    def _traffic(self, value: str) -> None:
        name, _, policy = value.removeprefix("default/").partition("=")
        if policy in ("Cluster", "Local"):
            self.server.patch("Service", name, {"spec": {"internalTrafficPolicy": policy}})
            return
        mode = "service.kubernetes.io/topology-mode"
        distribution = policy if policy.startswith("Prefer") else None
        annotations = {mode: "Auto" if policy == "Auto" else None}
        self.server.patch(
            "Service", name, {"metadata": {"annotations": annotations}, "spec": {"trafficDistribution": distribution}}
        )

    def end(self) -> None:
        for kind in ("Service", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Node"):
            for one in self.server.listed(kind):
                self.server.delete(kind, one["metadata"]["name"])
        while pods := self.server.listed("Pod"):
            for one in pods:
                self.server.delete("Pod", one["metadata"]["name"])
            time.sleep(0.1)


def _counts(made: Object) -> bool:
    about = made["metadata"]
    return about["name"] != "kubernetes" and about.get("labels", {}).get("kubernetes.io/service-name") != "kubernetes"


def trimmed(made: Object) -> Object:
    """What a rehearsal could read of it."""
    found = {"apiVersion": made["apiVersion"], "kind": made["kind"]}
    if made["kind"] == "EndpointSlice":
        about = {name: made["metadata"][name] for name in ("name", "namespace", "labels")}
        return {**found, "metadata": {**about, "resourceVersion": "1"},
                "addressType": made["addressType"], "endpoints": made.get("endpoints") or []}  # fmt: skip
    for part, names in KEPT.items():
        found[part] = {name: value for name, value in made.get(part, {}).items() if name in names}
    about = found["metadata"]
    if made["kind"] != "Pod":
        about.pop("resourceVersion", None)
    about["annotations"] = {
        name: value
        for name, value in (about.get("annotations") or {}).items()
        if "topology" in name or "revision" in name
    }
    for one in about.get("ownerReferences", ()):
        for name in ("uid", "blockOwnerDeletion"):
            one.pop(name, None)
    for spec in (found["spec"], found["spec"].get("template", {}).get("spec", {})):
        for name in ("containers", "initContainers"):
            if name in spec:
                spec[name] = [
                    {each: value for each, value in one.items() if each in ("name", "resources", "restartPolicy")}
                    for one in spec[name]
                ]
        for name in set(spec) & {"dnsPolicy", "restartPolicy", "schedulerName", "securityContext",
                                 "terminationGracePeriodSeconds"}:  # fmt: skip
            del spec[name]
    if made["kind"] == "Pod":
        # Who reads it has to know that a server had it, and not which of its versions this is.
        about["resourceVersion"] = "1"
        found["status"].pop("allocatable", None)
        found["status"]["conditions"] = [
            {"type": one["type"], "status": one["status"]}
            for one in made.get("status", {}).get("conditions", ()) if one["type"] == "Ready"
        ]  # fmt: skip
    elif made["kind"] != "Node":
        found["status"] = {}
    return found


def worlds(server: Server, turns: Turns, count: int, seed: int) -> Iterator[Object]:
    """Each with a few changes of it, one upon the other."""
    for number in range(-(-count // STEPS)):
        dice = random.Random(seed + number)
        play = Play(server, dice, turns)
        play.begin()
        before = play.objects()
        world: Object = {"id": str(seed + number), "objects": before, "steps": []}
        for _ in range(min(STEPS, count - number * STEPS)):
            way, value = change(dice, before)
            play.events.clear()
            play.carry_out(way, value)
            play.settle()
            before = play.objects()
            moving = [one["kind"] in ("Pod", "EndpointSlice", "ReplicaSet") for one in before]
            step = {"change": [way, value], "events": list(play.events)}
            for name, wanted in (("left", False), ("after", True)):
                step[name] = [one for one, is_moving in zip(before, moving, strict=True) if is_moving is wanted]
            world["steps"].append(step)
        yield world
        play.end()


class Shared:
    """What stands at many places of a document stands once in it."""

    def __init__(self, value: Any) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._count(value)
        self.rest = self._put(value)

    def _count(self, value: Any) -> None:
        if isinstance(value, dict):
            self._counts[json.dumps(value, sort_keys=True)] += 1
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._count(one)

    def _put(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._put(one) for one in value]
        if not isinstance(value, dict):
            return value
        text = json.dumps(value, sort_keys=True)
        if self._counts[text] == 1 or len(text) < LEAST_SHARED:
            return {name: self._put(one) for name, one in value.items()}
        if text not in self._places:
            made = {name: self._put(one) for name, one in value.items()}
            self._places[text] = len(self.values)
            self.values.append(made)
        return {"$": self._places[text]}


def main(kubeconfig: str, count: str, seed: str, path: str) -> int:
    found: list[Object] = []
    wrong, began_s = 0, time.monotonic()
    turns = Turns(Path(kubeconfig).with_name("scheduler.log"))
    for world in worlds(Server(Path(kubeconfig)), turns, int(count), int(seed)):
        found.append(world)
        for name, kind, given, expect in cases({"shared": [], "clusters": [world]}):
            try:
                check(kind, given, expect)
            except AssertionError as error:
                wrong += 1
                print(f"{name} {' '.join(given['change'])}: {str(error)[:600]}", flush=True)
    shared = Shared(found)
    document = {"schema": 1, "set": "rehearsal", "shared": shared.values, "clusters": shared.rest}
    Path(path).write_text(json.dumps(document, separators=(",", ":")) + "\n")
    steps = [step for one in found for step in one["steps"]]
    binds = sum(event[0] == "bound" for step in steps for event in step["events"])
    print(f"{len(steps)} changes and {binds} pods placed, {wrong} foretold wrongly, {time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
