# SPDX-License-Identifier: Apache-2.0
"""kepd with a real containerd: a pod from a file, crashes of either side, and nothing restarted by them."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.process import Kepd
from tests.lab import Image, Lab

pytestmark = pytest.mark.node

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "trap 'exit 0' TERM; echo $WORD; while true; do sleep 0.1; done"]
    env: [{name: WORD, value: hello from NAME}]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.wait(lambda: not pods(daemon), "all pods gone")


def write_pod(kepd: Kepd, image: str, name: str = "web") -> None:
    hidden = kepd.manifests / f".{name}.tmp"
    hidden.write_text(POD.replace("NAME", name).replace("IMAGE", image))
    hidden.rename(kepd.manifests / f"{name}.yaml")


def pods(kepd: Kepd) -> list[dict[str, object]]:
    items: list[dict[str, object]] = kepd.json("get", "pods")["items"]
    return items


def running(kepd: Kepd) -> dict[str, str]:
    """Container id and start time of each running pod."""
    return {
        str(pod["name"]): str([(one["id"], one["startedAt"]) for one in pod["containers"]])  # type: ignore[attr-defined]
        for pod in pods(kepd)
        if pod.get("phase") == "Running"
    }


def test_a_pod_runs_and_survives_the_death_of_kepd_and_of_containerd(kepd: Kepd, lab: Lab) -> None:
    """ADO-01, ADO-03: nothing is restarted because a daemon was."""
    image = lab.push(Image(name="node/daemon"))
    kepd.start("--planes", "pods").wait_ready()
    write_pod(kepd, image)
    began = kepd.wait(lambda: running(kepd), "the pod runs")
    (log,) = (kepd.folder / "logs").glob("default_web-n1_*/main/0.log")
    kepd.wait(lambda: "hello from web" in log.read_text(), "its output")

    kepd.end(signal.SIGKILL)
    kepd.start("--planes", "pods").wait_ready()
    assert kepd.wait(lambda: running(kepd), "adopted") == began

    lab.containerd.kill()
    kepd.wait(lambda: kepd.get("/readyz")[0] == 503, "the loss is seen", within_s=15)
    assert "does not answer" in kepd.get("/readyz")[1]
    lab.containerd.start()
    kepd.wait_ready()
    write_pod(kepd, image, "second")
    kepd.wait(lambda: len(running(kepd)) == 2, "work goes on after the restart")
    assert running(kepd)["web-n1"] == began["web-n1"]

    assert kepd.end(signal.SIGTERM) == 0
    kepd.start("--planes", "pods").wait_ready()
    assert kepd.wait(lambda: running(kepd), "still there")["web-n1"] == began["web-n1"]


def test_it_connects_when_the_socket_appears(lab: Lab, short_path: Path, free_port: int) -> None:
    """Bad input of the foundation: no containerd yet."""
    link = short_path / "late.sock"
    with Kepd(short_path, free_port, endpoint=f"unix://{link}") as kepd:
        kepd.start("--planes", "")
        kepd.wait(lambda: kepd.get("/readyz")[0] == 503, "an answer without a runtime")
        link.symlink_to(lab.endpoint.removeprefix("unix://"))
        began_s = time.monotonic()
        kepd.wait_ready()
        node = kepd.json("get", "nodes")["items"][0]

        assert node["runtime"]["name"] == "containerd"
        assert time.monotonic() - began_s < 3


def test_a_removed_manifest_ends_its_pod_and_a_broken_one_is_told(kepd: Kepd, lab: Lab) -> None:
    image = lab.push(Image(name="node/daemon"))
    write_pod(kepd, image)
    write_pod(kepd, image, "other")
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: len(running(kepd)) == 2, "both run")
    (kepd.manifests / "web.yaml").unlink()
    kepd.wait(lambda: list(running(kepd)) == ["other-n1"], "one is left")
    (kepd.manifests / "bad.yaml").write_text("kind: Pod\nspec: {container: []}\n")

    text = f"{kepd.manifests}/bad.yaml:2: spec.container: not supported by this version; did you mean"
    kepd.wait(lambda: text in kepd.log.read_text(), "the complaint")


def test_where_events_come_from_is_shown(kepd: Kepd, lab: Lab) -> None:
    """containerd 1.6 has no CRI events, so its own bus is used; 1.7 and later have."""
    kepd.start("--planes", "pods").wait_ready()
    expected = "containerd" if lab.containerd.version[:2] == (1, 6) else "cri"

    kepd.wait(lambda: kepd.json("get", "nodes")["items"][0]["runtime"].get("eventSource") == expected, expected)
