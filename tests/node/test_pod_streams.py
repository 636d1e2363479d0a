# SPDX-License-Identifier: Apache-2.0
"""Commands in containers, attaching and ports, through the runtime's own streams."""

import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.host.process import PROGRAMS
from tests.lab import Lab
from tests.node.pods import Actor, Stage
from tests.node.test_pod_life import kepd, stage  # noqa: F401  # fixtures

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

PORT = 9000


class Here:
    """kepctl beside the runtime, whose streams are on the loopback of its network namespace."""

    def __init__(self, lab: Lab, stage: Stage) -> None:  # noqa: F811
        self._before = ("nsenter", f"--net={lab.place.netns}", "--")
        self._program = (str(PROGRAMS / "kepctl"), "--endpoint", str(stage.kepd.socket))

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = (*self._before, *self._program, *arguments)
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=30)

    def begin(self, *arguments: str, source: str = "") -> "subprocess.Popen[str]":
        """`source`: a file that is its input."""
        argv = (*self._before, *self._program, *arguments)
        pipe = subprocess.PIPE
        with Path(source or "/dev/null").open("rb") as given:
            return subprocess.Popen(argv, stdin=given if source else pipe, stdout=pipe, stderr=pipe, text=True)

    def connect(self, port: int, text: str) -> str:
        script = (
            "import socket,sys\n"
            f"s=socket.create_connection(('127.0.0.1',{port}),5); s.sendall({text!r}.encode()); s.settimeout(5)\n"
            "print(s.recv(100).decode(), end='')"
        )
        done = subprocess.run((*self._before, "python3", "-c", script), capture_output=True, text=True, check=False)
        return done.stdout or done.stderr


@pytest.fixture
def here(lab: Lab, stage: Stage) -> Here:  # noqa: F811
    return Here(lab, stage)


def more(command: Sequence[str], **fields: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", *command], **fields}


def test_a_command_runs_as_if_it_were_here(stage: Stage, here: Here) -> None:  # noqa: F811
    """Both outputs apart, and the exit code."""
    stage.begin([Actor("app", 0.0), Actor("web", 0.0)])
    done = here.run("exec", f"{stage.name}/app", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    other = here.run("exec", stage.name, "-c", "web", "--", "sh", "-c", "echo $NAME")
    first = here.run("exec", stage.name, "--", "sh", "-c", "echo $NAME")
    unknown = here.run("exec", f"{stage.name}/app", "--", "no-such-program")

    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert (other.returncode, other.stdout) == (0, "web\n")
    assert (first.returncode, first.stdout) == (0, "app\n")
    assert unknown.returncode != 0
    assert "no-such-program" in unknown.stderr


def test_input_reaches_the_command(stage: Stage, here: Here) -> None:  # noqa: F811
    stage.begin([Actor("app", 0.0)])
    done = here.run("exec", "-i", stage.name, "--", "sh", "-c", "read line; echo got $line", text="some words\n")
    asked = "[ -t 1 ] && echo a terminal; sleep 0.5"
    terminal = here.run("exec", "-i", "-t", stage.name, "--", "sh", "-c", asked, text="")

    assert (done.returncode, done.stdout) == (0, "got some words\n")
    assert (terminal.returncode, terminal.stdout) == (0, "a terminal\n")


COUNT = 'ps | grep -c "[s]leep 90[1-3]"; true'


@pytest.mark.alone
@pytest.mark.parametrize(
    ("words", "source"),
    [
        (("exec", "{}", "--", "sh", "-c", "echo on; sleep 901; true"), "/dev/null"),
        (("exec", "-i", "{}", "--", "sh", "-c", "echo on; exec sleep 902"), ""),
        (("exec", "-i", "{}", "--", "sh", "-c", "trap '' TERM; echo on; sleep 903; sleep 903"), "/dev/zero"),
    ],
)
def test_an_interrupt_ends_the_command_on_both_sides(
    stage: Stage, here: Here, words: tuple[str, ...], source: str  # noqa: F811
) -> None:  # fmt: skip
    """Input without an end took half a gigabyte in two seconds and heard no interrupt; and the command ran on in the
    container for ever. The container's own process, and what others run there, go on."""
    stage.begin([Actor("app", 0.0)])
    other = here.begin("exec", stage.name, "--", "sh", "-c", "echo on; exec sleep 60")
    assert other.stdout is not None
    assert other.stdout.readline() == "on\n"
    ours = here.begin(*(word.format(stage.name) for word in words), source=source)
    assert ours.stdout is not None
    assert ours.stdout.readline() == "on\n"
    resident = int(Path(f"/proc/{ours.pid}/statm").read_text().split()[1]) * 4096
    ours.send_signal(signal.SIGINT)
    ours.communicate(timeout=20)
    left = here.run("exec", stage.name, "--", "sh", "-c", COUNT)
    is_on = other.poll() is None
    other.send_signal(signal.SIGINT)
    other.communicate(timeout=20)

    assert (ours.returncode, left.stdout, is_on) == (130, "0\n", True)
    assert resident < 128 << 20


def test_attaching_shows_and_writes_and_leaves_it_running(stage: Stage, here: Here) -> None:  # noqa: F811
    talks = 'echo "start 1" > /out/$NAME; while read line; do echo "heard $line"; done'
    fields = more([talks], stdin=True)
    stage.begin([Actor("app", 0.0, more=fields), Actor("deaf", 0.0)], terminationGracePeriodSeconds=1)
    refused = here.run("attach", "-i", f"{stage.name}/deaf")
    attached = here.begin("attach", "-i", f"{stage.name}/app")
    assert attached.stdin is not None
    assert attached.stdout is not None
    assert attached.stderr is not None
    greeting = attached.stderr.readline()
    heard = ""
    for _ in range(20):
        attached.stdin.write("hello\n")
        attached.stdin.flush()
        if select.select([attached.stdout], [], [], 1.0)[0]:
            heard = attached.stdout.readline()
            break
    attached.send_signal(signal.SIGINT)
    attached.communicate(timeout=20)
    still = here.run("exec", f"{stage.name}/app", "--", "true")

    assert (refused.returncode, "stdin: true" in refused.stderr) == (6, True)
    assert greeting == f"kepctl: attached to {stage.name}-n1/app; what it wrote before is in its log\n"
    assert heard == "heard hello\n"
    assert still.returncode == 0


def test_a_port_of_a_pod_is_reached_from_here(stage: Stage, here: Here) -> None:  # noqa: F811
    """Several connections, one after the other; a port where nobody listens harms no other."""
    answer = "read line; echo pod heard \\$line"
    serve = f'echo "start 1" > /out/$NAME; while true; do nc -l -p {PORT} -e sh -c "{answer}"; done'
    stage.begin([Actor("app", 0.0, more=more([serve]))], terminationGracePeriodSeconds=1)
    wrong = here.run("port-forward", stage.name, "99999")
    running = here.begin("port-forward", stage.name, f":{PORT}", ":9001")
    assert running.stdout is not None
    ports = [int(running.stdout.readline().split()[2].rpartition(":")[2]) for _ in range(2)]
    answers = []
    for word in ("one", "two"):
        until_s = time.monotonic() + 10
        while not (answer := here.connect(ports[0], f"{word}\n")).startswith("pod") and time.monotonic() < until_s:
            time.sleep(0.2)
        answers.append(answer)
    nobody = here.connect(ports[1], "x\n")
    again = here.connect(ports[0], "three\n")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)

    assert wrong.returncode == 2
    assert answers == ["pod heard one\n", "pod heard two\n"]
    assert nobody == ""
    assert again == "pod heard three\n"


def test_all_containers_are_listed_with_their_pods(stage: Stage) -> None:  # noqa: F811
    stage.begin([Actor("app", 0.0), Actor("web", 0.0)])
    listed = stage.kepd.json("get", "containers")["items"]

    assert {one["metadata"]["name"] for one in listed} >= {"app", "web"}


def test_scripts_wait_and_hear_of_an_image_without_tar(stage: Stage, here: Here, tmp_path: Path) -> None:  # noqa: F811
    """CL-12."""
    stage.begin([Actor("app", 0.0)])
    waited = here.run("wait", f"pod/{stage.name}", "--for=condition=Ready")
    late = here.run("wait", stage.name, "--for=jsonpath={.status.phase}=Failed", "--timeout=300ms")
    got = here.run("cp", f"{stage.name}/app:/out", str(tmp_path / "back"))

    assert (waited.returncode, late.returncode, got.returncode) == (0, 7, 1)
    assert "tar" in got.stderr, got.stderr
    assert "Traceback" not in got.stderr
    assert not (tmp_path / "back").exists()
