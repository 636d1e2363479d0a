# SPDX-License-Identifier: Apache-2.0
"""kubectl and client libraries on a bare node, through the door: real containers, and the kubectl that is installed.

`KEPD_KUBECTL` names another one. The tasks follow each other.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from agent.host.backup.contents import UNKNOWN, secret_in
from packages.door.tests.node.kubectl_tasks import FILES, TASKS, Task
from tests.host.process import ROOT, Kepd
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

PORT, DOOR = 10956, 10246
RESIZE = {"spec": {"containers": [{"name": "kept", "resources": {"limits": {"memory": "64Mi"}}}]}}
REACH = """#!/usr/bin/env python3
import sys, time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
        break
    except OSError:
        time.sleep(0.1)
"""
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def kepd(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kepd]:
    folder = tmp_path_factory.mktemp("k")
    extra = (
        f"pods: {{logDirectory: {folder}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    )
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    given = {"KEPD_API__DOOR__ADDRESS": f"127.0.0.1:{DOOR}"}
    with Kepd(folder, PORT, endpoint=lab.endpoint, extra=extra, prefix=prefix, **given) as daemon:
        daemon.start("--planes", "pods,services,images")
        daemon.wait(lambda: daemon.ctl("health").returncode == 0, "healthy")
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 30.0)
        state = folder / "state"
        places = [path.relative_to(state) for path in state.rglob("*") if path.is_file()]
        assert len(places) > 8
        assert UNKNOWN not in {secret_in("state", PurePosixPath(place), b"") for place in places}
    lab.netns.run(["nft", "flush", "ruleset"])


@pytest.fixture(scope="module")
def shell(lab: Lab, kepd: Kepd, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    folder = tmp_path_factory.mktemp("w")
    image = lab.push(Image(name="door/web"))
    for level in ("read", "operate"):
        (folder / level).write_text(kepd.ctl("kubeconfig", "--level", level).stdout)
    for name, text in FILES.items():
        (folder / name).write_text(text.replace("$IMAGE", image))
    kubectl = os.environ.get("KEPD_KUBECTL") or shutil.which("kubectl")
    assert kubectl, "there is no kubectl; scripts/prepare installs one"
    (folder / "kubectl").symlink_to(kubectl)
    (folder / "reach").write_text(REACH)
    (folder / "reach").chmod(0o755)
    environment = {
        **os.environ, "KUBECONFIG": str(folder / "operate"), "HOME": str(folder), "IMAGE": image,
        "LOG": f"https://127.0.0.1:{DOOR}/api/v1/namespaces/default/pods/mute/log?follow=true",
        "TOKEN": re.findall("token: (.*)", (folder / "read").read_text())[0], "PATH": f"{folder}:{os.environ['PATH']}",
    }  # fmt: skip

    def run(line: str) -> "subprocess.CompletedProcess[str]":
        argv = ["nsenter", f"--net={lab.place.netns}", f"--wdns={folder}", "--", "sh", "-c", line]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=90)

    return run


def fault(shell: Shell, task: Task) -> str:
    """What is wrong with how it went; nothing where it went well."""
    done = shell(task.line)
    output = done.stdout + done.stderr
    found = [f"exit code {done.returncode}, expected {task.code}"] if done.returncode != task.code else []
    found += [f"nothing like {one!r}" for one in task.shows if not re.search(one, output, re.MULTILINE)]
    found += ["what must not be seen"] if task.hides and re.search(task.hides, output) else []
    return f"$ {task.line}\n{output}{'; '.join(found)}\n" if found else ""


def test_kubectl_does_what_people_do_every_day(shell: Shell) -> None:
    said = shell("kubectl version --client -o json").stdout
    minor = int(re.sub(r"\D.*", "", json.loads(said)["clientVersion"]["minor"]))
    faults = [found for task in TASKS if task.since <= minor and (found := fault(shell, task))]

    assert not faults, "\n".join(faults)
    assert len(TASKS) >= 60


def test_each_example_is_applied_twice_and_leaves_nothing(shell: Shell, kepd: Kepd) -> None:
    """The second time changes nothing, and there is no difference."""
    before = sorted(path.name for path in kepd.manifests.iterdir())
    for name in ("hello.yaml", "bare-node/web.yaml", "kind/echo.yaml", "shop/shop.yaml"):
        path = ROOT / "examples" / name
        done = shell(f"kubectl apply -f {path} && kubectl apply -f {path} >again && kubectl diff -f {path}")
        assert done.returncode == 0, done.stdout + done.stderr
        said = shell("cat again").stdout.splitlines()
        assert said
        assert all(line.endswith("unchanged") for line in said), said
        assert shell(f"kubectl delete --now --wait=false -f {path}").returncode == 0
    assert sorted(path.name for path in kepd.manifests.iterdir()) == before


@pytest.mark.parametrize("name", ["kubernetes", "lightkube", "kr8s"])
def test_programs_work_with_a_node_by_their_libraries(shell: Shell, name: str) -> None:
    program = Path(__file__).with_name("clients.py")
    done = shell(
        f"{sys.executable} {program} {name} $IMAGE && (kubectl wait pods --all --for=delete --timeout=30s || true)"
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_label_and_other_resources_reach_the_pod_that_runs(shell: Shell) -> None:
    """Not another pod: it keeps its uid, its address and its container, and says until when it ends."""
    made = shell(
        "kubectl run kept --image=$IMAGE --image-pull-policy=IfNotPresent --command -- sleep 3600"
        " && kubectl wait pod/kept --for=condition=Ready"
    )
    assert made.returncode == 0, made.stdout + made.stderr

    def seen() -> tuple[str, str, str]:
        pod = json.loads(shell("kubectl get pod kept -o json").stdout)
        status = pod["status"]
        return pod["metadata"]["uid"], status["podIP"], status["containerStatuses"][0]["containerID"]

    before = seen()
    assert UUID(before[0])
    for line in (
        "kubectl label pod kept-n1 a=b",
        "kubectl annotate pod kept c=d",
        "kubectl get pod kept -o json | sed s/IfNotPresent/IfNotPresent/ | kubectl replace -f -",
        "kubectl get pod kept -o json | sed s/3600/3600/ | kubectl apply --server-side --force-conflicts -f -",
        f"kubectl patch pod kept --subresource resize --patch '{json.dumps(RESIZE)}'",
    ):
        done = shell(line)
        assert done.returncode == 0, (line, done.stdout + done.stderr)
    shown = shell("for n in $(seq 50); do kubectl get pod kept --show-labels && break; done")
    assert "a=b" in shown.stdout
    assert seen() == before
    ending = json.loads(
        shell("kubectl delete pod kept --wait=false && kubectl get pod kept -o json").stdout.partition("\n")[2]
    )

    assert (ending["metadata"]["deletionGracePeriodSeconds"], "deletionTimestamp" in ending["metadata"]) == (30, True)
    assert shell("kubectl delete pod kept --now --wait=true").returncode == 0
