# SPDX-License-Identifier: Apache-2.0
"""Manifests that other users may write are refused (FP-13)."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.drivers.manifests.driver import ManifestDirectory, read_manifests
from agent.drivers.manifests.source_folders import read_source_folders
from agent.drivers.manifests.trust import ROOT_ALONE, Distrusted, Trust

OTHER = 4242
GROUPS_TOO = Trust(may_group_write=True)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a manifest that is in order, and one that each test opens to others."""
    for name in ("good.yaml", "open.yaml"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def names(directory: Path, trust: Trust = ROOT_ALONE) -> set[str]:
    return {Path(path).name for path in read_manifests(directory, None, trust).files}


@pytest.mark.parametrize(
    ("mode", "taken", "taken_with_groups"),
    [(0o644, True, True), (0o600, True, True), (0o664, False, True), (0o646, False, False), (0o666, False, False)],
)
def test_a_mode_decides_whether_a_manifest_is_read(
    folder: Path, mode: int, *, taken: bool, taken_with_groups: bool
) -> None:
    (folder / "open.yaml").chmod(mode)

    assert ("open.yaml" in names(folder), "open.yaml" in names(folder, GROUPS_TOO)) == (taken, taken_with_groups)
    assert "good.yaml" in names(folder)


def test_the_finding_names_the_file_its_mode_and_what_would_be_right(folder: Path) -> None:
    (folder / "open.yaml").chmod(0o666)
    snapshot = read_manifests(folder)

    text = f"{folder}/open.yaml: every user may write it (mode 0666), so it is refused; "
    text += "only root may write manifests: chmod o-w; its last good content stays valid"

    assert [str(one) for one in snapshot.problems] == [text]
    assert snapshot.unread == snapshot.refused == {f"{folder}/open.yaml"}


@needs_root
def test_a_manifest_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder / "open.yaml", OTHER, 0)

    assert names(folder) == names(folder, GROUPS_TOO) == {"good.yaml"}
    assert f"user {OTHER} owns it (mode 0644)" in read_manifests(folder).problems[0].text


def test_a_file_that_was_read_before_keeps_its_content(folder: Path) -> None:
    before = read_manifests(folder)
    (folder / "open.yaml").write_bytes(b"changed by another")
    (folder / "open.yaml").chmod(0o666)
    after = read_manifests(folder, before)

    assert (after.files, after.unread) == (before.files, frozenset())


def test_a_directory_that_others_may_write_is_refused_as_a_whole(folder: Path) -> None:
    before = read_manifests(folder)
    folder.chmod(0o777)
    fresh, later = read_manifests(folder), read_manifests(folder, before)

    assert (fresh.files, fresh.unread, fresh.refused) == ({}, {str(folder)}, frozenset())
    assert (later.files, later.unread) == (before.files, frozenset())
    assert fresh.problems[0].where == str(folder)
    assert "(mode 0777)" in fresh.problems[0].text


def test_a_link_counts_by_its_target_and_by_each_directory_on_the_way(folder: Path, tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for place in (own, shared):
        place.mkdir()
        (place / "a").write_bytes(b"1")
    (own / "open").write_bytes(b"1")
    (own / "open").chmod(0o666)
    (shared / "back").symlink_to(own / "a")
    shared.chmod(0o777)
    for name, target in (("direct", own / "a"), ("target", own / "open"), ("way", shared / "back"), ("in", "shared/a")):
        (folder / f"{name}.yaml").symlink_to(target)
    refused = {Path(path).stem for path in read_manifests(folder).refused}

    assert refused == {"target", "way", "in"}
    assert "direct.yaml" in names(folder)


def test_a_single_file_counts_with_its_directory(folder: Path) -> None:
    folder.chmod(0o777)

    assert names(folder / "good.yaml") == set()


@pytest.mark.parametrize(
    "path",
    ["", "secrets", "secrets/default", "secrets/default/s", "secrets/default/s/..one", "secrets/default/s/..one/key"],
)
def test_no_place_on_the_way_to_a_key_may_be_open(tmp_path: Path, path: str) -> None:
    place = tmp_path / "secrets/default/s"
    (place / "..one").mkdir(parents=True)
    (place / "..one/key").write_bytes(b"good")
    (place / "..data").symlink_to("..one")
    (place / "key").symlink_to("..data/key")
    before = read_source_folders(tmp_path, {}).folders
    (tmp_path / path).chmod(0o777)
    look = read_source_folders(tmp_path, before)
    problems = [*look.problems, *(problem for one in look.folders.values() for problem in one.problems)]

    if path:
        assert "(mode 0777)" in problems[0].text
    else:
        # The manifests' own directory is complained about once, by whoever reads the manifests.
        assert (problems, dict(look.folders)) == ([], before)
    assert [one for one in read_source_folders(tmp_path, {}).folders.values() if one.values] == []


async def test_a_change_of_the_mode_is_seen_at_once(folder: Path) -> None:
    (folder / "open.yaml").chmod(0o666)
    looks = ManifestDirectory(folder, lambda: (300.0, 0.02)).snapshots()
    async with asyncio.timeout(30):
        first = await anext(looks)
        (folder / "open.yaml").chmod(0o644)
        second = await anext(looks)

    assert (len(first.files), len(second.files), second.problems) == (1, 2, ())


@needs_root
def test_the_user_of_the_process_counts_as_root_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kepd-services does not run as root, and its manifests are root's."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    os.chown(folder / "open.yaml", OTHER, 0)
    check: Callable[[os.stat_result], None] = Trust().check
    check((folder / "open.yaml").stat())
    check((folder / "good.yaml").stat())
    os.chown(folder / "open.yaml", OTHER + 1, 0)

    with pytest.raises(Distrusted):
        check((folder / "open.yaml").stat())
