# SPDX-License-Identifier: Apache-2.0
"""`kepctl debug` on real containers: what an ephemeral container sees, what it may do, and when it ends."""

import json
import signal
import subprocess
from typing import Any

import pytest

from agent.model.exit_codes import CONFLICT
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage, check_time, played_up_to_three_times
from tests.node.test_pod_life import container, kepd, stage  # noqa: F401  # fixtures
from tests.node.test_pod_streams import Here, here, more  # noqa: F401  # fixtures

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

PORT = 9000
STAY = "while [ ! -e /go ]; do sleep 0.05; done; exit 3"
# The lab's images have no `grep`.
RIGHTS = (
    "while read key value; do case $key in CapEff:|NoNewPrivs:|Seccomp:) echo $key$value;; esac; done"
    " < /proc/self/status"
)
SYS_PTRACE, NET_ADMIN, NET_RAW, SYS_ADMIN = 1 << 19, 1 << 12, 1 << 13, 1 << 21


def debug(stage: Stage, *arguments: str, script: str = STAY) -> subprocess.CompletedProcess[str]:  # noqa: F811
    return stage.kepd.ctl("debug", stage.name, "--image", stage.image, *arguments, "--", "sh", "-c", script)


def log_of(stage: Stage, name: str) -> str:  # noqa: F811
    stage.wait(lambda: container(stage, name).get("state") == "Terminated", f"{name} is done")
    return stage.kepd.ctl("logs", f"{stage.name}/{name}").stdout


def test_it_sees_the_processes_of_its_target_and_shares_the_network(stage: Stage) -> None:  # noqa: F811
    """TRM-27: also of the others only the network, where no target is named."""
    serve = f'echo "start 1" > /out/$NAME; while true; do nc -l -p {PORT} -e sh -c "echo heard"; done'
    stage.begin([Actor("app", 0.0, more=more([serve]))], terminationGracePeriodSeconds=1)
    # `$$` is one sign in a command, as in a manifest.
    look = f"echo own $$$$; read -r first < /proc/1/cmdline; echo $first; sleep 1 | nc 127.0.0.1 {PORT}"
    seen = debug(stage, "--name", "inside", "--target", "app", script=look)
    alone = debug(stage, "--name", "alone", script=look)
    inside, outside = log_of(stage, "inside"), log_of(stage, "alone")

    assert (seen.returncode, seen.stdout) == (0, "inside\n"), seen.stderr
    assert "`kepctl logs default/play-n1/inside`" in seen.stderr
    assert alone.returncode == 0, alone.stderr
    assert "own 1\n" not in inside
    assert f"nc -l -p {PORT}" in inside
    assert "own 1\n" in outside
    assert "heard\n" in inside
    assert "heard\n" in outside


def test_profiles_give_the_rights_that_they_name(stage: Stage, lab: Lab) -> None:  # noqa: F811
    """TRM-27: privileged also in a pod whose sandbox is not."""
    stage.begin([Actor("app", 0.0)], terminationGracePeriodSeconds=1)
    plain = lab.push(Image(name="node/nobody", user="1000"))
    rights: dict[str, dict[str, str]] = {}
    for profile in ("general", "baseline", "restricted", "netadmin", "sysadmin"):
        image = ("--image", plain) if profile == "restricted" else ()
        done = debug(stage, "--name", profile, "--profile", profile, *image, script=RIGHTS)
        assert done.returncode == 0, done.stderr
        rights[profile] = dict(line.split(":") for line in log_of(stage, profile).splitlines())
    refused = debug(stage, "--profile", "restricted")
    given = {profile: int(found["CapEff"], 16) for profile, found in rights.items()}

    assert (given["general"] ^ given["baseline"], given["restricted"]) == (SYS_PTRACE, 0)
    assert given["netadmin"] == given["baseline"] | NET_ADMIN | NET_RAW
    assert given["sysadmin"] & SYS_ADMIN
    assert not given["general"] & SYS_ADMIN
    assert (rights["restricted"]["NoNewPrivs"], rights["restricted"]["Seccomp"]) == ("1", "2")
    assert "will run as root" in refused.stderr


def test_it_survives_kepd_runs_once_and_keeps_its_name(stage: Stage, kepd: Kepd) -> None:  # noqa: F811
    """TRM-27: a kill of kepd, another kepd, an end, and no new start; a second one of its name is refused."""
    stage.begin([Actor("app", 0.0)], terminationGracePeriodSeconds=1)
    name = debug(stage).stdout.strip()
    before = stage.wait(lambda: container(stage, name).get("state") == "Running" and container(stage, name), "it runs")
    kepd.end(signal.SIGKILL)
    kepd.start("--planes", "pods").wait_ready()
    again = debug(stage, "--name", name)
    after = stage.wait(lambda: container(stage, name), "it is adopted")
    pods = kepd.ctl("get", "pods").stdout
    done = kepd.ctl(
        "api", "PodService/GetExecUrl", json.dumps({"name": "play-n1", "container": name, "command": ["x"]})
    )
    shown = [kepd.ctl(*words).stdout for words in (("get", "containers"), ("describe", "pod", "play"))]
    explained = kepd.ctl("explain", "pod", "play").stdout
    before_end = container(stage, "app")

    assert (after["id"], after["kind"], after["state"]) == (before["id"], "ephemeral", "Running")
    assert (again.returncode, f'has a container "{name}" already' in again.stderr) == (CONFLICT, True)
    assert " 1/1 " in pods
    assert done.returncode == 0, done.stderr
    assert all(name in text for text in (*shown, explained))
    assert before_end.get("restartCount", 0) == 0


def test_it_ends_with_its_own_code_and_stays_listed(
    stage: Stage, kepd: Kepd, here: Here  # noqa: F811
) -> None:  # fmt: skip
    """TRM-27: over a restart of kepd as well."""
    stage.begin([Actor("app", 0.0)], terminationGracePeriodSeconds=1)
    assert debug(stage, "--name", "once").returncode == 0
    went = here.run("exec", f"{stage.name}/once", "--", "sh", "-c", "echo > /go")
    assert went.returncode == 0, went.stderr

    def ended() -> Any:
        found = container(stage, "once")
        return found.get("state") == "Terminated" and found

    first = stage.wait(ended, "it has ended")
    kepd.end()
    kepd.start("--planes", "pods").wait_ready()
    second = stage.wait(ended, "it is still listed")

    assert (first["exitCode"], first["id"]) == (3, second["id"])
    assert (stage.pod() or {})["phase"] == "Running"


def test_it_is_attached_to_at_once(stage: Stage, here: Here) -> None:  # noqa: F811
    """TRM-27: input, output, and a terminal; the name is no part of the output."""
    stage.begin([Actor("app", 0.0)], terminationGracePeriodSeconds=1)
    ask = ("--", "sh", "-c", "read line; echo got $line; [ -t 1 ] && echo a terminal; sleep 0.3")
    plain = here.run("debug", stage.name, "--image", stage.image, "-i", "--name", "one", *ask, text="some words\n")
    terminal = here.run("debug", stage.name, "--image", stage.image, "-it", "--name", "two", *ask, text="more\n")

    assert (plain.returncode, plain.stdout) == (0, "got some words\n"), plain.stderr
    assert plain.stderr.splitlines()[0] == "one"
    assert "got more" in terminal.stdout
    assert "a terminal" in terminal.stdout


@played_up_to_three_times
def test_it_is_ended_with_the_mains_and_no_sidecar_waits_for_it(stage: Stage) -> None:  # noqa: F811
    """TRM-27: one that ignores its signal is killed at the pod's deadline; the sidecar has gone before."""
    stage.begin([Actor("app", 0.5)], [Actor("net", 0.1)], terminationGracePeriodSeconds=3)
    assert debug(stage, "--name", "deaf", script="trap '' TERM; while true; do sleep 0.1; done").returncode == 0
    assert debug(stage, "--name", "hears", script="trap 'exit 0' TERM; while true; do sleep 0.1; done").returncode == 0
    stage.remove()
    gone_s = stage.wait_gone()
    at = {name: dict(events) for name, events in stage.timeline("app", "net").items()}
    picture = stage.kepd.json("timeline", stage.name)
    rows = {row["name"]: {one["kind"]: one["at_s"] for one in row["marks"]} for row in picture["rows"]}

    check_time(at["app"]["exit"], at["net"]["term"], at)
    check_time(rows["app"]["signal"], rows["deaf"]["signal"], rows)
    check_time(rows["app"]["signal"], rows["hears"]["signal"], rows)
    check_time(rows["app"]["signal"] + 3.0, rows["deaf"]["SIGKILL"], rows)
    assert gone_s >= 2.95
