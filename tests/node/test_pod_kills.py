# SPDX-License-Identifier: Apache-2.0
"""kepd is killed, or containerd started anew, at every single step of a start and of an end, on real containers.

A relay in front of the runtime (stepping.py) kills before a step is passed on, while it is under way, and after it was
answered; the next kepd goes on and comes to the next stage. What must hold in the end is what would have held without.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage, say, uptime_s
from tests.node.stepping import AFTER, BEFORE, DURING, Step, SteppingRelay

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

GRACE_S = 300
WITHIN_S = 130.0
ASKED = "asked"
"""In what the containers write: the kepd after the last death has asked for the end too."""
ALL = ["app", "net", "setup"]
START = [(name, stage) for name in ALL for stage in (AFTER, BEFORE)]


class Kills:
    """A daemon behind the relay, which is started again whenever it has died."""

    def __init__(self, kepd: Kepd, relay: SteppingRelay, stage: Stage, planes: str = "pods") -> None:
        self.kepd, self.relay, self.stage, self.planes = kepd, relay, stage, planes
        self.count = 0

    def kill(self, _step: Step, _at: str) -> bool:
        """What happens at each stage: the end of kepd, without a warning."""
        process = self.kepd.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        self.count += 1
        return True

    def survive(self, done: Callable[[], bool], what: str) -> None:
        """Until a condition holds, however often it has to be started again for that."""
        until_s = time.monotonic() + WITHIN_S
        while not done():
            if self.kepd.process is None or self.kepd.process.poll() is not None:
                self.relay.revive()
                self.kepd.start("--planes", self.planes)
            if time.monotonic() > until_s:
                shown = (self.relay.passed, self.kepd.get("/readyz"), self.stage.pod(), self.kepd.log.read_text())
                raise AssertionError(f"not within {WITHIN_S} s: {what}: {shown}")
            time.sleep(0.01)


@pytest.fixture
def kills(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kills]:
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
    out = short_path / "out-play"

    def is_signalled(name: str) -> bool:
        path = out / name
        return path.exists() and "term" in path.read_text()

    with (
        SteppingRelay(short_path, lab.endpoint, is_signalled) as relay,
        Kepd(short_path, free_port, endpoint=relay.endpoint, extra=extra) as daemon,
    ):
        stage = Stage(daemon, lab.push(Image(name="node/kills")))
        yield Kills(daemon, relay, stage)
        for path in daemon.manifests.iterdir():
            path.unlink()
        relay.happens = lambda _step, _stage: False
        if daemon.process is None or daemon.process.poll() is not None:
            relay.revive()
            daemon.start("--planes", "pods")
        stage.wait_gone()


def write_play(stage: Stage, grace_s: int = GRACE_S) -> None:
    """An init container, a sidecar and a main, both with hooks; the main ends when it was asked to after each death."""
    setup = Actor("setup").container(stage.image, stage.out)
    setup["command"] = ["sh", "-c", say("start")]
    net = Actor("net", 0.3, hook_script=":").container(stage.image, stage.out, is_sidecar=True)
    app = Actor("app", f"until [ -e /out/{ASKED} ]; do sleep 0.1; done", hook_script="true").container(
        stage.image, stage.out
    )
    app["lifecycle"]["postStart"] = {"exec": {"command": ["sh", "-c", say("begun")]}}
    stage.write([], initContainers=[setup, net], containers=[app], terminationGracePeriodSeconds=grace_s)


def events(stage: Stage, name: str) -> list[str]:
    return [event for event, _ in stage.lines(name)]


def test_kepd_is_killed_at_every_step_of_a_start_and_of_an_end(kills: Kills, lab: Lab) -> None:
    """ADO-01, STA-09, HOK-12, TRM-23, TRM-31: all run, each once; order, hooks and budget are kept; nothing is left."""
    stage, relay = kills.stage, kills.relay
    relay.happens = kills.kill
    write_play(stage)
    kills.survive(lambda: len(relay.stages_of("ExecSync")) == 1 and is_up(kills.kepd), "all run")

    created, started = (sorted(relay.stages_of(one)) for one in ("CreateContainer", "StartContainer"))
    # The main is created while the sidecar starts: a kepd that dies of the one does not hear the answer to the other.
    assert (created, sorted({*started, ("net", AFTER)})) == (START, START)
    # Nor the answer about the sandbox, where it dies of the pull that goes on beside it.
    assert relay.stages_of("RunPodSandbox") in ([("", BEFORE)], [("", BEFORE), ("", AFTER)])
    assert len(relay.stages_of("ExecSync")) == 1
    assert {name: events(stage, name) for name in ALL} == {
        "setup": ["start"], "net": ["start"], "app": ["start", "begun"],
    }  # fmt: skip
    assert relay.stops == []
    begun = kills.count

    stage.remove()
    kills.survive(lambda: [stop.name for stop in relay.stops].count("app") > 2, "the end is asked for after each death")
    (stage.out / ASKED).touch()
    kills.survive(lambda: is_gone(stage), "nothing is left")

    assert [at for who, at in relay.stages_of("StopContainer") if who == "app"] == [BEFORE, DURING, AFTER]
    assert [at for who, at in relay.stages_of("StopContainer") if who == "net"][:2] == [BEFORE, DURING]
    assert relay.stages_of("StopPodSandbox") == relay.stages_of("RemovePodSandbox") == [("", BEFORE), ("", AFTER)]
    assert events(stage, "app") == ["start", "begun", "hook", "hookend", "term", "exit"]
    assert events(stage, "net") == ["start", "hook", "hookend", "term", "exit"]
    assert dict(stage.lines("net"))["term"] >= dict(stage.lines("app"))["exit"]
    deadline_s = stage.ended_s + GRACE_S
    assert all(0 < one.timeout_s <= deadline_s - one.at_s + 1.5 for one in relay.stops), relay.stops
    assert relay.stops[-1].timeout_s < relay.stops[0].timeout_s
    assert lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items == []
    assert begun >= len(START) * 2 + 3
    assert kills.count - begun >= 10


def test_containerd_starts_anew_in_the_middle_of_a_start_and_of_an_end(kills: Kills, lab: Lab) -> None:
    """TRM-19: kepd lives on, and so do order and budget; nothing runs twice."""
    stage, relay = kills.stage, kills.relay
    steps = [("RunPodSandbox", AFTER), ("CreateContainer", AFTER), ("StartContainer", AFTER), ("ExecSync", AFTER)]
    steps += [("StopContainer", DURING), ("StopPodSandbox", AFTER)]
    renewed = []

    def renew(step: Step, at: str) -> bool:
        """Once for each kind of step. A start is not broken off: containerd would end what it had begun. And of an init
        that ends while nobody looks containerd could not tell how, so it would rightly run again."""
        if (step.method, at) in steps and step.method not in renewed and step.subject != "setup":
            renewed.append(step.method)
            lab.containerd.kill()
            lab.containerd.start()
            if step.method == "StopContainer":
                (stage.out / ASKED).touch()
        return False

    relay.happens = renew
    write_play(stage)
    kills.survive(lambda: bool(stage.lines("app")) and is_up(kills.kepd), "all run")
    assert {name: events(stage, name) for name in ("setup", "net")} == {"setup": ["start"], "net": ["start"]}
    assert events(stage, "app")[0] == "start"
    assert events(stage, "app").count("begun") <= 1

    stage.remove()
    kills.survive(lambda: is_gone(stage), "nothing is left")

    for name in ("app", "net"):
        assert events(stage, name)[-2:] == ["term", "exit"]
        assert events(stage, name).count("term") == 1
    assert dict(stage.lines("net"))["term"] >= dict(stage.lines("app"))["exit"]
    assert renewed == [method for method, _ in steps]
    assert uptime_s() < stage.ended_s + GRACE_S


def is_up(kepd: Kepd) -> bool:
    return kepd.process is not None and kepd.process.poll() is None and kepd.get("/readyz")[0] == 200


def is_gone(stage: Stage) -> bool:
    """A kepd that has just begun shows nothing yet, so what it remembers is what counts."""
    records = stage.kepd.folder / "state" / "pods" / "records"
    return is_up(stage.kepd) and not any(records.glob("*.json")) and stage.pod() is None
