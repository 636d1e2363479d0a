# SPDX-License-Identifier: Apache-2.0
"""kepd is killed at random moments before a runtime that is slow, and the runtime now and then as well.

Each pod has a name that no other has had, so that whatever its containers write down twice happened twice. The seed is
printed. `KEPD_SLOW_KILLS` says how many rounds; from 100 on there are more pods. Containerd dies in one
of 25.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import LOOP, Actor, Stage, say, uptime_s
from tests.node.slow_relay import SlowRelay
from tests.node.test_pod_kills import is_up
from tests.node.test_random_kills import left_of

pytestmark = [pytest.mark.node, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("KEPD_SLOW_KILLS", "6"))
PODS = 10 if ROUNDS >= 100 else 5
KINDS = ("sidecar", "plain", "helped", "stubborn", "job")
LONG_GRACE_S, SHORT_GRACE_S = 300, 4
WITHIN_S = 180.0
BEGUN = {"exec": {"command": ["sh", "-c", say("begun")]}}


class Life(Stage):
    """One pod of one kind, and what its containers have written."""

    def __init__(self, kepd: Kepd, image: str, number: int) -> None:
        self.kind = KINDS[number % len(KINDS)]
        self.is_shaken = False
        super().__init__(kepd, image, f"{self.kind}{number}")
        app = self.container("app", is_quick=self.kind in ("job", "helped"))
        app["lifecycle"] = {"postStart": BEGUN} | app.get("lifecycle", {})
        spec = {"containers": [app], "terminationGracePeriodSeconds": LONG_GRACE_S}
        if self.kind == "stubborn":
            spec["terminationGracePeriodSeconds"] = SHORT_GRACE_S
        if self.kind in ("job", "helped"):
            spec["restartPolicy"] = "Never"
        if "net" in self.actors:
            spec["initContainers"] = [self.container("setup", is_quick=True), self.container("net")]
        self.write([], **spec)

    @property
    def actors(self) -> tuple[str, ...]:
        return ("app",) if self.kind in ("plain", "job") else ("setup", "net", "app")

    def container(self, name: str, *, is_quick: bool = False) -> dict[str, object]:
        actor = Actor(name, 0.3, hook_script="" if is_quick else "true")
        made = actor.container(self.image, self.out, is_sidecar=name == "net")
        script = made["command"][-1].replace(LOOP, LOOP.replace("0.02", "0.5"))
        if name == "app" and self.kind == "stubborn":
            script = f"trap '{say('term')}' TERM; {say('start')}; {LOOP.replace('0.02', '0.5')}"
        if is_quick:
            script = f"{say('start')}; sleep 0.5; {say('exit')}"
        return made | {"command": ["sh", "-c", script]}

    @property
    def said(self) -> dict[str, list[tuple[str, float]]]:
        return {name: self.lines(name) for name in self.actors}

    def faults(self) -> list[str]:
        """What happened twice, or before its time. A runtime that died may have taken the end of a container with it,
        so that kepd rightly begins it again."""
        said = self.said
        counts = Counter((name, event) for name, lines in said.items() for event, _ in lines)
        if self.kind == "stubborn":
            # Whoever ignores its signal gets it again from the next kepd, which has to see to its end.
            counts.pop(("app", "term"), None)
        most = {name: counts[name, "start"] if self.is_shaken else 1 for name in self.actors}
        found = [f"{name}: {event} {many} times" for (name, event), many in counts.items() if many > max(most[name], 1)]
        times = {key: dict(lines) for key, lines in said.items()}
        if "net" in self.actors and not self.is_shaken:
            found += self.inversions(times)
        return [f"{self.name}: {one}; {said}" for one in found]

    def inversions(self, times: dict[str, dict[str, float]]) -> list[str]:
        pairs = [(("setup", "exit"), ("net", "start")), (("net", "start"), ("app", "start"))]
        is_over = self.kind == "stubborn" and times["net"].get("term", 0.0) >= self.ended_s + SHORT_GRACE_S - 0.05
        if times["app"] and not (is_over and self.ended_s):
            pairs.append((("app", "exit"), ("net", "term")))
        return [
            f"{late} before {early}"
            for early, late in pairs
            if late[1] in times[late[0]] and times[early[0]].get(early[1], float("inf")) > times[late[0]][late[1]]
        ]

    def is_on_stage(self, phases: dict[str, str]) -> bool:
        wanted = "Succeeded" if self.kind in ("job", "helped") else "Running"
        return phases.get(f"{self.name}-n1") == wanted and all(self.said.values())


class Company:
    def __init__(self, kepd: Kepd, lab: Lab, image: str, chance: random.Random) -> None:
        self.kepd, self.lab, self.image, self.chance = kepd, lab, image, chance
        self.lives: list[Life] = []
        self.past: list[Life] = []

    def change(self) -> None:
        """Some pods go, and others come."""
        for life in [one for one in self.lives if self.chance.random() < 0.2]:
            life.remove()
            self.lives.remove(life)
            self.past.append(life)
        while len(self.lives) < PODS:
            self.lives.append(Life(self.kepd, self.image, len(self.lives) + len(self.past)))

    def kill(self) -> None:
        """One time in four before it has looked around, else while it is at work."""
        if self.chance.random() < 0.75:
            self.kepd.wait(lambda: is_up(self.kepd), "it has looked around", WITHIN_S)
        time.sleep(self.chance.uniform(0.0, 3.0))
        process = self.kepd.process
        assert process is not None
        assert process.poll() is None, self.kepd.log.read_text()[-3000:]
        process.kill()
        process.wait()
        time.sleep(self.chance.choice((0.0, 0.0, 1.0)))

    def shake(self) -> None:
        self.lab.containerd.kill()
        self.lab.containerd.start()
        listed = self.lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items
        there = {one.metadata.name for one in listed}
        for life in (*self.lives, *(one for one in self.past if f"{one.name}-n1" in there)):
            life.is_shaken = True

    def doubles(self) -> list[str]:
        """Containers and sandboxes of one pod that run beside each other."""
        state = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
        asked = pb.ListContainersRequest(filter=pb.ContainerFilter(state=state))
        ready = pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY))
        sandboxes = self.lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest(filter=ready)).items
        keys = [one.metadata.name for one in sandboxes]
        for one in self.lab.cri.call("ListContainers", asked).containers:
            keys.append(f"{one.labels['io.kubernetes.pod.name']}/{one.metadata.name}")
        return [f"{key} runs {many} times" for key, many in Counter(keys).items() if many > 1]

    def are_on_stage(self) -> bool:
        if not is_up(self.kepd):
            return False
        phases = {one["name"]: one["phase"] for one in self.kepd.pods()}
        return all(life.is_on_stage(phases) for life in self.lives)

    def are_gone(self) -> bool:
        records = self.kepd.folder / "state" / "pods" / "records"
        return is_up(self.kepd) and not any(records.glob("*.json")) and not self.kepd.pods()


@pytest.fixture
def company(lab: Lab, short_path: Path, free_port: int) -> Iterator[Company]:
    seed = int(os.environ.get("KEPD_SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: '', relist: 5s}}\n"
    with (
        SlowRelay(short_path, lab.endpoint, random.Random(seed + 1)) as relay,
        Kepd(short_path, free_port, endpoint=relay.endpoint, extra=extra) as kepd,
    ):
        yield Company(kepd, lab, lab.push(Image(name="node/slow-kills")), random.Random(seed))
        for path in kepd.manifests.iterdir():
            path.unlink()
        kepd.wait(lambda: not lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items, "an end", WITHIN_S)


def test_kills_before_a_slow_runtime_change_nothing(company: Company) -> None:
    """NP-5: nothing happens twice, nobody who serves is signalled before those are over that it serves."""
    kepd, found = company.kepd, []
    kepd.start("--planes", "pods")
    for number in range(ROUNDS):
        company.change()
        if number % 25 == 20 and company.chance.random() < 0.5:
            company.shake()
            company.kill()
        else:
            company.kill()
            if number % 25 == 20:
                company.shake()
        kepd.start("--planes", "pods")
        found += company.doubles()
        if number % 20 == 0:
            print(number, f"{uptime_s():.0f} s", len(company.past), found, flush=True)
    kepd.wait(company.are_on_stage, "all are on the stage", WITHIN_S)
    for life in company.lives:
        life.remove()
    kepd.wait(company.are_gone, "all are gone", WITHIN_S)
    everybody = company.lives + company.past
    words = Counter(event for life in everybody for lines in life.said.values() for event, _ in lines)
    print(f"{ROUNDS} rounds, {len(everybody)} pods, {dict(words)}")
    found += [fault for life in everybody for fault in life.faults()]

    before, _, after = kepd.log.read_text().partition("Traceback")

    assert not after, before[-1000:] + after[:5000]
    assert found == []
    kepd.wait(lambda: not left_of(kepd, company.lab), f"nothing left: {left_of(kepd, company.lab)}", 20.0)
