# SPDX-License-Identifier: Apache-2.0
"""FP-10: whatever raises for one pod ends that pod's work for a moment, and nothing of another's.

Every routine of a pod's parts raises for one pod, through its whole life, while another pod is served.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.config.sections.pods import PodLogs
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.handlers.hooks import ContainerTarget, HookRunner
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.housekeeping import Housekeeping
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.observer import PodObserver
from agent.pods.run.one_pod.pod_images import PodImages
from agent.pods.run.one_pod.probing import Prober
from agent.pods.run.one_pod.removing_dead import DeadRemover
from agent.pods.run.one_pod.resizing import Resizer
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.one_pod.sandbox_maker import SandboxMaker
from agent.pods.run.one_pod.starting import Starter
from agent.pods.run.one_pod.stopping import Stopper
from agent.pods.run.runner import PodRunner
from agent.pods.run.shown import ShownPods
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import AT_ONCE, News, Plane, Slow, running

BAD = """
apiVersion: v1
kind: Pod
metadata: {name: bad-%(name)s, uid: u-bad-%(name)s, labels: {shown: %(label)s}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: cache, emptyDir: {sizeLimit: 1Mi}}
  initContainers: [{name: side, image: "i:1", restartPolicy: Always}]
  containers:
  - name: app
    image: "i:1"
    env: [{name: POD, value: u-bad-%(name)s}]
    volumeMounts: [{name: conf, mountPath: /conf}, {name: cache, mountPath: /cache}]
    readinessProbe: {exec: {command: [ready]}, periodSeconds: 1}
    livenessProbe: {httpGet: {port: 80}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: [begin]}}, preStop: {exec: {command: [drain]}}}
"""
GOOD = b"""
apiVersion: v1
kind: Pod
metadata: {name: good, uid: u-good}
spec:
  containers: [{name: app, image: "i:1"}]
"""
SOURCE = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: %s}\n"
UID = re.compile(r"u-bad-[a-z-]+")
OWNERS = (
    PodWorker, LivePod, PodObserver, Starter, Stopper, Prober, Resizer, DeadRemover, SandboxMaker, PodImages,
    ContainerSetup, Housekeeping, PodFiles, HookRunner, ProbeRunner, PodRunner, ShownPods,
)  # fmt: skip
# What all pods share has other routines as well; these are about one.
OF_ONE_POD = {
    "PodRunner": {"_want_of", "_describe", "_begin", "_keeper_for", "_show", "_found"},
    "ShownPods": {"show", "complain"},
    "Housekeeping": {"rotate_logs", "check_volumes"},
}


def routines(owner: type) -> list[str]:
    own = [name for name, found in vars(owner).items() if inspect.isfunction(found) and name != "__init__"]
    return [name for name in own if name in OF_ONE_POD.get(owner.__name__, own)]


def named(routine: str) -> str:
    return routine.strip("_").replace("_", "-") + ("-inner" if routine.startswith("_") else "")


def uid_of(value: Any) -> str:
    """Which pod a routine's argument is about, if one can say."""
    for one in (value, getattr(value, "run", None), getattr(value, "_run", None)):
        if isinstance(one, LivePod):
            return one.pod.uid
    if isinstance(value, ContainerTarget | str | Path) and (found := UID.search(str(value))):
        return found[0]
    return str(getattr(value, "uid", ""))


class Faults:
    """Routines that raise, while this is on, each for the pod that is named after it."""

    def __init__(self) -> None:
        self.is_on = True
        self.met: set[str] = set()

    def into(self, name: str, routine: Callable[..., Any]) -> Callable[..., Any]:
        def raising(*args: Any, **kwargs: Any) -> Any:
            if self.is_on and any(uid_of(one) == f"u-bad-{named(name)}" for one in args):
                self.met.add(name)
                for one in args:
                    if inspect.iscoroutine(one):
                        one.close()
                raise KeyError("a bug")
            return routine(*args, **kwargs)

        async def raising_later(*args: Any, **kwargs: Any) -> Any:
            return await raising(*args, **kwargs)

        return raising_later if inspect.iscoroutinefunction(routine) else raising


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("agent.pods.run.housekeeping.VOLUME_PERIOD_S", 0.01)
    with structlog.testing.capture_logs():
        yield


async def serves(plane: Plane) -> None:
    """The good pod's container exits, and is started again."""
    keeper = plane.runner.keepers["u-good"]
    before = keeper.run.seen.newest("app")
    assert before is not None
    plane.cri.exit(before.id, 1)

    def runs() -> bool:
        newest = keeper.run.seen.newest("app")
        return newest is not None and newest.id != before.id and newest.is_running

    await plane.until(runs, "the other pod is served")


class Life:
    """What can happen to the bad pods, each with a moment for its consequences."""

    def __init__(self, plane: Plane, given: FakeManifestDirectory, faults: Faults, names: list[str]) -> None:
        self._plane, self._given, self._faults, self._names = plane, given, faults, names

    def write(self, label: str) -> None:
        for name in self._names:
            text = BAD % {"name": named(name), "label": label} if label else None
            self._given.put(f"/m/{name}.yaml", text.encode() if text else None)

    async def all_run(self) -> None:
        wanted = {f"bad-{named(name)}-n": "Running" for name in self._names} | {"good-n": "Running"}
        await self._plane.until(lambda: self._plane.phases == wanted, "all run")

    async def live(self) -> None:
        plane = self._plane
        await plane.rounds(1)
        self._given.put("/m/conf.yaml", SOURCE % b"two")
        self.write("b")
        await plane.rounds(1)
        for one in list(plane.cri._containers.values()):
            if one.labels["io.kubernetes.pod.uid"] != "u-good" and one.state == pb.CONTAINER_RUNNING:
                plane.cri.exit(one.id, 1)
        await plane.until(lambda: self._faults.met, "a routine raises")
        self.write("")
        await plane.rounds(2)


@pytest.mark.parametrize("owner", OWNERS, ids=lambda one: one.__name__)
async def test_a_routine_that_raises_for_one_pod_leaves_the_others_served(
    owner: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cri, faults = Slow(), Faults()
    cri.registry.add("i:1")
    names = routines(owner)
    given = FakeManifestDirectory({"/m/good.yaml": GOOD, "/m/conf.yaml": SOURCE % b"one"})
    for name in names:
        monkeypatch.setattr(owner, name, faults.into(name, getattr(owner, name)))
    logs = tmp_path / "logs"
    async with running(cri, given, logs, events=News(cri), logs=PodLogs(interval=0.02), curve=AT_ONCE) as plane:
        life = Life(plane, given, faults, names)
        await plane.until(lambda: plane.phases == {"good-n": "Running"}, "the good one runs")
        life.write("a")
        await plane.rounds(2)
        await serves(plane)
        faults.is_on = False
        await life.all_run()
        faults.is_on = True
        await life.live()
        await serves(plane)
        faults.is_on = False
        life.write("c")
        await life.all_run()
        await serves(plane)
