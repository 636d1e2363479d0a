# SPDX-License-Identifier: Apache-2.0
"""Volumes on a real kernel and a real runtime: what is removed with a pod, and what of the node stays."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.mounts.driver import Mounts, mount_points
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.trees import remove_tree, tree_use
from agent.pods.runtime.volume_plan import PlannedVolume
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage
from tests.node.test_pod_life import container
from tests.systemd.test_units import unit_with_drop_in

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

Start = Callable[..., Kepd]


@pytest.fixture
def start(lab: Lab, short_path: Path, free_port: int) -> Iterator[Start]:
    """A daemon, started by a command before its own if one is given."""
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
    with ExitStack() as stack:

        def begin(*prefix: str) -> Kepd:
            kepd = stack.enter_context(Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra, prefix=prefix))
            stack.callback(take_away, kepd)
            return kepd.start("--planes", "pods")

        yield begin


def take_away(kepd: Kepd) -> None:
    for path in kepd.manifests.iterdir():
        path.unlink()
    kepd.wait(lambda: not kepd.pods(), "all pods gone", within_s=60)


@pytest.fixture
def behind_link(tmp_path: Path) -> Iterator[PodFiles]:
    """Pods' directories that are reached through a link, with nothing mounted in them afterwards."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to("disk")
    yield PodFiles(tmp_path / "state" / "pods", LogDirectories(tmp_path / "logs"), Mounts())
    Mounts().unmount_below(tmp_path / "disk")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the node, below a directory that a pod mounts."""
    path = tmp_path / "host" / "db" / "precious"
    path.parent.mkdir(parents=True)
    path.write_text("kept")
    return path


def mounted_below(place: Path) -> list[str]:
    return [point for point in mount_points() if Path(point).is_relative_to(place)]


class TestBehindALink:
    """FP-1: the state directory is a link, as where an administrator has moved it to another disk."""

    def test_what_a_sub_path_shows_of_the_node_stays(self, behind_link: PodFiles, precious: Path) -> None:
        behind_link.prepare("u1", [])
        bound = behind_link.source("u1", str(precious.parents[1]), "db", "app-0")
        assert (bound / "precious").exists()
        behind_link.remove("u1")

        assert precious.read_text() == "kept"
        assert list((behind_link.directory / "pods").iterdir()) == []
        assert mounted_below(behind_link.directory.resolve()) == []

    def test_memory_is_mounted_once_and_keeps_its_content(self, behind_link: PodFiles) -> None:
        volume = PlannedVolume(name="m", directory="volumes/kubernetes.io~empty-dir/m", tmpfs_bytes=1 << 20)
        behind_link.prepare("u1", [volume])
        (behind_link.of("u1") / volume.directory / "kept").touch()
        behind_link.prepare("u1", [volume])

        assert os.listdir(behind_link.of("u1") / volume.directory) == ["kept"]  # noqa: PTH208  # names only
        assert len(mounted_below(behind_link.directory.resolve())) == 1

    def test_a_pod_comes_and_goes(self, start: Start, lab: Lab, short_path: Path, precious: Path) -> None:
        (short_path / "disk").mkdir()
        (short_path / "state").symlink_to("disk")
        kepd = start()
        kepd.wait_ready()
        stage = Stage(kepd, lab.push(Image(name="node/volumes")))
        app = Actor("app", 0.1).container(stage.image, stage.out)
        app["volumeMounts"] += [
            {"name": "host", "mountPath": "/db", "subPath": "db"}, {"name": "memory", "mountPath": "/memory"},
        ]  # fmt: skip
        volumes = [
            {"name": "out", "hostPath": {"path": str(stage.out)}},
            {"name": "host", "hostPath": {"path": str(precious.parents[1])}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]
        stage.write([], containers=[app], volumes=volumes)
        stage.wait(lambda: container(stage, "app").get("state") == "Running", "it runs")
        assert kepd.ctl("restart", "play/app").returncode == 0
        stage.wait(lambda: container(stage, "app").get("restartCount") == 1, "restarted")
        assert [Path(point).name for point in mounted_below(short_path / "disk")].count("memory") == 1
        stage.remove()
        stage.wait_gone()

        assert precious.read_text() == "kept"
        assert list((short_path / "disk" / "pods" / "pods").iterdir()) == []
        assert mounted_below(short_path / "disk") == []


class TestMounts:
    """FP-1: a removal crosses no mount, whatever was or was not found in the table of mounts."""

    @pytest.fixture
    def bound(self, tmp_path: Path, precious: Path) -> Iterator[Path]:
        """A tree with a directory of the same device bound into it."""
        inner = tmp_path / "tree" / "a" / "b"
        inner.mkdir(parents=True)
        Mounts().bind(precious.parent, inner)
        yield tmp_path / "tree"
        Mounts().unmount_below(tmp_path / "tree")

    @pytest.mark.parametrize("root", [".", "a/b"])
    def test_a_bind_mount_in_a_tree_or_at_its_top_ends_the_removal(
        self, bound: Path, precious: Path, root: str
    ) -> None:
        with pytest.raises(OSError, match="something is mounted there"):
            remove_tree(bound / root)

        assert precious.read_text() == "kept"

    def test_a_file_that_is_bound_ends_the_removal(self, tmp_path: Path, precious: Path) -> None:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "file").touch()
        Mounts().bind(precious, tmp_path / "tree" / "file")
        with pytest.raises(OSError, match="busy"):
            remove_tree(tmp_path / "tree")
        Mounts().unmount_below(tmp_path / "tree")

        assert precious.read_text() == "kept"

    def test_what_is_mounted_is_not_counted(self, bound: Path) -> None:
        assert tree_use(bound).bytes == 0


class TestUnderTheUnit:
    """FP-4, FP-5: with the umask and the capabilities of the unit as shipped, with the drop-in for pods."""

    @pytest.fixture
    def as_the_unit(self) -> list[str]:
        service = unit_with_drop_in("kepd.service", "pods.conf")["Service"]
        rights = " ".join(service["CapabilityBoundingSet"]).lower().replace("cap_", "+").split()
        run = f'umask {service["UMask"][-1]}; exec "$@"'
        return ["setpriv", "--no-new-privs", f"--bounding-set=-all,{','.join(rights)}", "sh", "-c", run, "kepd"]

    def test_users_other_than_root_read_sources_and_own_their_volumes(
        self, start: Start, lab: Lab, as_the_unit: list[str]
    ) -> None:
        kepd = start(*as_the_unit)
        kepd.wait_ready()
        documents = [
            "kind: ConfigMap\nmetadata: {name: conf}\ndata: {a.conf: fast}",
            "kind: Secret\nmetadata: {name: hidden}\nstringData: {word: sesame}",
        ]
        text = "---\n".join(f"apiVersion: v1\n{one}\n" for one in documents)
        (kepd.manifests / "sources.yaml").write_text(text)
        stage = Stage(kepd, lab.push(Image(name="node/volumes")))
        stage.out.chmod(0o777)
        names = ("conf", "hidden", "facts", "disk", "memory", "part")
        volumes = [
            {"name": "out", "hostPath": {"path": str(stage.out)}},
            {"name": "conf", "configMap": {"name": "conf"}},
            {"name": "hidden", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
            {
                "name": "facts",
                "downwardAPI": {"items": [{"path": "in/name", "fieldRef": {"fieldPath": "metadata.name"}}]},
            },
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "part", "emptyDir": {}},
        ]
        script = (
            "cat /conf/a.conf /hidden/word /facts/in/name; echo; touch /disk/own /memory/own /part/own; "
            "stat -c '%a %g' /disk /memory /part; stat -c '%u %g' /disk/own /part/own"
        )
        app: dict[str, Any] = Actor("app", 0.1).container(stage.image, stage.out)
        app["command"] = ["sh", "-c", f"({script}) > /out/seen 2>&1; echo seen 0 > /out/app; sleep 60"]
        app["volumeMounts"] += [{"name": name, "mountPath": f"/{name}"} for name in names]
        app["volumeMounts"][-1]["subPath"] = "a/b"
        user = {"runAsUser": 1000, "fsGroup": 2000}
        stage.write([], containers=[app], volumes=volumes, securityContext=user, terminationGracePeriodSeconds=1)
        stage.wait(lambda: stage.lines("app"), "it looked")

        owned = ["2777 2000", "3777 2000", "2777 2000", "1000 2000", "1000 2000"]
        assert (stage.out / "seen").read_text().splitlines() == ["fastsesameplay-n1", *owned]
        (log,) = kepd.folder.glob("logs/default_play-n1_*/app")
        assert [stat.S_IMODE(path.stat().st_mode) for path in (log, log.parent, log.parent.parent)] == [0o755] * 3


def test_a_pod_that_made_a_deep_tree_goes(start: Start, lab: Lab) -> None:
    """FP-3: made by a user without rights."""
    kepd = start()
    kepd.wait_ready()
    stage = Stage(kepd, lab.push(Image(name="node/volumes")))
    deep = "cd /e; i=0; while [ $i -lt 1200 ]; do mkdir d; cd d; i=$((i+1)); done; echo made 0 > /out/app"
    app: dict[str, Any] = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", f"trap 'exit 0' TERM; {deep}; while true; do sleep 0.1 & wait $!; done"]
    app["securityContext"] = {"runAsUser": 1000}
    app["volumeMounts"].append({"name": "e", "mountPath": "/e"})
    volumes = [{"name": "out", "hostPath": {"path": str(stage.out)}}, {"name": "e", "emptyDir": {"sizeLimit": "1Gi"}}]
    stage.out.chmod(0o777)
    stage.write([], containers=[app], volumes=volumes)
    stage.wait(lambda: stage.lines("app"), "the tree is there")
    stage.remove()
    stage.wait_gone()

    assert list((kepd.folder / "state" / "pods" / "pods").iterdir()) == []
    assert "keeper_failed" not in kepd.log.read_text()
