# SPDX-License-Identifier: Apache-2.0
"""Nothing in force goes unless a file without fault no longer names it, and a restart changes nothing: every reader of
manifests, over random histories of files that come, go, break, become unreadable and swap names."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.model.manifests.in_force import FileInForce
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.objects.run.memory import ObjectMemory
from agent.pods.manifest.objects import NodeIdentity
from agent.pods.manifest.reading import ReadManifest, read_pods
from agent.policies.manifest.reading import NO_OBJECTS, read_policies
from agent.services.attach.manifests import ServiceObjects, read_service_objects
from agent.topology.hints.standalone import HintOptions
from kepd_devices.manifest.documents import Reader as DeviceReader
from kepd_devices.manifest.reading import NO_OBJECTS as NO_DEVICES
from kepd_devices.manifest.reading import read_device_objects

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


class Reader:
    """The pods reader; the others differ in what they are given."""

    nothing: Any = ReadManifest()

    def read(self, files: Mapping[str, bytes], before: Any) -> Any:
        return read_pods(ManifestSnapshot(files), before, NodeIdentity("n", has_name_suffix=True))

    def in_force(self, objects: Any) -> Mapping[str, FileInForce]:
        return dict(objects.in_force[0])

    def said(self, objects: Any) -> dict[Any, Any]:
        """What is in force, whose it is, and what it says."""
        found: dict[Any, Any] = {
            ("Pod", key): (pod.file, pod.hash, pod.annotations) for key, pod in objects.pods.items()
        }
        found |= {key: (one.file, one.annotations) for key, one in objects.workloads.items()}
        found |= {key: (one.file, one.min_available) for key, one in objects.budgets.items()}
        return found | {key: (one.file, one.data) for key, one in objects.sources.items()}


class Policies(Reader):
    nothing = NO_OBJECTS

    def read(self, files: Mapping[str, bytes], before: Any) -> Any:
        return read_policies(files, before)

    def in_force(self, objects: Any) -> Mapping[str, FileInForce]:
        return dict(objects.files.in_force)

    def said(self, objects: Any) -> dict[Any, Any]:
        return {key: (objects.files.holders[key], one.policy.metadata) for key, one in objects.files.chosen.items()}


class Services(Policies):
    nothing = ServiceObjects()

    def read(self, files: Mapping[str, bytes], before: Any) -> Any:
        return read_service_objects(files, HintOptions(mode="off"), before)

    def said(self, objects: Any) -> dict[Any, Any]:
        chosen = objects.files.chosen.items()
        return {key: (objects.files.holders[key], one.document.content) for key, one in chosen}


class Devices(Policies):
    nothing = NO_DEVICES

    def read(self, files: Mapping[str, bytes], before: Any) -> Any:
        return read_device_objects(files, DeviceReader("n"), before)

    def said(self, objects: Any) -> dict[Any, Any]:
        return {key: (objects.files.holders[key], one.found.metadata) for key, one in objects.files.chosen.items()}


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
                self.files[path] = written(self.chance)

    def look(self, last: Mapping[str, bytes]) -> dict[str, bytes]:
        kept = {path: last[path] for path in self.hidden & self.files.keys() if path in last}
        return {**{path: text for path, text in self.files.items() if path not in self.hidden}, **kept}


@pytest.mark.parametrize(
    "reader", [Reader(), Policies(), Services(), Devices()], ids=lambda reader: type(reader).__name__
)
@pytest.mark.parametrize("seed", range(12))
def test_a_restart_changes_nothing(tmp_path: Path, reader: Reader, seed: int) -> None:
    """MAN-14, MAN-03, MAN-07."""
    history, memory = History(seed), ObjectMemory(tmp_path / "objects.db")
    memory.load()
    objects, last = reader.nothing, dict[str, bytes]()
    for _ in range(25):
        history.step()
        before, last = reader.said(objects), history.look(last)
        objects = reader.read(last, objects)
        now = reader.said(objects)
        memory.keep("plane", reader.in_force(objects), {})
        remembered = ObjectMemory(tmp_path / "objects.db").load().snapshot
        begun = reader.read(remembered.files, reader.nothing)
        anew = reader.read(history.look(remembered.files), begun)

        assert reader.said(begun) == now, "what is remembered is what is in force"
        assert reader.said(anew) == now, "and what is there does not change it"
        for key, (path, *_) in before.items():
            if key not in now or now[key][0] != path:
                assert path not in last or _names_none(reader, path, last[path], key), f"{key} went without an order"


@pytest.mark.parametrize("seed", range(40))
def test_a_restart_between_any_two_planes_changes_nothing_for_either(tmp_path: Path, seed: int) -> None:
    """They share files and one database; the process is killed after some of them have told what they have."""
    history, file = History(seed), tmp_path / "objects.db"
    readers = (Reader(), Policies(), Services(), Devices())
    objects: dict[Reader, Any] = {reader: reader.nothing for reader in readers}
    told: dict[Reader, Any] = {reader: reader.said(reader.nothing) for reader in readers}
    memory, last = ObjectMemory(file), dict[str, bytes]()
    memory.load()
    for _ in range(10):
        history.step()
        last = history.look(last)
        for reader in history.chance.sample(readers, history.chance.randrange(len(readers) + 1)):
            objects[reader] = reader.read(last, objects[reader])
            memory.keep(type(reader).__name__, reader.in_force(objects[reader]), {})
            told[reader] = reader.said(objects[reader])
        if history.chance.random() < 0.5:
            continue
        memory.close()
        memory = ObjectMemory(file)
        last = dict(memory.load().snapshot.files)
        for reader in readers:
            objects[reader] = reader.read(last, reader.nothing)

            assert reader.said(objects[reader]) == told[reader], type(reader).__name__
    memory.close()


def _names_none(reader: Reader, path: str, content: bytes, key: Any) -> bool:
    read = reader.read({path: content}, reader.nothing)
    return not read.findings and key not in reader.said(read)
