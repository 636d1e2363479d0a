# SPDX-License-Identifier: Apache-2.0
"""What containers find around them on a real runtime: sources, groups of the kernel, names, limits."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage, pods_daemon
from tests.node.test_pod_life import container, events

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    keys = "logLinkDirectory: '', podPidsLimit: 200, logs: {maxSize: 4Ki, interval: 1s}"
    with pods_daemon(lab, short_path, free_port, keys) as daemon:
        yield daemon


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
    stage.wait(
        lambda: "conf/passwd: is a link to /etc/passwd, outside of its source" in stage.kepd.log.read_text(), "told"
    )
    assert said("mode") == "fast"
    assert container(stage, "app").get("restartCount", 0) == 0
    assert "sesame" not in stage.kepd.log.read_text()


IS_VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
FILES = {
    "shares": ("cpu", "cpu.shares", "cpu.weight"),
    "quota": ("cpu", "cpu.cfs_quota_us", "cpu.max"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.max"),
    "pids": ("pids", "pids.max", "pids.max"),
    "swap": ("memory", "memory.memsw.limit_in_bytes", "memory.swap.max"),
}
"""What is limited: the controller and its file in version 1, and the file in version 2."""


def limit(lab: Lab, uid: str, level: str, what: str, below: str = "") -> str:
    """What the kernel has, of a pod or of something below or above its group."""
    controller, first, second = FILES[what]
    top = Path("/sys/fs/cgroup") / ("" if IS_VERSION_2 else controller)
    folder = Path(f"{top}{lab.place.cgroup_parent}{level}/pod{uid}") / below
    return (folder / (second if IS_VERSION_2 else first)).read_text().split()[0]


def as_shares(milli: int) -> str:
    """Thousandths of a processor as the kernel weighs them."""
    shares = milli * 1024 // 1000
    return str(1 + (shares - 2) * 9999 // 262142) if IS_VERSION_2 else str(shares)


def uid_of(stage: Stage) -> str:
    return (stage.pod() or {})["uid"]


def test_a_pod_has_a_group_with_its_limits(stage: Stage, lab: Lab) -> None:
    """RES-04, RES-05: of the pod as a whole and of its containers; it goes with the pod."""
    limits = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}
    stage.begin([Actor("app", 0.1, more={"resources": limits}), Actor("web", 0.1, more={"resources": limits})])
    uid = uid_of(stage)

    def pod(what: str, below: str = "") -> str:
        return limit(lab, uid, "/burstable", what, below)

    assert pod("shares") == as_shares(200)
    assert pod("shares", "..") == as_shares(200), "it is the only one of its kind"
    assert pod("quota") == "100000"
    assert pod("memory") == str(128 << 20)
    assert pod("pids") == "200"
    inner = container(stage, "app")["id"].removeprefix("containerd://")
    assert pod("memory", inner) == str(64 << 20)
    if IS_VERSION_2 or Path("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists():
        assert pod("swap", inner) == ("0" if IS_VERSION_2 else str(64 << 20))
    stage.remove()
    stage.wait_gone()

    assert not list(Path("/sys/fs/cgroup").glob(f"*{lab.place.cgroup_parent}/burstable/pod{uid}"))


def test_what_this_runtime_cannot_do_is_told(stage: Stage, kepd: Kepd, lab: Lab) -> None:
    """SEC-07, VOL-09, TRM-24: an old containerd passes these over in silence; kepd does not."""
    version = lab.containerd.version
    this = "containerd {}.{}".format(*version)
    if version < (2, 0):
        stage.write([Actor("app", 0.1)], hostUsers=False)
        stage.wait(lambda: "FailedCreatePodSandBox" in dict(events(stage)), "told")
        assert f"needs user namespaces, which {this}" in dict(events(stage))["FailedCreatePodSandBox"]
        third = Stage(kepd, stage.image, "signal")
        third.begin([Actor("app", 0.1, more={"lifecycle": {"stopSignal": "SIGUSR1"}})], os={"name": "linux"})
        third.wait(lambda: "StopSignalIgnored" in dict(events(third)), "told")
        assert f"lifecycle.stopSignal SIGUSR1 has no effect: {this}" in dict(events(third))["StopSignalIgnored"]
    other = Stage(kepd, stage.image, "image")
    app = Actor("app", 0.1).container(stage.image, other.out)
    app["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    out = {"name": "out", "hostPath": {"path": str(other.out)}}
    other.write([], containers=[app], volumes=[out, {"name": "data", "image": {"reference": stage.image}}])
    if version < (2, 1):
        other.wait(lambda: container(other, "app").get("reason") == "CreateContainerConfigError", "told")
        assert f'volume "data" is an image, which {this}' in container(other, "app")["message"]
    else:
        other.wait(lambda: (other.pod() or {}).get("phase") == "Running", "it runs")


def test_a_pod_may_have_its_full_name_and_large_pages(stage: Stage) -> None:
    """LBL-08, VOL-02: as seen from inside."""
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


FACTS = """
pwd > /out/cwd; cd /out
id > id; grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff|Groups):' /proc/self/status > status
cat /proc/sys/kernel/shm_rmid_forced > sysctl
cat /etc/resolv.conf > resolv; cat /etc/hosts > hosts; hostname > hostname
touch /new 2> rootfs; ls -ld /proc/kcore /proc/keys /proc/timer_list > masked 2> none
ls -lnL /all > all; cat /all/limits/cpu > cpu; cat /all/name > name; cat /all/word > word
ls -lnd /cache > cache; df -k /memory | tail -1 > memory; cat /link/file > linked; ls /expr > expr
echo "$MEMORY $CPU $DISK" > resources; echo "$FILE" > file; echo done > done
"""


def test_what_stands_around_a_container(stage: Stage) -> None:
    """SEC, NET, VOL, ENV, RES: looked at from inside, as any program would."""
    (stage.kepd.manifests / "c.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {word: hello}\n"
    )
    (stage.out / "v" / "releases" / "1").mkdir(parents=True)
    (stage.out / "v" / "releases" / "1" / "file").write_text("linked")
    (stage.out / "v" / "current").symlink_to("releases/1")
    stage.out.chmod(0o777)
    variables = Actor("vars").container(stage.image, stage.out)
    variables["command"] = ["sh", "-c", "printf \"# from init\\nFILE='two\\nlines'\\n\" > /cache/env"]
    variables["volumeMounts"].append({"name": "cache", "mountPath": "/cache"})
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", FACTS]
    app["workingDir"] = "/cache"
    app["resources"] = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}
    app["securityContext"] = {
        "runAsGroup": 4000, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    app["env"] += [
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
        {"name": "DISK", "valueFrom": {"resourceFieldRef": {"resource": "requests.ephemeral-storage"}}},
        {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "cache", "path": "env", "key": "FILE"}}},
    ]
    app["volumeMounts"] += [
        {"name": "all", "mountPath": "all"}, {"name": "cache", "mountPath": "/cache"},
        {"name": "memory", "mountPath": "/memory"}, {"name": "v", "mountPath": "/link", "subPath": "current"},
        {"name": "cache", "mountPath": "/expr", "subPathExpr": "$(NAME)/sub"},
    ]  # fmt: skip
    projected = [
        {"configMap": {"name": "c", "items": [{"key": "word", "path": "word", "mode": 0o440}]}},
        {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "limits/cpu",
             "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu", "divisor": "1m"}},
        ]}},
    ]  # fmt: skip
    volumes = [
        {"name": "out", "hostPath": {"path": str(stage.out)}},
        {"name": "v", "hostPath": {"path": f"{stage.out}/v", "type": "Directory"}},
        {"name": "all", "projected": {"sources": projected, "defaultMode": 0o400}},
        {"name": "cache", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    stage.write(
        [], initContainers=[variables], containers=[app], volumes=volumes, restartPolicy="Never", dnsPolicy="None",
        dnsConfig={
            "nameservers": ["192.0.2.53"], "searches": ["a.example"], "options": [{"name": "ndots", "value": "2"}],
        },
        hostAliases=[{"ip": "192.0.2.7", "hostnames": ["one", "two"]}], hostname="inner", subdomain="sub",
        securityContext={
            "runAsUser": 3000, "fsGroup": 5000, "supplementalGroups": [6000],
            "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}],
        },
    )  # fmt: skip
    stage.wait(lambda: (stage.out / "done").exists(), "it looked around")

    def said(name: str) -> str:
        return (stage.out / name).read_text().strip()

    assert said("id").startswith("uid=3000 gid=4000")
    status = dict(line.split(":\t") for line in said("status").splitlines())
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapBnd"], 16)) == ("1", "2", 1)
    assert {"5000", "6000"} <= set(status["Groups"].split())
    assert said("sysctl") == "1"
    assert said("resolv").splitlines() == ["search a.example", "nameserver 192.0.2.53", "options ndots:2"]
    assert said("hosts").endswith("\n# Entries added by HostAliases.\n192.0.2.7\tone\ttwo")
    assert "\tinner.sub.default.svc.cluster.local\tinner\n" in said("hosts")
    assert (said("hostname"), said("cwd")) == ("inner", "/cache")
    assert "Read-only file system" in said("rootfs")
    assert all(line.startswith("crw") for line in said("masked").splitlines()), "empty devices stand in their places"
    assert (said("cpu"), said("name"), said("word"), said("linked")) == ("500", "play-n1", "hello", "linked")
    rights = {line.split()[-1]: (line.split()[0], line.split()[3]) for line in said("all").splitlines()[1:]}
    assert (rights["name"], rights["word"]) == (("-r--r-----", "5000"), ("-r--r-----", "5000"))
    assert said("cache").split()[0] == "drwxrwsrwx"
    assert said("cache").split()[3] == "5000"
    assert said("memory").split()[1] == "1024"
    assert said("resources") == "64 100 0"
    assert said("file") == "two\nlines"


def test_a_log_is_rotated_while_it_is_written(stage: Stage, kepd: Kepd) -> None:
    """CLG-01, CLG-02: no line is lost between the file that was and the one that is."""
    script = "trap 'exit 0' TERM; n=0; while true; do n=$((n+1)); echo line $n; [ $((n % 50)) = 0 ] && sleep 0.2; done"
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", script]
    stage.write([], containers=[app])
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Running", "it runs")
    folder = kepd.folder / "logs" / f"default_play-n1_{uid_of(stage)}" / "app"

    def files() -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".tmp")

    stage.wait(lambda: any(name.endswith(".gz") for name in files()), "an older one is compressed")
    stage.wait(lambda: "0.log" in files(), "the runtime has begun a new one")
    assert len(files()) <= 5
    newest = folder / [name for name in files() if name.endswith(".gz")][-1]
    numbers = [int(line.split()[-1]) for line in gzip.decompress(newest.read_bytes()).decode().splitlines()]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_a_path_in_a_volume_is_as_it_was_until_its_container_starts_again(stage: Stage) -> None:
    """VOL-07: not for subPath mounts; and VOL-05 of the next instance."""

    def text(value: str) -> str:
        return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{key: {value}}}\n"

    (stage.kepd.manifests / "c.yaml").write_text(text("old"))
    script = (
        "while true; do cat /sub/key > /out/sub; cat /all/key > /out/all; [ -e /out/die ] && rm /out/die && exit 1; "
    )
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", f"trap 'exit 0' TERM; {script} sleep 0.05; done"]
    app["volumeMounts"] += [
        {"name": "c", "mountPath": "/sub/key", "subPath": "key"}, {"name": "c", "mountPath": "/all"},
    ]  # fmt: skip
    out = {"name": "out", "hostPath": {"path": str(stage.out)}}
    stage.write([], containers=[app], volumes=[out, {"name": "c", "configMap": {"name": "c"}}])

    def said(name: str) -> str:
        path = stage.out / name
        return path.read_text().strip() if path.exists() else ""

    stage.wait(lambda: (said("sub"), said("all")) == ("old", "old"), "it runs")
    (stage.kepd.manifests / "c.yaml").write_text(text("new"))
    stage.wait(lambda: said("all") == "new", "the volume follows")
    assert said("sub") == "old"
    (stage.out / "die").touch()
    stage.wait(lambda: said("sub") == "new", "the next instance sees it")


def test_namespaces_are_shared_as_asked(stage: Stage, kepd: Kepd) -> None:
    """NET-04: the links in /proc say which namespace is whose."""
    look = "for one in net ipc pid; do readlink /proc/self/ns/$one; done > /out/.ns; mv /out/.ns /out/ns; "

    def shown(name: str, **spec: object) -> list[str]:
        other = Stage(kepd, stage.image, name)
        app = Actor("app", 0.1).container(stage.image, other.out)
        app["command"] = ["sh", "-c", f"{look} trap 'exit 0' TERM; sleep 3600 & wait"]
        other.write([], containers=[app], **spec)
        other.wait(lambda: (other.out / "ns").exists(), "it looked")
        return (other.out / "ns").read_text().split()

    here = [str(Path(f"/proc/self/ns/{one}").readlink()) for one in ("ipc", "pid")]
    own = shown("own")
    node = shown("node", hostPID=True, hostIPC=True)

    assert node[1:] == here
    assert not set(own) & set(here)
    assert node[0] != own[0]


def test_limits_change_while_containers_run(stage: Stage, lab: Lab) -> None:
    """RSZ, RES-04: of the container and of its pod, up and down, without a restart."""

    def write(cpu: str, memory: str) -> None:
        app = Actor("app", 0.1, more={"resources": {"limits": {"cpu": cpu, "memory": memory}}})
        stage.write([app], metadata={"uid": "resized"})

    def figures() -> list[str]:
        inner = container(stage, "app").get("id", "").removeprefix("containerd://")
        if not inner:
            return []
        return [limit(lab, "resized", "", what, below) for below in ("", inner) for what in ("memory", "quota")]

    write("500m", "64Mi")
    stage.wait(lambda: stage.lines("app"), "it runs")
    for cpu, quota, mebibytes in (("500m", "50000", 64), ("2", "200000", 256), ("250m", "25000", 32)):
        write(cpu, f"{mebibytes}Mi")
        wanted = [str(mebibytes << 20), quota] * 2
        stage.wait(lambda wanted=wanted: figures() == wanted, f"{wanted} and not {figures()}")

    assert len(stage.lines("app")) == 1
    assert not [text for reason, text in events(stage) if reason == "ResizeError"]
