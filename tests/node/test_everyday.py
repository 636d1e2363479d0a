# SPDX-License-Identifier: Apache-2.0
"""What people do on a node every day, on real containers, and the page that says how."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.host.process import PROGRAMS, ROOT, Kepd
from tests.lab import Image, Lab
from tests.node.everyday_tasks import EMPTYING, FILES, SETUP, TASKS, Task

PAGE = ROOT / "docs" / "kubectl.md"
PORT = 10947
KEPCTL = '#!/bin/sh\n[ -n "$_KEPCTL_COMPLETE" ] && exec {program} "$@"\nexec {program} --endpoint {socket} "$@"\n'
REACH = """#!/usr/bin/env python3
import sys, time, urllib.request
for _ in range(50):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
        break
    except OSError:
        time.sleep(0.2)
"""
ROW = re.compile(r"^- (.+?): `(.+)`$", re.MULTILINE)
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


def test_the_page_names_each_task_as_it_is_tried() -> None:
    section = PAGE.read_text().partition("\n## Every day\n")[2].partition("\n## ")[0]
    on_page = dict(ROW.findall(section))

    assert on_page == {one.name: one.page for one in (*TASKS, *EMPTYING)}
    assert len(on_page) == len(TASKS) + len(EMPTYING) >= 60


@pytest.fixture(scope="module")
def kepd(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kepd]:
    folder = tmp_path_factory.mktemp("e")
    extra = (
        f"pods: {{logDirectory: {folder}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}',"
        " reducedBackoff: true}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    )
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(folder, PORT, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        daemon.start("--planes", "pods,services,images")
        daemon.wait(lambda: daemon.ctl("health").returncode == 0, "healthy")
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 30.0)
    lab.netns.run(["nft", "flush", "ruleset"])


@pytest.fixture(scope="module")
def shell(lab: Lab, kepd: Kepd, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A directory with the files of the tasks, beside the node, whose objects are there."""
    folder = tmp_path_factory.mktemp("w")
    image, other = (lab.push(Image(name=f"everyday/{name}", labels={"is": name})) for name in ("web", "other"))
    values = {"IMAGE": image, "OTHER": other, "REGISTRY": lab.registry.address, "SOCKET": str(kepd.socket)}
    programs = folder / "bin"
    programs.mkdir()
    _program(programs / "kepctl", KEPCTL.format(program=PROGRAMS / "kepctl", socket=kepd.socket))
    _program(programs / "reach", REACH)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "setup.yaml").write_text(SETUP.replace("$IMAGE", image).replace("$REGISTRY", lab.registry.address))
    environment = {**os.environ, **values, "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(line: str) -> "subprocess.CompletedProcess[str]":
        argv = ["nsenter", f"--net={lab.place.netns}", f"--wdns={folder}", "--", "sh", "-c", line]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)

    done = run(
        "kepctl apply -f setup.yaml && kepctl rollout status deploy/web"
        " && kepctl wait box again --for=condition=Ready"
        " && kepctl wait again --for=jsonpath={.status.containerStatuses[0].restartCount}=1"
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    kepd.wait(lambda: "1/1" in kepd.ctl("get", "job", "work").stdout, "the Job is done")
    return run


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.node
@pytest.mark.timeout(120)
@pytest.mark.parametrize("task", TASKS, ids=lambda one: one.name)
def test_it_does_what_people_do_every_day(shell: Shell, task: Task) -> None:
    check(shell, task)


def check(shell: Shell, task: Task) -> None:
    done = shell(task.line)
    output = done.stdout + done.stderr

    assert done.returncode == task.code, output
    missing = [one for one in task.shows if not re.search(one, output, re.MULTILINE)]
    assert not missing, output
    assert not task.hides or not re.search(task.hides, output), output
