# SPDX-License-Identifier: Apache-2.0
"""kepd with a real containerd: a pod from a file, crashes of either side, and nothing restarted by them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Fault, Image, Lab, Throttle

pytestmark = pytest.mark.node

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: GRACE
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "TRAP; echo $WORD; while true; do sleep 3600 & wait; done"]
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


def write_pod(
    kepd: Kepd,
    image: str,
    name: str = "web",
    *,
    trap: str = "trap 'echo was asked; exit 0' TERM",
    grace_s: int = 30,
    mode: int = 0o644,
    more: str = "",
) -> None:
    hidden = kepd.manifests / f".{name}.tmp"
    text = POD.replace("NAME", name).replace("IMAGE", image).replace("TRAP", trap).replace("GRACE", str(grace_s))
    hidden.write_text(text + f"    {more}\n")
    hidden.chmod(mode)
    hidden.rename(kepd.manifests / f"{name}.yaml")


def pods(kepd: Kepd) -> list[dict[str, object]]:
    items: list[dict[str, object]] = kepd.pods()
    return items


def message(kepd: Kepd, name: str) -> str:
    return next((str(pod.get("message", "")) for pod in pods(kepd) if pod["name"] == name), "")


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
        kepd.wait_ready()
        node = kepd.json("get", "nodes")["items"][0]

        assert node["kepd"]["runtime"]["name"] == "containerd"


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


def test_a_manifest_that_others_may_write_is_refused_and_its_pod_runs_on(kepd: Kepd, lab: Lab) -> None:
    """FP-13: also when kepd starts anew; a pod that never ran does not begin."""
    image = lab.push(Image(name="node/daemon"))
    write_pod(kepd, image)
    kepd.start("--planes", "pods").wait_ready()
    before = kepd.wait(lambda: running(kepd), "it runs")
    (kepd.manifests / "web.yaml").chmod(0o666)
    write_pod(kepd, image, "late", mode=0o666)
    text = "/web.yaml: every user may write it (mode 0666), so it is refused"
    kepd.wait(lambda: text in message(kepd, "web-n1"), "the reason at the pod")
    kepd.end()
    kepd.start("--planes", "pods")
    kepd.wait(lambda: kepd.ctl("get", "pods").returncode == 0, "kepd answers")
    kepd.wait(lambda: text in message(kepd, "web-n1"), "the reason again")

    assert running(kepd) == before
    assert "late.yaml: every user may write it" in kepd.log.read_text()
    (kepd.manifests / "late.yaml").chmod(0o644)
    kepd.wait(lambda: "late-n1" in running(kepd), "it begins once its mode is in order")


def test_a_pod_for_which_there_is_no_room_waits_with_the_reason(kepd: Kepd, lab: Lab) -> None:
    """FP-20."""
    image = lab.push(Image(name="node/daemon"))
    kepd.start("--planes", "pods").wait_ready()
    write_pod(kepd, image, more="ports: [{containerPort: 80, hostPort: 18080}]")
    kepd.wait(lambda: running(kepd), "the first has the port")
    write_pod(kepd, image, "late", more="ports: [{containerPort: 80, hostPort: 18080}]")
    write_pod(kepd, image, "large", more="resources: {requests: {cpu: 100000}}")
    kepd.wait(lambda: "TCP 18080 is used by default/web-n1" in message(kepd, "late-n1"), "the reason")
    kepd.wait(lambda: "cpu, requested: 100000000, used: 0" in message(kepd, "large-n1"), "the other reason")
    shown = {line.split()[1]: line.split()[3] for line in kepd.ctl("get", "pods").stdout.splitlines()[1:]}

    assert shown == {"web-n1": "Running", "late-n1": "NodePorts", "large-n1": "OutOfcpu"}
    assert "next: it begins as soon as" in kepd.ctl("explain", "pod", "late-n1").stdout
    (kepd.manifests / "web.yaml").unlink()
    kepd.wait(lambda: "late-n1" in running(kepd), "it begins when the port is free")


def test_where_events_come_from_is_shown(kepd: Kepd) -> None:
    """containerd's own bus, in every version: CRI's events of 1.7 would be taken away from a kubelet."""
    kepd.start("--planes", "pods").wait_ready()

    kepd.wait(
        lambda: kepd.json("get", "nodes")["items"][0]["kepd"]["runtime"].get("eventSource") == "containerd", "known"
    )


def test_containers_are_asked_to_end_and_their_logs_go_with_the_pod(kepd: Kepd, lab: Lab) -> None:
    """MAN-09, CLG-03: SIGTERM and the pod's grace first; who does not heed it is killed after that."""
    image = lab.push(Image(name="node/daemon"))
    kepd.start("--planes", "pods").wait_ready()
    write_pod(kepd, image)
    write_pod(kepd, image, "deaf", trap="trap 'echo was asked' TERM", grace_s=1)
    kepd.wait(lambda: len(running(kepd)) == 2, "both run")
    kept = {}
    for name in ("web", "deaf"):
        (log,) = (kepd.folder / "logs").glob(f"default_{name}-n1_*/main/0.log")
        kepd.wait(lambda path=log, word=name: f"hello from {word}" in path.read_text(), "its output")
        # A second name of the same file outlives the removal of the first.
        kept[name] = kepd.folder / f"{name}.log"
        os.link(log, kept[name])
        (kepd.manifests / f"{name}.yaml").unlink()
    kepd.wait(lambda: not pods(kepd), "both are gone", within_s=20)

    assert "was asked" in kept["web"].read_text()
    assert "was asked" in kept["deaf"].read_text()
    assert list((kepd.folder / "logs").iterdir()) == []


def test_a_typo_leaves_the_pod_running_also_through_a_restart(kepd: Kepd, lab: Lab) -> None:
    """MAN-07."""
    image = lab.push(Image(name="node/daemon"))
    kepd.start("--planes", "pods").wait_ready()
    write_pod(kepd, image)
    began = kepd.wait(lambda: running(kepd), "the pod runs")
    manifest = kepd.manifests / "web.yaml"
    good = manifest.read_text()
    for broken, complaint in ((good.replace("image:", "imgae:"), "spec.containers[0].imgae"), ("kind: [", "not YAML")):
        manifest.write_text(broken)
        kepd.wait(lambda text=complaint: text in message(kepd, "web-n1"), "the complaint is on the pod")
        kepd.wait(lambda text=complaint: text in kepd.get("/readyz")[1], "and on the plane")
        assert running(kepd) == began
    kepd.end(signal.SIGKILL)
    kepd.start("--planes", "pods")
    kepd.wait(lambda: "not YAML" in kepd.get("/readyz")[1], "the complaint after a restart")
    kepd.wait(lambda: kepd.ctl("get", "pods").returncode == 0, "it answers")
    kepd.wait(lambda: running(kepd) == began, "it still runs")
    manifest.write_text(good)
    kepd.wait_ready()
    assert running(kepd) == began
    manifest.write_text("kind: [")
    kepd.wait(lambda: kepd.get("/readyz")[0] == 503, "broken again")
    manifest.unlink()
    kepd.wait(lambda: not pods(kepd), "a file that is gone ends its pod")
    kepd.wait_ready()


def test_a_hung_registry_blocks_no_other_pull(kepd: Kepd, lab: Lab, throttle: Throttle) -> None:
    image = lab.push(Image(name="node/daemon"))
    lab.push(Image(name="node/hanging"))
    hanging = lab.throttled(Image(name="node/hanging"))
    throttle.inject(Fault(kind="hang"))
    kepd.start("--planes", "pods").wait_ready()
    write_pod(kepd, hanging, "stuck")
    kepd.wait(lambda: throttle.in_flight("node/hanging"), "the pull hangs")
    kepd.wait(lambda: message(kepd, "stuck-n1") == f"waits for: fetch {hanging} for main", "what it waits for")
    write_pod(kepd, image)
    kepd.wait(lambda: list(running(kepd)) == ["web-n1"], "the other runs meanwhile")
    (kepd.manifests / "web.yaml").unlink()
    kepd.wait(lambda: [pod["name"] for pod in pods(kepd)] == ["stuck-n1"], "and ends meanwhile")
    (kepd.manifests / "stuck.yaml").unlink()
    kepd.wait(lambda: not pods(kepd), "the one that hangs is gone at once")
    kepd.wait(lambda: not throttle.in_flight("node/hanging"), "and its pull given up")
    kepd.wait_ready()


def attempts(throttle: Throttle) -> list[float]:
    """When the image was asked for; one attempt asks several times, but not for as long as the shortest pause."""
    asked = [request.started_s for request in throttle.requests("node/refused")]
    return [at_s for before_s, at_s in zip([0.0, *asked], asked, strict=False) if at_s - before_s > 0.9]
