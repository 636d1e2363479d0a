# SPDX-License-Identifier: Apache-2.0
"""kepd is killed at random moments while pods of several kinds begin and end, on real containers.

Nothing runs twice, no order is inverted, and nothing is left. A relay finishes the calls of a kepd that has died, as
containerd ends a container whose start is broken off; it could not be told from one that kepd started twice.
`KEPD_KILLS` says how often; from 100 on there are 50 pods. The seed is printed. test_pod_kills.py has the same for
every single step of one pod.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.host.shown_pods import LIST_PODS, pods_in
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage, say
from tests.node.stepping import SteppingRelay
from tests.node.test_pod_kills import events, is_up

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KEPD_KILLS", "16"))
PODS = 50 if KILLS >= 100 else 8
KINDS = ("plain", "sidecar", "job", "two")
WITHIN_S = 120.0
BEGUN = {"exec": {"command": ["sh", "-c", say("begun")]}}


class Play(Stage):
    """A pod of one kind, and what its containers have to have written."""

    def __init__(self, kepd: Kepd, image: str, number: int) -> None:
        self.kind = KINDS[number % len(KINDS)]
        super().__init__(kepd, image, f"{self.kind}{number}")

    @property
    def actors(self) -> tuple[str, ...]:
        return {"sidecar": ("setup", "net", "app"), "two": ("app", "other")}.get(self.kind, ("app",))

    def put(self) -> None:
        app = Actor("app", 0.2, hook_script="true").container(self.image, self.out)
        app["lifecycle"]["postStart"] = BEGUN
        match self.kind:
            case "job":
                app["command"] = ["sh", "-c", f"{say('start')}; sleep 1; {say('exit')}"]
                self.write([], containers=[app], restartPolicy="Never")
            case "sidecar":
                setup = Actor("setup").container(self.image, self.out)
                setup["command"] = ["sh", "-c", f"{say('start')}; sleep 0.2; {say('exit')}"]
                net = Actor("net", 0.1, hook_script=":").container(self.image, self.out, is_sidecar=True)
                self.write([], initContainers=[setup, net], containers=[app])
            case _:
                mains = [Actor(name, 0.1, hook_script="true") for name in self.actors]
                self.write(mains)

    def check(self) -> None:
        """Whatever has happened so far, it happened once and in its order."""
        said = {name: events(self, name) for name in self.actors}
        for name, found in said.items():
            assert [one for one in set(found) if found.count(one) > 1] == [], (self.name, said)
            # A postStart hook runs beside what it follows, which may be slower to say a word.
            own = [one for one in found if one != "begun"]
            assert own[:1] in ([], ["start"]), (self.name, name, said)
        if self.kind == "sidecar":
            times = {name: dict(self.lines(name)) for name in self.actors}
            for before, after in ((("setup", "exit"), ("net", "start")), (("net", "start"), ("app", "start"))):
                self.in_order(times, before, after)
            self.in_order(times, ("app", "exit"), ("net", "term"))

    def in_order(self, times: dict[str, dict[str, float]], before: tuple[str, str], after: tuple[str, str]) -> None:
        late = times[after[0]].get(after[1])
        if late is not None:
            assert times[before[0]].get(before[1], float("inf")) <= late, (self.name, before, after, times)

    def is_on_stage(self, phases: dict[str, str]) -> bool:
        wanted = "Succeeded" if self.kind == "job" else "Running"
        return phases.get(f"{self.name}-n1") == wanted and all(self.lines(name) for name in self.actors)


class Company:
    """All pods, and a daemon that dies now and then."""

    def __init__(self, kepd: Kepd, lab: Lab, image: str, chance: random.Random) -> None:
        self.kepd, self.lab, self.chance = kepd, lab, chance
        self.late: list[object] = []
        self.plays = [Play(kepd, image, number) for number in range(PODS)]

    def kill(self) -> None:
        time.sleep(self.chance.uniform(0.1, 1.5))
        process = self.kepd.process
        assert process is not None
        assert process.poll() is None, self.kepd.log.read_text()[-3000:]
        process.kill()
        process.wait()
        self.kepd.start("--planes", "pods")

    def phases(self) -> dict[str, str]:
        done = self.kepd.ctl(*LIST_PODS)
        if done.returncode != 0 or not is_up(self.kepd):
            return {}
        return {one["name"]: one["phase"] for one in pods_in(done.stdout)}

    def are_on_stage(self) -> bool:
        phases = self.phases()
        self.late = [
            (play.name, phases.get(f"{play.name}-n1"), {name: events(play, name) for name in play.actors})
            for play in self.plays
            if not play.is_on_stage(phases)
        ]
        return not self.late

    def are_gone(self) -> bool:
        records = self.kepd.folder / "state" / "pods" / "records"
        return is_up(self.kepd) and not any(records.glob("*.json")) and not self.kepd.pods()


def left_of(kepd: Kepd, lab: Lab) -> list[str]:
    """Sandboxes, addresses, groups, mounts and drafts of files."""
    listed = lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items
    root = lab.place.cgroup_parent.strip("/")
    groups = [*Path("/sys/fs/cgroup").glob(f"*/{root}/*pod*"), *Path("/sys/fs/cgroup").glob(f"{root}/*pod*")]
    leases = [one for one in (lab.place.directory / "ipam").rglob("*") if one.name[:1].isdigit()]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(kepd.folder) in line]
    drafts = (kepd.folder / "state").rglob(".*.????????")
    return [*(one.id for one in listed), *map(str, groups), *map(str, leases), *mounts, *map(str, drafts)]


@pytest.fixture
def company(lab: Lab, short_path: Path, free_port: int) -> Iterator[Company]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
    with (
        SteppingRelay(short_path, lab.endpoint, lambda _name: False) as relay,
        Kepd(short_path, free_port, endpoint=relay.endpoint, extra=extra) as kepd,
    ):
        yield Company(kepd, lab, lab.push(Image(name="node/random-kills")), random.Random(seed))
        for path in kepd.manifests.iterdir():
            path.unlink()
        kepd.wait(lambda: not lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items, "an end", WITHIN_S)


def test_kills_at_random_moments_change_nothing(company: Company) -> None:
    """ADO-01, STA-09, TRM-31, FP-2."""
    kepd, chance = company.kepd, company.chance
    kepd.start("--planes", "pods")
    for turn, deed in enumerate((Play.put, Play.remove)):
        waiting = chance.sample(company.plays, PODS)
        for number in range(KILLS // 2):
            share = -(-len(waiting) // max(KILLS // 4 - number, 1))
            for play in waiting[:share]:
                deed(play)
            waiting = waiting[share:]
            company.kill()
            for play in company.plays:
                play.check()
        try:
            kepd.wait(company.are_gone if turn else company.are_on_stage, deed.__name__, WITHIN_S)
        except AssertionError:
            print(company.late, kepd.ctl("get", "pods").stdout, kepd.ctl("get", "events").stdout)
            raise
        for play in company.plays:
            play.check()
    for play in company.plays:
        for name in play.actors:
            assert "start" in events(play, name), (play.name, name)

    kepd.wait(lambda: not left_of(kepd, company.lab), f"nothing left: {left_of(kepd, company.lab)}", 20.0)
