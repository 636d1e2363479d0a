# SPDX-License-Identifier: Apache-2.0
"""The same manifests and edits on a kubelet and on kepd, each with a containerd of its own: what differs has a reason.

Runs where KEPD_KUBELET names a kubelet program. All pods of a table begin at once; they are compared when they have
settled: what their containers wrote down, how they are shown, and what the runtime has of them.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups, kubelet
from tests.node.kubelet_cases import (
    CASES,
    CRASHES,
    DIFFERENT,
    EDITS,
    IN_PLACE,
    OLD_DIFFERENT,
    OLD_UNTIL,
    REPLACED,
    Case,
    Edit,
)

PROGRAM = os.environ.get("KEPD_KUBELET", "")
pytestmark = [pytest.mark.node, pytest.mark.timeout(300), pytest.mark.beside("KEPD_KUBELET")]
SETTLED_S, GONE_S = 30.0, 60.0
LABELS = {"name": "io.kubernetes.pod.name", "container": "io.kubernetes.container.name"}
Picture = dict[str, Any]


@dataclass
class Side:
    """One of the two, with a directory of manifests and a look at all pods."""

    lab: Lab
    folder: Path
    manifests: Path
    images: dict[str, str]
    look: Callable[[], dict[str, Picture]]

    def write(self, name: str, spec: dict[str, Any], metadata: dict[str, Any]) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
        words = {
            **{f'"{word}"': json.dumps(image) for word, image in self.images.items()},
            "OUT": str(self.folder / "out" / name),
            "REGISTRY": self.lab.registry.address,
        }
        text = json.dumps(pod)
        for word, meant in words.items():
            text = text.replace(word, meant)
        draft = self.folder / name
        draft.write_text(text)
        draft.rename(self.manifests / f"{name}.yaml")

    def written(self, name: str) -> list[str]:
        log = self.folder / "out" / name / "log"
        return log.read_text().splitlines() if log.exists() else []

    def runtime(self) -> dict[str, dict[str, Any]]:
        """By pod: sandboxes, and the ids of its containers that run."""
        found: dict[str, dict[str, Any]] = {}
        for box in self.lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items:
            if box.state == pb.SANDBOX_READY:
                found.setdefault(box.metadata.name.removesuffix("-n1"), {})["sandbox"] = box.id
        for one in self.lab.cri.call("ListContainers", pb.ListContainersRequest()).containers:
            if one.state == pb.CONTAINER_RUNNING:
                pod = found.setdefault(one.labels[LABELS["name"]].removesuffix("-n1"), {})
                pod[one.labels[LABELS["container"]]] = one.id
        return found

    def end_all(self) -> None:
        for path in self.manifests.glob("*.yaml"):
            path.unlink()
        deadline_s = time.monotonic() + GONE_S
        while any("sandbox" in one for one in self.runtime().values()):
            assert time.monotonic() < deadline_s, f"pods are left: {sorted(self.runtime())}"
            time.sleep(0.3)


def of_kubelet(lab: Lab, port: int) -> dict[str, Picture]:
    fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/pods').read().decode())"
    done = subprocess.run(lab.netns.command(["python3", "-c", fetch]), capture_output=True, text=True, check=True)
    found = {}
    for pod in json.loads(done.stdout)["items"] or ():
        status = pod["status"]
        listed = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        found[pod["metadata"]["name"].removesuffix("-n1")] = picture(
            status.get("phase", ""),
            status.get("reason", ""),
            {one["name"]: _state(one) for one in listed},
            {one["type"]: one["status"] == "True" for one in status.get("conditions", ())},
        )
    return found


def _state(one: dict[str, Any]) -> tuple[str, str, int, str, int, bool]:
    ((kind, state),) = one.get("state", {"waiting": {}}).items() or (("waiting", {}),)
    message = state.get("message", "") if kind == "terminated" else ""
    code = state.get("exitCode", 0)
    return kind.capitalize(), state.get("reason", ""), code, message, one.get("restartCount", 0), one["ready"]


def of_kepd(kepd: Kepd) -> dict[str, Picture]:
    found = {}
    for pod in kepd.pods():
        containers = {
            one["name"]: (
                one.get("state", ""), one.get("reason", ""), one.get("exitCode", 0),
                one.get("message", "") if one.get("state") == "Terminated" else "",
                one.get("restartCount", 0), one.get("ready", False),
            )
            for one in pod["containers"]
        }  # fmt: skip
        conditions = {one["type"]: one.get("status", False) for one in pod["conditions"]}
        name, phase = pod["name"].removesuffix("-n1"), pod.get("phase", "")
        found[name] = picture(phase, pod.get("reason", ""), containers, conditions)
    return found


def picture(phase: str, reason: str, containers: dict[str, Any], conditions: dict[str, bool]) -> Picture:
    """What can be compared: of restarts only whether there were any, and of a loop not in which part it is."""
    shown = {}
    for name, (state, why, code, message, restarts, is_ready) in sorted(containers.items()):
        is_looping = restarts > 0 or why == "CrashLoopBackOff"
        word = "ImagePullBackOff" if why == "ErrImagePull" else why
        now = "loops" if is_looping and state != "Running" else f"{state} {word} {code} {message.strip()}".strip()
        shown[name] = (now, "restarted" if restarts else "", is_ready)
    kept = {name: conditions.get(name, False) for name in ("Initialized", "ContainersReady", "Ready")}
    return {"phase": phase, "reason": reason, "containers": shown, "conditions": kept}


@contextmanager
def kubelet_side(folder: Path, port: int) -> Iterator[Side]:
    program = Program.ask(PROGRAM)
    with groups(f"kepd-beside-{os.getpid()}") as group, Lab.start() as lab:
        settings = program.settings(lab, folder, lab.endpoint, cgroupRoot=group, port=port + 1, readOnlyPort=port)
        images = prepared(lab)
        with kubelet(program, lab, folder, settings):
            yield Side(lab, folder, folder / "manifests", images, lambda: of_kubelet(lab, port))


@contextmanager
def kepd_side(folder: Path, port: int) -> Iterator[Side]:
    with Lab.start() as lab:
        images = prepared(lab)
        extra = f"pods: {{logDirectory: {folder}/logs, logLinkDirectory: ''}}\n"
        with Kepd(folder, port, endpoint=lab.endpoint, extra=extra, prefix=lab.netns.command([])) as daemon:
            daemon.start("--planes", "pods")
            daemon.wait(lambda: "daemon_ready" in daemon.log.read_text(), "kepd is ready", 30.0)
            yield Side(lab, folder, daemon.manifests, images, lambda: of_kepd(daemon))
            assert "Traceback" not in daemon.log.read_text(), daemon.log.read_text()


def prepared(lab: Lab) -> dict[str, str]:
    """By the words for them in the manifests."""
    images = {"IMAGE": lab.push(Image(name="node/beside")), "OTHER": lab.push(Image(name="node/other"))}
    for image in images.values():
        lab.cri.pull(image)
    return images


def run_cases(side: Side, cases: list[Case]) -> dict[str, Picture]:
    for case in cases:
        side.write(case.name, case.spec, case.metadata)
    time.sleep(SETTLED_S)
    deadline_s = time.monotonic() + GONE_S
    while time.monotonic() < deadline_s and not all(one.has_settled(side.written(one.name)) for one in cases):
        time.sleep(1.0)
    shown, there = side.look(), side.runtime()
    found = {}
    for case in cases:
        lines = side.written(case.name)
        found[case.name] = {
            **shown.get(case.name, {"phase": "gone"}),
            "written": list(dict.fromkeys(lines)),
            "running": sorted(there.get(case.name, {}).keys() - {"sandbox"}),
        }
    side.end_all()
    for case in cases:
        found[case.name]["written at its end"] = [one for one in side.written(case.name) if one.endswith("stops")]
    return found


def test_the_same_manifests_come_to_the_same(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> None:
    """CMP-01: whatever differs is named in `DIFFERENT`."""
    cases = [one for one in CASES if one.since <= Program.ask(PROGRAM).version]
    with kubelet_side(tmp_path_factory.mktemp("l"), free_port) as side:
        theirs = run_cases(side, cases)
    with kepd_side(tmp_path_factory.mktemp("k"), free_port) as side:
        ours = run_cases(side, cases)
    unlike = {
        name: {key: (theirs[name].get(key), ours[name].get(key)) for key in theirs[name] | ours[name]
               if theirs[name].get(key) != ours[name].get(key)}
        for name in theirs
        if theirs[name] != ours[name]
    }  # fmt: skip

    assert len(cases) >= 55
    known = DIFFERENT.keys() | (OLD_DIFFERENT.keys() if Program.ask(PROGRAM).version < OLD_UNTIL else set())
    assert {name: what for name, what in unlike.items() if name not in known} == {}
    assert set(DIFFERENT) & theirs.keys() - unlike.keys() == set(), "named as different, and is not"


def effects(side: Side, edits: Sequence[Edit]) -> dict[str, str]:
    """What each edit does to a pod that runs, and that keeps its uid."""
    for number, edit in enumerate(edits):
        side.write(edit.name, edit.before, {"uid": f"edit-{number}", **edit.meta_before})
    deadline_s = time.monotonic() + 60
    while any({"sandbox", "app", "other"} - side.runtime().get(edit.name, {}).keys() for edit in edits):
        assert time.monotonic() < deadline_s, f"not all run: {side.runtime()}"
        time.sleep(0.5)
    time.sleep(2.0)
    before = side.runtime()
    for number, edit in enumerate(edits):
        side.write(edit.name, edit.after, {"uid": f"edit-{number}", **edit.meta_after})
    time.sleep(SETTLED_S)
    after = side.runtime()
    found = {edit.name: effect(before[edit.name], after.get(edit.name, {})) for edit in edits}
    side.end_all()
    return found


def effect(before: dict[str, str], after: dict[str, str]) -> str:
    if before["sandbox"] != after.get("sandbox"):
        return REPLACED if "sandbox" in after else "pod ended"
    gone, new = before.keys() - after.keys(), after.keys() - before.keys()
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    parts = [f"{name} ended" for name in sorted(gone)] + [f"{name} began" for name in sorted(new)]
    return ", ".join([*parts, *(f"{name} restarted" for name in changed)]) or IN_PLACE


def test_the_same_edits_come_to_what_their_tables_say(tmp_path_factory: pytest.TempPathFactory, free_port: int) -> None:
    """MAN-11: on kepd what docs/edits.md says; a kubelet differs where that page says so."""
    expected = {edit.name: edit.effect_of_kubelet(Program.ask(PROGRAM).version) for edit in EDITS}
    survived = [edit for edit in EDITS if expected[edit.name] != CRASHES]
    with kubelet_side(tmp_path_factory.mktemp("l"), free_port) as side:
        theirs = effects(side, survived)
    with kepd_side(tmp_path_factory.mktemp("k"), free_port) as side:
        ours = effects(side, EDITS)

    assert len(EDITS) >= 30
    assert ours == {edit.name: edit.effect for edit in EDITS}
    assert theirs == {edit.name: expected[edit.name] for edit in survived}
