# SPDX-License-Identifier: Apache-2.0
"""What containers find around them on a real runtime: sources, groups of the kernel, names, limits."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage
from tests.node.test_pod_life import container, events

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    root = lab.place.cgroup_parent.strip("/")
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: '', podPidsLimit: 200}}\n"
    )
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        daemon.start("--planes", "pods").wait_ready()
        yield daemon
        for path in daemon.manifests.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        daemon.wait(lambda: not daemon.json("get", "pods")["items"], "all pods gone", within_s=60)


@pytest.fixture
def stage(kepd: Kepd, lab: Lab) -> Stage:
    return Stage(kepd, lab.push(Image(name="node/surface")))


def test_sources_with_a_file_per_key_come_and_change(stage: Stage) -> None:
    """VOL-06, VOL-07: a pod waits for them, follows changes, and keeps what it had while there is a fault."""
    manifests = stage.kepd.manifests
    script = (
        "while true; do cat /conf/mode > /out/.mode; mv /out/.mode /out/mode; cat /word/word > /out/word; "
        "echo $WORD > /out/variable; sleep 0.05; done"
    )
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", f"trap 'exit 0' TERM; {script}"]
    app["env"] = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}}]
    app["volumeMounts"] += [{"name": "conf", "mountPath": "/conf"}, {"name": "word", "mountPath": "/word"}]
    volumes = [
        {"name": "out", "hostPath": {"path": str(stage.out)}},
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "word", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
    ]
    stage.write([], containers=[app], volumes=volumes)
    waits_for = ("FailedMount", 'volume "conf" cannot be mounted: configmap "conf" not found')
    stage.wait(lambda: waits_for in events(stage), "it waits")
    for path, text in (("configmaps/default/conf/mode", "slow"), ("secrets/default/hidden/word", "sesame")):
        (manifests / path).parent.mkdir(parents=True)
        (manifests / path).write_text(text)
        (manifests / path).chmod(0o600)

    def said(name: str) -> str:
        path = stage.out / name
        return path.read_text().strip() if path.exists() else ""

    stage.wait(lambda: (said("mode"), said("word"), said("variable")) == ("slow", "sesame", "sesame"), "it runs")
    (manifests / "configmaps/default/conf/mode").write_text("fast")
    stage.wait(lambda: said("mode") == "fast", "the volume follows")
    (manifests / "configmaps/default/conf/passwd").symlink_to("/etc/passwd")
    stage.wait(lambda: "conf/passwd: is a link to /etc/passwd, which leads out" in stage.kepd.log.read_text(), "told")
    assert said("mode") == "fast"
    assert container(stage, "app").get("restartCount", 0) == 0
    assert "sesame" not in stage.kepd.log.read_text()


def group_file(lab: Lab, uid: str, level: str, controller: str, file: str) -> str:
    return Path(f"/sys/fs/cgroup/{controller}{lab.place.cgroup_parent}{level}/pod{uid}/{file}").read_text().strip()


def uid_of(stage: Stage) -> str:
    return (stage.pod() or {})["uid"]


def test_a_pod_has_a_group_with_its_limits(stage: Stage, lab: Lab) -> None:
    """RES-04, RES-05: of the pod as a whole and of its containers; it goes with the pod."""
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("reads the files of version 1; version 2 is tested on a tree in memory")
    limits = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}
    stage.begin([Actor("app", 0.1, more={"resources": limits}), Actor("web", 0.1, more={"resources": limits})])
    uid = uid_of(stage)

    def pod(controller: str, file: str) -> str:
        return group_file(lab, uid, "/burstable", controller, file)

    assert pod("cpu", "cpu.shares") == str(2 * 102)
    assert pod("cpu", "cpu.cfs_quota_us") == "100000"
    assert pod("memory", "memory.limit_in_bytes") == str(128 << 20)
    assert pod("pids", "pids.max") == "200"
    inner = container(stage, "app")["id"].removeprefix("containerd://")
    assert pod("memory", f"{inner}/memory.limit_in_bytes") == str(64 << 20)
    if Path("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists():
        assert pod("memory", f"{inner}/memory.memsw.limit_in_bytes") == str(64 << 20)
    stage.remove()
    stage.wait_gone()

    assert not list(Path("/sys/fs/cgroup").glob(f"*{lab.place.cgroup_parent}/burstable/pod{uid}"))


def test_what_this_runtime_cannot_do_is_told(stage: Stage, kepd: Kepd) -> None:
    """SEC-07, VOL-09, TRM-24: containerd 1.6 passes these over in silence; kepd does not."""
    stage.write([Actor("app", 0.1)], hostUsers=False)
    stage.wait(lambda: [text for reason, text in events(stage) if reason == "FailedCreatePodSandBox"], "told")
    assert (
        "hostUsers false needs user namespaces, which containerd 1.6" in dict(events(stage))["FailedCreatePodSandBox"]
    )
    other = Stage(kepd, stage.image, "image")
    app = Actor("app", 0.1).container(stage.image, other.out)
    app["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    out = {"name": "out", "hostPath": {"path": str(other.out)}}
    other.write([], containers=[app], volumes=[out, {"name": "data", "image": {"reference": stage.image}}])
    other.wait(lambda: container(other, "app").get("reason") == "CreateContainerConfigError", "told")
    assert 'volume "data" is an image, which containerd 1.6' in container(other, "app")["message"]
    third = Stage(kepd, stage.image, "signal")
    third.begin([Actor("app", 0.1, more={"lifecycle": {"stopSignal": "SIGUSR1"}})], os={"name": "linux"})
    third.wait(lambda: "StopSignalIgnored" in dict(events(third)), "told")

    assert "lifecycle.stopSignal SIGUSR1 has no effect: containerd 1.6" in dict(events(third))["StopSignalIgnored"]


def test_a_pod_may_have_its_full_name_and_large_pages(stage: Stage) -> None:
    """LBL-08, VOL-02: as seen from inside."""
    if "hugetlbfs" not in Path("/proc/filesystems").read_text():
        pytest.skip("this kernel has no huge pages")
    size = next(Path("/sys/kernel/mm/hugepages").iterdir()).name.removeprefix("hugepages-").removesuffix("kB")
    page = f"{size}Ki"
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = [
        "sh",
        "-c",
        "hostname > /out/name; grep ' /pages ' /proc/mounts > /out/mounts; cat /etc/hosts > /out/hosts",
    ]
    app["volumeMounts"].append({"name": "pages", "mountPath": "/pages"})
    app["resources"] = {"limits": {"cpu": "1", f"hugepages-{page}": page}}
    volumes = [
        {"name": "out", "hostPath": {"path": str(stage.out)}},
        {"name": "pages", "emptyDir": {"medium": "HugePages"}},
    ]
    stage.write(
        [], containers=[app], volumes=volumes, setHostnameAsFQDN=True, subdomain="sub", restartPolicy="Never"
    )  # fmt: skip
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Succeeded", "it ended")
    full = "play-n1.sub.default.svc.cluster.local"

    assert (stage.out / "name").read_text().strip() == full
    assert f"\t{full}\tplay-n1\n" in (stage.out / "hosts").read_text()
    assert (stage.out / "mounts").read_text().split()[2] == "hugetlbfs"
