# SPDX-License-Identifier: Apache-2.0
"""Random histories of a directory of manifests: files that come, go, break, become unreadable and swap names."""

import random
from collections.abc import Mapping

from agent.objects.reading import Reading, Readings
from agent.pods.manifest.objects import NodeIdentity, pod_reading
from agent.policies.manifest.reading import POLICY_READING
from agent.services.attach.manifests import SERVICE_READING
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import device_reading

PATHS = ("/m/a.yaml", "/m/b.yaml", "/m/c.yaml")
NAMES = ("x", "y", "z")
CONTAINERS = "containers: [{name: c, image: i}]"
TEMPLATE = "template: {metadata: {labels: {a: b}}, spec: {" + CONTAINERS + "}}"
NAMED = "metadata: {name: %s, annotations: {v: '%s'}}, spec: "
POD = "{apiVersion: v1, kind: Pod, " + NAMED + "{" + CONTAINERS + "}}"
DEPLOYMENT = "{apiVersion: apps/v1, kind: Deployment, " + NAMED + "{selector: {matchLabels: {a: b}}, " + TEMPLATE + "}}"
BUDGET = (
    "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: %s}, spec: {minAvailable: %s, selector: {}}}"
)
SECRET = "{apiVersion: v1, kind: Secret, metadata: {name: %s}, stringData: {v: '%s'}}"
POLICY = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, " + NAMED + "{podSelector: {}}}"
SERVICE = "{apiVersion: v1, kind: Service, " + NAMED + "{ports: [{port: 80}]}}"
CLAIM = "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, " + NAMED + "{devices: {requests: []}}}"
KINDS = (CLAIM, POD, DEPLOYMENT, BUDGET, SECRET, POLICY, SERVICE)
TEXT = "\n---\n".join(kind % ("x", 1) for kind in (POD, POLICY, SERVICE, CLAIM))
PODS, DEVICES = pod_reading(NodeIdentity("n", has_name_suffix=True)), device_reading(Reader("n"))
ALL: tuple[Reading, ...] = (PODS, POLICY_READING, SERVICE_READING, DEVICES)
READINGS = Readings(ALL)


def written(chance: random.Random) -> bytes:
    """Some objects, now and then with a fault in one of them or in the text."""
    names = [(kind, name) for kind in KINDS for name in NAMES if chance.random() < 0.25]
    texts = [kind % (name, chance.randrange(3)) for kind, name in names]
    if texts and chance.random() < 0.3:
        at = chance.randrange(len(texts))
        texts[at] = texts[at].replace("metadata: {", "metadata: {nmae: q, ").replace("spec: {", "spec: {slip: 1, ")
    listed = chance.random() < 0.3
    text = f"apiVersion: v1\nkind: List\nitems: [{', '.join(texts)}]" if listed else "\n---\n".join(texts)
    return ("{" + text if chance.random() < 0.1 else text).encode()


class History:
    """Files as they change, and what a look at them brings."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files: dict[str, bytes] = {}
        self.hidden: set[str] = set()

    def step(self) -> None:
        path = self.chance.choice(PATHS)
        match self.chance.randrange(6):
            case 0:
                self.files.pop(path, None)
            case 1:
                self.hidden ^= {path}
            case 2 if path in self.files:
                self.files[self.chance.choice(PATHS)] = self.files.pop(path)
            case _:
                self.files[path] = self.text()

    def text(self) -> bytes:
        return written(self.chance)

    def look(self, last: Mapping[str, bytes]) -> dict[str, bytes]:
        kept = {path: last[path] for path in self.hidden & self.files.keys() if path in last}
        return {**{path: text for path, text in self.files.items() if path not in self.hidden}, **kept}
