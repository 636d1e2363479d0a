# SPDX-License-Identifier: Apache-2.0
"""Other resources for a container that runs, as it sees them itself."""

import signal
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.node.pods import Actor, Stage
from tests.node.test_pod_life import container, events, kepd, stage  # noqa: F401  # fixtures

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

MIB = 1 << 20
# Where the kernel has the limit of whoever asks, in either version of control groups.
LIMIT = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"


def sized(mebibytes: int) -> Actor:
    script = f"trap 'exit 0' TERM; echo \"start 1\" > /out/$NAME; while true; do ({LIMIT}) > /out/limit.new; "
    script += "mv /out/limit.new /out/limit; sleep 0.05 & wait $!; done"
    resources = {"limits": {"memory": f"{mebibytes}Mi"}, "requests": {"cpu": "10m", "memory": "8Mi"}}
    return Actor("app", 0.1, more={"command": ["sh", "-c", script], "resources": resources})


def seen(out: Path) -> int:
    path = out / "limit"
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdecimal() else 0


def test_a_limit_is_changed_where_it_is(stage: Stage, lab: Lab) -> None:  # noqa: F811
    """RSZ-01: up, down, and not below what is used; no restart."""
    del lab
    metadata = {"uid": "resized"}
    stage.begin([sized(64)], metadata=metadata)
    stage.wait(lambda: seen(stage.out) == 64 * MIB, "its first limit")
    first = container(stage, "app")["id"]
    for mebibytes in (128, 48):
        stage.write([sized(mebibytes)], metadata=dict(metadata))
        stage.wait(lambda wanted=mebibytes: seen(stage.out) == wanted * MIB, f"{mebibytes} MiB")
    too_small = sized(8)
    too_small.more["resources"]["limits"]["memory"] = "4Ki"
    too_small.more["resources"]["requests"]["memory"] = "4Ki"
    stage.write([too_small], metadata=dict(metadata))
    stage.wait(lambda: any(reason == "ResizeError" for reason, _ in events(stage)), "it is refused")
    text = next(message for reason, message in events(stage) if reason == "ResizeError")

    # By us, or by runc where the runtime does not tell all that is used.
    assert text.startswith("cannot decrease memory limits: ")
    assert (container(stage, "app")["id"], container(stage, "app").get("restartCount", 0)) == (first, 0)
    assert "PodResizeInProgress" in str(stage.pod())


TOP = Path("/sys/fs/cgroup")
IS_VERSION_2 = (TOP / "cgroup.controllers").exists()


def figures(stage: Stage, lab: Lab, below: str) -> tuple[str, str]:  # noqa: F811
    """Quota and burst of the pod, or of what is below it."""
    uid = (stage.pod() or {})["uid"]
    place = Path(f"{TOP if IS_VERSION_2 else TOP / 'cpu'}{lab.place.cgroup_parent}/burstable/pod{uid}") / below
    files = ("cpu.max", "cpu.max.burst") if IS_VERSION_2 else ("cpu.cfs_quota_us", "cpu.cfs_burst_us")
    quota, burst = ((place / file).read_text().split()[0] for file in files)
    return quota, burst


def test_a_burst_goes_along_with_its_limit(stage: Stage, lab: Lab) -> None:  # noqa: F811
    """RES-07: the kernel takes no burst above the quota, and runc writes the quota in between; no restart."""

    def write(cpu: str, burst: str) -> None:
        resources = {"limits": {"cpu": cpu}, "requests": {"cpu": "10m"}}
        metadata = {"uid": "bursts", "annotations": {"kepd.dev/cpu-burst.app": burst}}
        stage.write([Actor("app", 0.1, more={"resources": resources})], metadata=metadata)

    for cpu, burst, wanted in (
        ("500m", "40ms", ("50000", "40000")),
        ("200m", "20ms", ("20000", "20000")),
        ("1", "100ms", ("100000", "100000")),
        ("300m", "100ms", ("30000", "0")),
        ("300m", "30ms", ("30000", "30000")),
    ):
        write(cpu, burst)
        stage.wait(lambda: stage.lines("app"), "it runs")
        stage.wait(lambda: container(stage, "app").get("state") == "Running", "it is seen")
        inner = container(stage, "app")["id"].removeprefix("containerd://")
        stage.wait(
            lambda wanted=wanted, inner=inner: figures(stage, lab, inner) == figures(stage, lab, "") == wanted,
            f"{cpu} {burst}",
        )

    assert container(stage, "app").get("restartCount", 0) == 0
    assert "ResizeError" not in dict(events(stage))
    assert "expected at most 30ms" in dict(events(stage))["InvalidAnnotation"]


def test_a_pod_as_a_whole_is_resized_where_it_is(stage: Stage, lab: Lab) -> None:  # noqa: F811
    """RSZ-01, RES-06: up and down, both at once, across the end of a kepd; the container has the limit of its pod."""
    for number, (cpu, memory, quota) in enumerate(
        (("500m", 64, "50000"), ("1", 128, "100000"), ("200m", 48, "20000"), ("300m", 32, "30000"), ("1", 96, "100000"))
    ):
        app = sized(1)
        del app.more["resources"]
        resources = {"limits": {"cpu": cpu, "memory": f"{memory}Mi"}, "requests": {"cpu": "10m", "memory": "8Mi"}}
        if number == 3:
            stage.kepd.end(signal.SIGKILL)
        stage.write([app], metadata={"uid": "whole"}, resources=resources)
        if number == 3:
            stage.kepd.start("--planes", "pods").wait_ready()
        stage.wait(lambda wanted=memory: seen(stage.out) == wanted * MIB, f"{memory} MiB")
        inner = container(stage, "app")["id"].removeprefix("containerd://")
        stage.wait(
            lambda wanted=quota, inner=inner: [figures(stage, lab, one)[0] for one in (inner, "")] == [wanted] * 2, cpu
        )

    assert container(stage, "app").get("restartCount", 0) == 0
    assert not {"ResizeError", "SandboxChanged", "Killing"} & dict(events(stage)).keys()
    described = stage.kepd.ctl("describe", "pod", "play").stdout
    assert "Requests:          cpu=10m, memory=8Mi\nLimits:            cpu=1, memory=96Mi" in described
