# SPDX-License-Identifier: Apache-2.0
"""Figures of real containers as pages show them, and kills by the kernel that are counted whoever saw them."""

import json
import os
import pty
import select
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from tests.host.process import PROGRAMS, Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon

pytestmark = [pytest.mark.node, pytest.mark.alone, pytest.mark.timeout(180)]

WAIT = "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"
# A child that grows until the kernel kills it. What runs it is not killed and says so.
GROW = "tail /dev/zero; echo lost >> /out/lost"
MIB = 1 << 20
KILLS = "kepd_container_oom_kills_total"


@pytest.fixture
def image(lab: Lab) -> str:
    return lab.push(Image(name="node/observed"))


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    (short_path / "out").mkdir()
    more = "telemetry: {containers: {spaceEvery: 1s}}\n"
    with pods_daemon(lab, short_path, free_port, f"logLinkDirectory: {short_path}/links", more) as daemon:
        yield daemon


def put(kepd: Kepd, image: str, name: str, script: str, more: str = "", limits: str = "", volumes: str = "") -> None:
    """`volumes` are emptyDirs, mounted by their names: `NAME: {…}`."""
    own = yaml.safe_load(f"{{{volumes}}}")
    mounts = "".join(f", {{name: {one}, mountPath: /{one}}}" for one in own)
    dirs = "".join(f", {{name: {one}, emptyDir: {json.dumps(given)}}}" for one, given in own.items())
    pod = f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {more}
{"" if "containers:" in more else "  containers:"}
  - name: main
    image: "{image}"
    imagePullPolicy: IfNotPresent
    command: [sh, -c, {script!r}]
    resources: {{limits: {{{limits}}}}}
    volumeMounts: [{{name: out, mountPath: /out}}{mounts}]
  volumes: [{{name: out, hostPath: {{path: "{kepd.folder}/out"}}}}{dirs}]
"""
    yaml.safe_load(pod)
    draft = kepd.folder / f"{name}.draft"
    draft.write_text(pod)
    draft.rename(kepd.manifests / f"{name}.yaml")


def running(kepd: Kepd, name: str) -> None:
    kepd.wait(
        lambda: any(
            pod["name"] == f"{name}-n1" and all(one.get("state") == "Running" for one in pod["containers"])
            for pod in kepd.pods()
        ),
        f"{name} runs",
    )


def scrape(kepd: Kepd, path: str = "/metrics/cadvisor", accept: str = "") -> dict[str, Metric]:
    request = urllib.request.Request(f"http://127.0.0.1:{kepd.port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    parse = open_families if "openmetrics" in accept else text_string_to_metric_families
    return {one.name: one for one in parse(text)}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float | None:
    """Of the one series with these labels."""
    found = [
        one.value
        for family in families.values()
        for one in family.samples
        if one.name == sample and labels.items() <= one.labels.items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def kills(kepd: Kepd, pod: str) -> float:
    found = scrape(kepd)
    return sum(
        one.value
        for family in found.values()
        for one in family.samples
        if one.name == KILLS and one.labels["pod"] == f"{pod}-n1"
    )


def test_figures_follow_what_a_container_does(kepd: Kepd, image: str) -> None:
    """CMX-01, PSI-02, NIF-01: a burner under a quota, a writer of files, and what it may use; also in OpenMetrics."""
    put(kepd, image, "burns", "while true; do :; done", limits="cpu: 100m, memory: 64Mi")
    put(kepd, image, "waits", WAIT)
    for name in ("burns", "waits"):
        running(kepd, name)
    scrape(kepd)
    time.sleep(1.2)
    first, began_s = scrape(kepd), time.monotonic()
    time.sleep(4)
    second, seconds = scrape(kepd), time.monotonic() - began_s
    burns = {"pod": "burns-n1", "container": "main", "namespace": "default"}
    used = [value(one, "container_cpu_usage_seconds_total", **burns) for one in (first, second)]
    assert used[0] is not None
    assert used[1] is not None
    rate = (used[1] - used[0]) / seconds

    assert rate == pytest.approx(0.1, rel=0.3)
    assert (value(second, "container_cpu_cfs_throttled_periods_total", **burns) or 0) > 0
    assert value(second, "container_spec_cpu_quota", **burns) == 10_000
    assert value(second, "container_spec_memory_limit_bytes", **burns) == 64 * MIB
    assert value(second, "container_cpu_cfs_periods_total", pod="waits-n1", container="main") is None
    assert (value(second, "container_memory_working_set_bytes", pod="waits-n1", container="main") or 0) > 0
    assert value(second, "container_oom_events_total", **burns) == 0
    assert (value(second, "container_network_receive_bytes_total", pod="burns-n1", interface="eth0") or 0) > 0
    assert (value(second, "machine_cpu_cores") or 0) > 0
    assert value(second, "container_scrape_error") == 0
    assert (value(second, "container_pressure_cpu_waiting_seconds_total", **burns) or 0) > 0
    opened = scrape(kepd, accept="application/openmetrics-text; version=1.0.0")
    assert (value(opened, "container_cpu_usage_seconds_total", **burns) or 0) >= used[1]
    assert value(second, "kepd_container_restarts_total", **burns) == 0
    resource = scrape(kepd, "/metrics/resource")
    assert (value(resource, "pod_cpu_usage_seconds_total", pod="burns-n1") or 0) >= used[1]
    assert (value(resource, "container_memory_working_set_bytes", pod="waits-n1") or 0) > 0


def test_logs_and_volumes_are_measured(kepd: Kepd, image: str) -> None:
    """VSU-02, VSU-03: on the disk and in memory."""
    fill = "for one in disk memory; do head -c 3000000 /dev/zero > /$one/file; done"
    say = "head -c 5000 /dev/zero | tr '\\0' a; echo"
    put(kepd, image, "fills", f"{fill}; {say}; {WAIT}", volumes="disk: {sizeLimit: 64Mi}, memory: {medium: Memory}")
    running(kepd, "fills")

    def size(name: str, **labels: str) -> float:
        return value(scrape(kepd), name, pod="fills-n1", **labels) or 0

    for volume in ("disk", "memory"):
        kepd.wait(
            lambda one=volume: size("kepd_pod_volume_bytes", volume=one, kind="used") >= 3_000_000,
            f"{volume} has it",
            within_s=30,
        )
    assert size("kepd_pod_volume_bytes", volume="disk", kind="limit") == 64 * MIB
    assert size("kepd_pod_volume_bytes", volume="disk", kind="available") > 0
    assert size("kepd_pod_volume_inodes", volume="memory", kind="used") >= 2
    kepd.wait(lambda: size("kubelet_container_log_filesystem_used_bytes", container="main") >= 5000, "its log")
    with urllib.request.urlopen(f"http://127.0.0.1:{kepd.port}/stats/summary", timeout=20) as answer:
        summary = json.load(answer)
    (pod,) = [one for one in summary["pods"] if one["podRef"]["name"] == "fills-n1"]
    (main,) = pod["containers"]
    volumes = {one["name"]: one["usedBytes"] for one in pod["volume"]}
    assert min(volumes["disk"], volumes["memory"]) >= 3_000_000
    assert 3_000_000 <= pod["ephemeral-storage"]["usedBytes"] < 6_000_000, "memory is no disk"
    assert main["logs"]["usedBytes"] >= 5000
    assert main["cpu"]["usageNanoCores"] >= 0
    assert main["memory"]["workingSetBytes"] > 0
    assert summary["node"]["startTime"] < pod["startTime"]
    assert summary["node"]["runtime"]["imageFs"]["capacityBytes"] > 0


def test_top_shows_what_the_page_shows(kepd: Kepd, image: str) -> None:
    """LIV-01, LIV-03, LIV-09: tables, JSON, and the files themselves."""
    put(kepd, image, "burns", "while true; do :; done", limits="cpu: 100m, memory: 64Mi")
    running(kepd, "burns")
    time.sleep(2)
    table = kepd.ctl("top", "containers", "burns-n1").stdout.splitlines()
    node = kepd.ctl("top", "node").stdout.splitlines()
    found = kepd.json("top", "pods")
    wide = kepd.ctl("stats", "burns-n1", "-o", "wide").stdout.splitlines()
    summary = json.loads(kepd.ctl("stats", "--summary").stdout)
    every = kepd.ctl("stats").stdout.splitlines()
    both = kepd.ctl("stats", "burns-n1", "--summary")
    missing = kepd.ctl("top", "pods", "none")
    refused = kepd.ctl("top", "everything")
    (pod,) = found["pods"]
    cells = table[1].split()

    assert table[0].split()[:5] == ["NAMESPACE", "POD", "CONTAINER", "CPU", "MEMORY"]
    assert cells[:3] == ["default", "burns-n1", "main"]
    assert 50 <= int(cells[3].removesuffix("m")) <= 200
    assert node[1].split()[0] == "n1"
    assert pod["usage"]["cpuLimitCores"] == pytest.approx(0.1)
    assert any(line.split()[1] == "memory.stat" and line.endswith("/memory.stat") for line in wide[1:])
    assert [one["podRef"]["name"] for one in summary["pods"]] == ["burns-n1"]
    assert summary["node"]["nodeName"] == "n1"
    assert summary["pods"][0]["containers"][0]["memory"]["workingSetBytes"] > 0
    assert (every[0], every[1].split()[:3]) == (table[0], cells[:3])
    assert (missing.returncode, refused.returncode, both.returncode) == (3, 2, 2), (missing, refused, both)
    assert "\x1b" not in "".join([*table, *node, *wide])


def test_the_screen_gives_the_terminal_back(kepd: Kepd, image: str) -> None:
    """LIV-05: by q, and by a signal."""
    put(kepd, image, "waits", WAIT)
    running(kepd, "waits")
    for key in (b"q", b"\x03"):
        shown, code = on_terminal(["--endpoint", str(kepd.socket), "top", "pods", "-w", "--every", "1s"], key)
        assert code == 0, shown
        assert "waits-n1" in shown
        assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h")


def on_terminal(arguments: list[str], key: bytes) -> tuple[str, int]:
    """What kepctl writes on a terminal of its own until it knows the pod, and after this key."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(PROGRAMS / "kepctl", ["kepctl", *arguments])
    shown, pressed, deadline_s = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
        if not pressed and b"waits-n1" in shown:
            pressed = True
            os.write(terminal, key)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return shown.decode(errors="replace"), os.waitstatus_to_exitcode(status)


def test_a_child_that_the_kernel_kills_counts_once_and_its_container_goes_on(kepd: Kepd, image: str) -> None:
    """OOM-01 to OOM-05, OOM-08: the count is there before it happens, and survives kepd."""
    put(kepd, image, "grows", f"until [ -e /out/go ]; do sleep 0.1; done; {GROW}; {WAIT}", limits="memory: 20Mi")
    running(kepd, "grows")
    assert kills(kepd, "grows") == 0
    (kepd.folder / "out/go").touch()
    kepd.wait(lambda: (kepd.folder / "out/lost").exists(), "the child was killed")
    kepd.wait(lambda: kills(kepd, "grows") == 1, "it is counted")
    time.sleep(1.2)
    said = [one["message"] for one in kepd.json("get", "events")["items"] if one["reason"] == "ContainerOOM"]
    assert kills(kepd, "grows") == 1
    assert value(scrape(kepd), "container_oom_events_total", pod="grows-n1", container="main") == 1
    assert said == ["Container main: out of memory, limit 20.0MiB; 1 kill (container), the container goes on"]
    kepd.end(signal.SIGKILL)
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: kills(kepd, "grows") == 1, "it is still counted, once")
    assert [pod["containers"][0].get("restartCount", 0) for pod in kepd.pods()] == [0]


def test_a_pod_whose_group_has_no_memory_left_is_counted_with_its_container(kepd: Kepd, image: str) -> None:
    """OOM-01, OOM-06: each container is below its limit, and both together have what the pod may have."""
    holds = f"head -c 15000000 /dev/zero > /dev/shm/held; echo held > /out/held; {WAIT}"
    resources = "{limits: {memory: 45Mi}}"
    other = f"- {{name: other, image: '{image}', command: [sh, -c, {json.dumps(holds)}], resources: {resources}, "
    other += "volumeMounts: [{name: out, mountPath: /out}]}"
    more = f"resources: {{limits: {{memory: 50Mi}}}}\n  containers:\n  {other}"
    script = f"until [ -e /out/go ]; do sleep 0.1; done; {GROW}; {WAIT}"
    put(kepd, image, "shares", script, more, "memory: 45Mi")
    running(kepd, "shares")
    kepd.wait(lambda: (kepd.folder / "out/held").exists(), "the other one has its part")
    assert kills(kepd, "shares") == 0
    (kepd.folder / "out/go").touch()
    kepd.wait(lambda: (kepd.folder / "out/lost").exists(), "the child was killed")
    kepd.wait(lambda: kills(kepd, "shares") == 1, "it is counted")
    time.sleep(1.2)

    assert kills(kepd, "shares") == 1
    assert value(scrape(kepd), KILLS, pod="shares-n1", container="main", scope="pod") == 1


def test_a_container_that_dies_of_it_is_counted_each_time(kepd: Kepd, image: str) -> None:
    """OOM-02, OOM-05: by its first process, with a new instance each time, once also while no kepd runs.

    The limit leaves room for the runtime's own first process, which may be killed as well and is no instance.
    """
    put(kepd, image, "dies", "exec tail /dev/zero", limits="memory: 128Mi")
    kepd.wait(lambda: kills(kepd, "dies") >= 2, "it died twice", within_s=60)
    kepd.end(signal.SIGKILL)
    kepd.start("--planes", "pods").wait_ready()

    def restarts() -> int:
        return sum(one.get("restartCount", 0) for pod in kepd.pods() for one in pod["containers"])

    kepd.wait(lambda: kills(kepd, "dies") >= 3, "it died again", within_s=90)
    # Between two questions it may begin and die again, so the first is asked once more.
    before = restarts()
    found = kills(kepd, "dies")
    assert before <= found <= restarts() + 1
    said = {one["message"] for one in kepd.json("get", "events")["items"] if one["reason"] == "ContainerOOM"}
    assert {one.rpartition(", ")[2] for one in said} == {"the container ended"}, "OOM-08"
