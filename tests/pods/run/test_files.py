# SPDX-License-Identifier: Apache-2.0
"""Pods' directories: volumes that are swapped whole, paths that lead nowhere else, logs that are rotated."""

import errno
import os
import stat
from pathlib import Path

import pytest

from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.volume_content import swap_content
from agent.pods.run.disk.volume_paths import open_inside, read_inside
from agent.pods.runtime.environment import ConfigProblem, EnvironmentSource, PodFacts
from agent.pods.runtime.volume_plan import PlannedFile, PlannedVolume, mount_source, plan_volumes
from tests.contract.fake_mounts import FakeMounts
from tests.pods.pods import make_pod


@pytest.fixture
def files(tmp_path: Path) -> PodFiles:
    return PodFiles(tmp_path / "pods", LogDirectories(tmp_path / "logs", tmp_path / "links"), FakeMounts())


def content(**texts: str) -> list[PlannedFile]:
    return [PlannedFile(name.replace("_", "/"), 0o640, text.encode()) for name, text in texts.items()]


class TestContent:
    """VOL-07: old or new, never a mixture."""

    def test_a_change_is_one_rename(self, tmp_path: Path) -> None:
        swap_content(tmp_path, content(a="1", d_b="2"), None)
        first = (tmp_path / "..data").readlink()
        swap_content(tmp_path, content(a="1", d_b="2"), None)
        assert (tmp_path / "..data").readlink() == first, "nothing changed, so nothing is done"
        kept = (tmp_path / "a").open()
        swap_content(tmp_path, content(a="new"), None)

        with kept:
            assert kept.read() == "1", "who has it open reads the old one to its end"
        assert (tmp_path / "a").read_text() == "new"
        swap_content(tmp_path, [PlannedFile("a", 0o400, b"new")], os.getegid())
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o440, "another mode is a change too"
        swap_content(tmp_path, content(a="new"), None)
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("..")) == ["a"]
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640

    def test_sources_become_files(self) -> None:
        """VOL-06, VOL-08."""
        source = EnvironmentSource(kind="Secret", namespace="default", name="s", data={"a": b"1", "b": b"2"})
        volume = {"name": "v", "secret": {"secretName": "s", "items": [{"key": "a", "path": "x/a", "mode": 0o400}]}}
        (planned,) = plan_volumes(make_pod(volumes=[volume]), {source.key: source}, PodFacts())

        assert planned.files == (PlannedFile("x/a", 0o400, b"1"),)
        assert planned.tmpfs_bytes is not None, "secrets touch no disk"
        assert "b'1'" not in repr(planned)

    @pytest.mark.parametrize(("optional", "fails"), [(False, True), (True, False)])
    def test_a_missing_source_is_told_unless_it_may_be(self, optional: bool, fails: bool) -> None:
        pod = make_pod(volumes=[{"name": "v", "configMap": {"name": "none", "optional": optional}}])
        try:
            (planned,) = plan_volumes(pod, {}, PodFacts())
        except ConfigProblem as problem:
            text = 'volume "v" cannot be mounted: configmap "none" not found'
            assert (fails, problem.reason, str(problem)) == (True, "FailedMount", text)
        else:
            assert (fails, planned.files) == (False, ())

    def test_memory_is_bounded_by_the_smallest_limit(self) -> None:
        """VOL-02."""
        volume = {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
        pod = make_pod(volumes=[volume], resources={"limits": {"memory": "1Gi"}})
        (planned,) = plan_volumes(pod, {}, PodFacts(memory_bytes=8 << 30))

        assert planned.tmpfs_bytes == 1 << 30


class TestPlaces:
    def test_empty_directories_live_as_long_as_the_pod(self, files: PodFiles) -> None:
        """VOL-01."""
        pod = make_pod(volumes=[{"name": "v", "emptyDir": {}}])
        planned = plan_volumes(pod, {}, PodFacts())
        files.prepare("u1", planned)
        place = files.source("u1", mount_source(pod, "v"), "", "0")
        (place / "kept").touch()
        files.prepare("u1", planned)
        assert (place / "kept").exists()
        assert stat.S_IMODE(place.stat().st_mode) == 0o777
        files.remove("u1")

        assert list((files.directory / "pods").iterdir()) == []

    def test_memory_that_a_reboot_took_is_made_again_with_its_group(self, tmp_path: Path) -> None:
        """VOL-01, VOL-02."""
        volume = PlannedVolume(name="v", directory="volumes/v", tmpfs_bytes=1 << 20, group=os.getegid())
        logs = LogDirectories(tmp_path / "logs")
        for _ in range(2):
            files = PodFiles(tmp_path / "pods", logs, FakeMounts())
            files.prepare("u1", [volume])
            place = files.of("u1") / "volumes/v"
            assert stat.S_IMODE(place.stat().st_mode) == 0o3777
            place.chmod(0o777)

    @pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b"])
    def test_no_uid_leads_out_of_the_directory(self, files: PodFiles, uid: str) -> None:
        with pytest.raises(ValueError, match="not a valid name of a directory"):
            files.of(uid)

    def test_sub_paths_are_made_and_bound(self, files: PodFiles) -> None:
        """VOL-05."""
        files.prepare("u1", [PlannedVolume(name="v", directory="volumes/v")])
        target = files.source("u1", "volumes/v", "a/b", "app-0")

        assert (files.of("u1") / "volumes/v/a/b").is_dir()
        assert target == files.of("u1") / "subpaths" / "app-0"

    def test_links_do_not_lead_out_of_a_volume(self, files: PodFiles, tmp_path: Path) -> None:
        """VOL-05: neither at the end nor on the way."""
        files.prepare("u1", [PlannedVolume(name="v", directory="volumes/v")])
        root = files.of("u1") / "volumes/v"
        (root / "out").symlink_to(tmp_path)
        for path in ("out", "out/secret", "a/../../x"):
            with pytest.raises(ConfigProblem):
                files.source("u1", "volumes/v", path, "0")

        assert files.read_below("u1", "volumes/v", "out/secret") is None

    def test_links_inside_a_volume_are_followed(self, tmp_path: Path) -> None:
        """VOL-05: a release that is switched by a link is a path like any other."""
        root = tmp_path / "v"
        (root / "releases" / "1").mkdir(parents=True)
        (root / "releases" / "1" / "file").write_text("one")
        (root / "current").symlink_to("releases/1")
        (root / "releases" / "up").symlink_to("../current")
        (root / "out").symlink_to("../../etc")
        (root / "round").symlink_to("round")

        assert read_inside(root, "current/file", 10) == b"one"
        assert read_inside(root, "releases/up/file", 2) == b"on"
        for path in ("out", "out/passwd", "round", "releases/up/../../../v", "/etc"):
            with pytest.raises(ConfigProblem, match="points outside of its volume"):
                open_inside(root, path)

    def test_what_is_missing_is_made_like_the_directory_above_it(self, tmp_path: Path) -> None:
        root = tmp_path / "v"
        root.mkdir()
        root.chmod(0o2770)
        os.close(open_inside(root, "a/b"))

        assert stat.S_IMODE((root / "a" / "b").stat().st_mode) == 0o2770
        with pytest.raises(FileNotFoundError):
            open_inside(root, "none", makes=False)

    def test_a_pipe_holds_nobody_up(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")

        assert read_inside(tmp_path, "pipe", 10) is None
        os.close(open_inside(tmp_path, "pipe"))

    def test_a_path_that_was_swapped_is_bound_anew(self, files: PodFiles) -> None:
        """VOL-07: a mount shows the old content for as long as its container runs, and the next one has the new."""
        files.prepare("u1", [PlannedVolume(name="v", directory="volumes/v", files=tuple(content(a="1")))])
        place = files.of("u1") / "volumes/v"
        target = files.source("u1", "volumes/v", "a", "app-0")
        bound: list[int] = []

        class Noting(FakeMounts):
            def bind(self, source: Path, target: Path) -> None:
                super().bind(source, target)
                bound.append(source.stat().st_ino)

        again = PodFiles(files.directory, files.logs, Noting())
        again.source("u1", "volumes/v", "a", "app-0")
        swap_content(place, content(a="2"), None)
        again.source("u1", "volumes/v", "a", "app-0")

        assert target == files.of("u1") / "subpaths" / "app-0"
        assert bound[-1] == (place / "a").stat().st_ino

    def test_swapped_content_has_sub_paths_too(self, tmp_path: Path) -> None:
        swap_content(tmp_path, content(a="1"), None)

        assert read_inside(tmp_path, "a", 10) == b"1"
        assert read_inside(tmp_path, "..data/a", 10) == b"1"

    @pytest.mark.parametrize(
        ("kind", "name", "fails"),
        [
            ("", "none", False), ("Directory", "dir", False), ("Directory", "file", True), ("File", "none", True),
            ("File", "file", False), ("DirectoryOrCreate", "new", False), ("FileOrCreate", "newfile", False),
            ("Socket", "file", True), ("FileOrCreate", "no/where", True),
        ],
    )  # fmt: skip
    def test_paths_of_the_node_are_checked(
        self, files: PodFiles, tmp_path: Path, kind: str, name: str, fails: bool
    ) -> None:
        """VOL-04."""
        (tmp_path / "dir").mkdir()
        (tmp_path / "file").touch()
        volume = PlannedVolume(name="v", host_path=str(tmp_path / name), check=kind)
        if fails:
            with pytest.raises(ConfigProblem) as told:
                files.hosts.check(volume)
            assert told.value.reason == "FailedMount"
        else:
            files.hosts.check(volume)

    def test_last_words(self, files: PodFiles, tmp_path: Path) -> None:
        """TMS-01."""
        path = files.message_file("u1", "app")
        log = tmp_path / "0.log"
        log.write_text("".join(f"2026-01-01T00:00:00Z stdout F line {number}\n" for number in range(100)))
        assert files.read_message(path, log, falls_back=False) == ""
        assert files.read_message(path, log, falls_back=True).splitlines()[-1] == "line 99"
        path.write_text("x" * 5000 + "end")

        words = files.read_message(path, log, falls_back=True)
        assert (len(words), words[-3:]) == (4096, "end")


class TestLogs:
    def test_attempts_go_on_from_what_is_on_the_disk(self, files: PodFiles) -> None:
        """LBL-06."""
        folder = files.logs.pod("d", "w", "u")
        assert files.logs.next_attempt(folder, "app") == 0
        files.logs.make(folder, "app")
        for name in ("0.log", "3.log.20260101-000000.gz", "x.log"):
            (folder / "app" / name).touch()

        assert files.logs.next_attempt(folder, "app") == 4

    def test_links_for_log_shippers_come_and_go(self, files: PodFiles) -> None:
        """CLG-01."""
        folder = files.logs.pod("d", "w", "u")
        files.logs.make(folder, "app")
        log = folder / "app" / "0.log"
        files.logs.link("d", "w", "app", "c1", log)
        assert files.logs.links is not None
        assert not files.logs.links.exists(), "only for a log that exists"
        log.touch()
        files.logs.link("d", "w", "app", "c1", log)
        assert (files.logs.links / "w_d_app-c1.log").resolve() == log
        files.logs.remove_attempt(folder, "app", 0, "c1")

        assert (list(files.logs.links.iterdir()), log.exists()) == ([], False)

    def test_rotation_keeps_so_many_files_and_compresses(self, files: PodFiles) -> None:
        """CLG-02."""
        folder = files.logs.pod("d", "w", "u")
        files.logs.make(folder, "app")
        log = folder / "app" / "0.log"
        (folder / "app" / "0.log.left.tmp").touch()
        for number in range(7):
            log.write_text(f"part {number}")
            files.logs.rotate(log, f"2026010{number}-000000", 5)
        log.touch()

        names = sorted(path.name for path in (folder / "app").iterdir())
        assert names == [
            "0.log", "0.log.20260103-000000.gz", "0.log.20260104-000000.gz", "0.log.20260105-000000.gz",
            "0.log.20260106-000000",
        ]  # fmt: skip
        assert files.logs.is_full(log, 0)
        assert not files.logs.is_full(log, -1)

    def test_what_a_pod_logged_is_cleared_but_its_numbers_are_not_used_again(
        self, files: PodFiles, tmp_path: Path
    ) -> None:
        """FSY-04: also where a pod's log leads elsewhere, which it does not."""
        folder = files.logs.pod("ns", "web", "u-1")
        (folder / "main").mkdir(parents=True)
        for name in ("0.log", "1.log", "1.log.20260102-030405.gz", "other"):
            (folder / "main" / name).write_bytes(b"x" * 10)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "0.log").write_text("stays")
        (folder / "linked").symlink_to(outside)
        freed = files.logs.clear(folder)

        assert freed == 30
        assert {path.name: path.stat().st_size for path in (folder / "main").iterdir()} == {"1.log": 0, "other": 10}
        assert files.logs.next_attempt(folder, "main") == 2
        assert (outside / "0.log").read_text() == "stays"
        assert files.logs.clear(tmp_path / "none") == 0
        (folder / "main" / "1.log").unlink()
        (folder / "main" / "1.log").symlink_to(outside / "0.log")
        with pytest.raises(OSError, match="symbolic"):
            files.logs.clear(folder)
        assert (outside / "0.log").read_text() == "stays"

    def test_a_full_disk_keeps_no_half_of_a_compressed_log(
        self, files: PodFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SYS-16."""
        folder = files.logs.pod("d", "w", "u")
        files.logs.make(folder, "app")
        log = folder / "app" / "0.log"
        log.write_text("part 0")
        files.logs.rotate(log, "20260100-000000", 5)
        log.write_text("part 1")
        monkeypatch.setattr("agent.pods.run.disk.logs.shutil.copyfileobj", full_disk)

        with pytest.raises(OSError, match="No space left"):
            files.logs.rotate(log, "20260101-000000", 5)
        assert sorted(path.name for path in (folder / "app").iterdir()) == ["0.log", "0.log.20260100-000000"]

    def test_no_name_leads_out_of_the_directory(self, files: PodFiles) -> None:
        with pytest.raises(ValueError, match="is not inside"):
            files.logs.pod("..", "x/..", "y/../../z")


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
