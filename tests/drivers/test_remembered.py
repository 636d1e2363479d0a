# SPDX-License-Identifier: Apache-2.0
"""What manifests have in force outlives the process: real files, and one life of the directory after the other."""

import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agent.config.strict_yaml import parse_documents, plain
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.remembered import RememberedManifests
from agent.model.manifests.in_force import FileInForce
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder

A, B = ("ConfigMap", "default", "a"), ("ConfigMap", "other", "b")
FOLDER = SourceFolder(kind="Secret", namespace="n", name="s", path="/m/secrets/n/s", values={"key": b"\xff"})


def document(key: tuple[str, str, str], **data: str) -> bytes:
    kind, namespace, name = key
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}).encode()


def in_force(content: bytes, *keys: tuple[str, str, str], **more: Any) -> FileInForce:
    return FileInForce(content, frozenset(keys), **more)


def loaded(folder: Path) -> ManifestSnapshot:
    return RememberedManifests(folder).load()


def test_a_file_is_remembered_as_it_is_and_of_one_with_faults_what_is_in_force(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "manifests" / "pods"
    memory = RememberedManifests(folder)
    first = memory.load()
    good = document(A, old="1") + b"\n---\n" + document(B)
    memory.keep({"/m/a.yaml": in_force(good, A, B)}, {FOLDER.path: FOLDER})
    as_it_is = loaded(folder)
    faulty = document(B, new="1") + b"\n---\n{kind: ConfigMap, metadata: {name: a}, dat: {}}"
    memory.keep({"/m/a.yaml": in_force(faulty, A, B, kept=frozenset({A}), has_complaints=True)}, {})
    (content,) = loaded(folder).files.values()

    assert (first.is_first, as_it_is.is_first) == (True, False)
    assert (as_it_is.files, as_it_is.folders) == ({"/m/a.yaml": good}, {FOLDER.path: FOLDER})
    assert set(content.split(b"\n---\n")) == {
        json.dumps(json.loads(one), separators=(",", ":")).encode()
        for one in (document(A, old="1"), document(B, new="1"))
    }


@pytest.mark.parametrize("text", ["\x7f\x85\u2028\u2029\ufeff", "1e3", "no", '"\\\n\t', "🙂 é", "---", ""])
def test_what_is_written_anew_reads_as_it_was(tmp_path: Path, text: str) -> None:
    listed = {
        "apiVersion": "v1",
        "kind": "ConfigMapList",
        "items": [{"metadata": {"name": "a"}, "data": {"key": text}}],
    }
    memory = RememberedManifests(tmp_path)
    memory.keep(
        {"/m/a": in_force(json.dumps(listed, ensure_ascii="🙂" not in text).encode(), A, has_complaints=True)}, {}
    )
    (tree,) = parse_documents(loaded(tmp_path).files["/m/a"], "a")[0]

    assert plain(tree) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": text}}


def test_a_file_that_has_nothing_in_force_any_more_is_forgotten(tmp_path: Path) -> None:
    memory = RememberedManifests(tmp_path)
    memory.keep({"/m/a.yaml": in_force(document(A), A), "/m/\udcff.yaml": in_force(document(B), B)}, {})
    memory.keep({"/m/\udcff.yaml": in_force(document(B), B)}, {})
    (tmp_path / ".draft.json.abcdefgh").write_bytes(b"half")
    memory.keep({"/m/\udcff.yaml": in_force(document(B), B)}, {})

    assert loaded(tmp_path).files == {"/m/\udcff.yaml": document(B)}
    assert len(list(tmp_path.iterdir())) == 1


def test_root_alone_reads_what_is_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "pods"
    RememberedManifests(folder).keep({"/m/a.yaml": in_force(document(A), A)}, {})

    assert [one.stat().st_mode & 0o777 for one in (folder, *folder.iterdir())] == [0o700, 0o600]


@pytest.mark.parametrize("fault", ["torn", "of another user", "a link", "the directory"])
def test_a_memory_that_cannot_be_trusted_is_a_finding_and_counts_as_none(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "pods"
    memory = RememberedManifests(folder)
    memory.keep({"/m/a.yaml": in_force(document(A), A), "/m/b.yaml": in_force(document(B), B)}, {})
    broken = min(folder.iterdir())
    if fault == "torn":
        broken.write_bytes(broken.read_bytes()[:30])
    elif fault == "of another user":
        os.chown(broken, 1000, 0)
    elif fault == "a link":
        broken.rename(tmp_path / "elsewhere")
        broken.symlink_to(tmp_path / "elsewhere")
    else:
        folder.chmod(0o777)
    read = loaded(folder)

    assert read.is_first
    assert len(read.files) == (0 if fault == "the directory" else 1)
    assert all("what it remembers of manifests is lost" in one.text for one in read.problems)
    assert len(read.problems) == (2 if fault == "the directory" else 1)


def test_a_disk_that_takes_nothing_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "pods").write_bytes(b"a file in its place")
    RememberedManifests(tmp_path / "pods").keep({"/m/a.yaml": in_force(document(A), A)}, {})

    assert (tmp_path / "pods").read_bytes() == b"a file in its place"


class Life:
    """A process that follows the directory and has all ConfigMaps of its files in force, until it is killed."""

    def __init__(self, root: Path, rescan_s: float = 300.0) -> None:
        self.manifests = root / "manifests"
        memory = RememberedManifests(root / "state")
        self._source = ManifestDirectory(self.manifests, lambda: (rescan_s, 0.02), memory=memory, has_sources=True)

    async def looks(self, count: int) -> list[ManifestSnapshot]:
        """After each but the remembered one everything that it has is remembered."""
        seen: list[ManifestSnapshot] = []
        looks = self._source.snapshots()
        assert isinstance(looks, AsyncGenerator)
        async with aclosing(looks):
            async for snapshot in looks:
                seen.append(snapshot)
                if not snapshot.is_remembered:
                    files = {path: in_force(content, A) for path, content in snapshot.files.items()}
                    await self._source.remember(files, snapshot.folders)
                if len(seen) == count:
                    break
        return seen


def filled(root: Path) -> Path:
    manifests = root / "manifests"
    secret = manifests / "secrets" / "n" / "s"
    secret.mkdir(parents=True)
    (secret / "key").write_bytes(b"value")
    (manifests / "a.yaml").write_bytes(document(A))
    (manifests / "b.yaml").write_bytes(document(B))
    return manifests


async def test_the_next_process_begins_with_what_this_one_had_in_force(tmp_path: Path) -> None:
    manifests = filled(tmp_path)
    (before,) = await Life(tmp_path).looks(1)
    (manifests / "b.yaml").unlink()
    (manifests / "a.yaml").write_bytes(b"{")
    remembered, now = await Life(tmp_path).looks(2)

    assert (remembered.is_remembered, now.is_remembered) == (True, False)
    assert (remembered.files, set(remembered.folders)) == (before.files, set(before.folders))
    assert now.files == {str(manifests / "a.yaml"): b"{"}, "what was deleted meanwhile is gone"


async def test_what_cannot_be_read_at_the_start_has_what_it_had(tmp_path: Path) -> None:
    """MAN-08, also across a restart."""
    manifests = filled(tmp_path)
    (before,) = await Life(tmp_path).looks(1)
    (manifests / "a.yaml").chmod(0o666)
    (_, file) = await Life(tmp_path).looks(2)
    (manifests / "a.yaml").chmod(0o600)
    manifests.chmod(0o777)
    (_, directory) = await Life(tmp_path).looks(2)
    manifests.rename(tmp_path / "aside")
    (_, missing) = await Life(tmp_path).looks(2)
    manifests.mkdir()
    (_, emptied) = await Life(tmp_path).looks(2)

    for look, words in (
        (file, "every user may write it"), (directory, "every user may write it"), (missing, "is not there"),
        (emptied, "is empty and another directory than before"),
    ):  # fmt: skip
        assert (look.files, set(look.folders), look.unread) == (before.files, set(before.folders), frozenset())
        assert [words for one in look.problems if words in one.text] == [words]


async def test_an_empty_directory_is_believed_a_rescan_after_the_start(tmp_path: Path) -> None:
    manifests = filled(tmp_path)
    await Life(tmp_path).looks(1)
    shutil.copytree(manifests, tmp_path / "aside")
    for place in manifests.iterdir():
        place.unlink() if place.is_file() else shutil.rmtree(place)
    (_, held, believed) = await Life(tmp_path, rescan_s=0.1).looks(3)

    assert (len(held.files), believed.files, believed.folders) == (2, {}, {})


async def test_a_node_that_never_had_manifests_complains_of_nothing(tmp_path: Path) -> None:
    (fresh,) = await Life(tmp_path).looks(1)
    (again,) = await Life(tmp_path).looks(1)

    assert (fresh.files, fresh.problems, fresh.doubtful) == ({}, (), {str(tmp_path / "manifests")})
    assert (again.files, again.problems, again.doubtful, again.unread) == ({}, (), frozenset(), frozenset())


def test_that_not_all_is_known_is_remembered_until_it_is(tmp_path: Path) -> None:
    memory = RememberedManifests(tmp_path / "pods")
    memory.keep({"/m/a.yaml": in_force(document(A), A)}, {}, is_whole=False)
    memory.keep({"/m/a.yaml": in_force(document(A), A)}, {}, is_whole=False)
    some = loaded(tmp_path / "pods")
    memory.keep({"/m/a.yaml": in_force(document(A), A)}, {})
    every = loaded(tmp_path / "pods")

    assert (some.is_first, every.is_first) == (True, False)
    assert some.files == every.files == {"/m/a.yaml": document(A)}


async def test_what_nobody_has_read_yet_is_doubtful_until_something_is_remembered(tmp_path: Path) -> None:
    manifests = filled(tmp_path)
    (manifests / "a.yaml").chmod(0o666)
    (first,) = await Life(tmp_path).looks(1)
    (_, later) = await Life(tmp_path).looks(2)

    assert first.doubtful == first.unread == {str(manifests / "a.yaml")}
    assert (later.unread, later.doubtful) == (first.unread, frozenset()), "nothing of it was ever in force"
