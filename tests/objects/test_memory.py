# SPDX-License-Identifier: Apache-2.0
"""What manifests have in force outlives the process: real files, and one life of the directory after the other."""

import json
import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from agent.config.strict_yaml import parse_documents, plain
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.run.memory import ObjectMemory
from agent.pods.manifest.objects import NodeIdentity, pod_reading
from tests.objects.following import following
from tests.objects.looks import after

A, B = ("ConfigMap", "default", "a"), ("ConfigMap", "other", "b")
SOURCES = pod_reading(NodeIdentity("n", has_name_suffix=False))
FOLDER = SourceFolder(kind="Secret", namespace="n", name="s", path="/m/secrets/n/s", values={"key": b"\xff"})


def document(key: tuple[str, str, str], **data: str) -> bytes:
    kind, namespace, name = key
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}).encode()


def loaded(folder: Path) -> ManifestSnapshot:
    memory = ObjectMemory(folder / "objects.db")
    try:
        return memory.load().snapshot
    finally:
        memory.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[ObjectMemory]:
    made = ObjectMemory(tmp_path / "objects.db")
    made.load()
    yield made
    made.close()


def remembered_of(content: bytes) -> bytes:
    """Of a file that has nothing wrong but that it came after one that has its first object."""
    rival = {"/m/0.yaml": document(B), "/m/a.yaml": content}
    return after(SOURCES, rival).to_remember()[0]["/m/a.yaml"]


def test_a_file_is_remembered_as_it_is_and_of_one_with_faults_what_is_in_force(
    tmp_path: Path, memory: ObjectMemory
) -> None:
    first = memory.load()
    good = {"/m/a.yaml": document(A, old="1") + b"\n---\n" + document(B)}
    faulty = {"/m/a.yaml": document(B, new="1") + b"\n---\n{kind: ConfigMap, metadata: {name: a}, dat: {}}"}
    memory.keep(after(SOURCES, good).to_remember()[0], {FOLDER.path: FOLDER})
    as_it_is = loaded(tmp_path)
    memory.keep(*after(SOURCES, good, faulty).to_remember())
    (content,) = loaded(tmp_path).files.values()

    assert first.snapshot.files == {}
    assert (as_it_is.files, as_it_is.folders) == (good, {FOLDER.path: FOLDER})
    assert loaded(tmp_path).folders == {}
    assert set(content.split(b"\n---\n")) == {
        json.dumps(json.loads(text), separators=(",", ":")).encode()
        for text in (document(A, old="1"), document(B, new="1"))
    }


@pytest.mark.parametrize("text", ["\x7f\x85\u2028\u2029\ufeff", "1e3", "no", '"\\\n\t', "🙂 é", "---", ""])
def test_what_is_written_anew_reads_as_it_was(tmp_path: Path, memory: ObjectMemory, text: str) -> None:
    listed = {
        "apiVersion": "v1",
        "kind": "ConfigMapList",
        "items": [{"metadata": {"name": "a"}, "data": {"key": text}}],
    }
    rival = {"metadata": {"name": "b", "namespace": "other"}}
    listed["items"].append(rival)  # type: ignore[attr-defined]
    content = json.dumps(listed, ensure_ascii="🙂" not in text).encode()
    memory.keep({"/m/a": remembered_of(content)}, {})
    (tree,) = parse_documents(loaded(tmp_path).files["/m/a"], "a")[0]

    assert plain(tree) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": text}}


def test_a_file_that_has_nothing_in_force_any_more_is_forgotten(tmp_path: Path, memory: ObjectMemory) -> None:
    memory.keep({"/m/a.yaml": document(A), "/m/\udcff.yaml": document(B)}, {})
    memory.keep({"/m/\udcff.yaml": document(B)}, {})
    with closing(sqlite3.connect(tmp_path / "objects.db")) as database:
        (contents,) = database.execute("SELECT count(*) FROM manifests").fetchone()

    assert loaded(tmp_path).files == {"/m/\udcff.yaml": document(B)}
    assert contents == 1


def test_what_did_not_change_is_not_written(tmp_path: Path, memory: ObjectMemory) -> None:
    files = {"/m/a.yaml": document(A)}
    memory.keep(files, {})
    before = (tmp_path / "objects.db-wal").stat()
    memory.keep(files, {})

    assert (tmp_path / "objects.db-wal").stat() == before


def test_root_alone_reads_what_is_remembered(tmp_path: Path) -> None:
    memory = ObjectMemory(tmp_path / "state" / "objects.db")
    memory.keep({"/m/a.yaml": document(A)}, {})

    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    memory.close()


FAULTS = {
    "of another user": "user 1000 owns it",
    "a link": "cannot be read",
    "a directory": "cannot be read",
    "the directory": "every user may write its directory",
    "foreign": "is a database of another program",
    "newer": "has format 99, which a newer kepd wrote; this one reads up to 1",
    "torn": "what it remembers of manifests is lost",
    "no database": "what it remembers of manifests is lost",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_memory_that_cannot_be_used_is_a_finding_and_counts_as_none(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "state"
    file, kept = folder / "objects.db", {"/m/a.yaml": document(A, much="x" * 9000)}
    memory = ObjectMemory(file)
    memory.keep(kept, {})
    memory.close()
    match fault:
        case "torn":
            file.write_bytes(file.read_bytes()[:5000])
        case "no database":
            file.write_bytes(b"something else" * 99)
        case "of another user":
            os.chown(file, 1000, 0)
        case "a link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case "a directory":
            file.unlink()
            file.mkdir()
        case "the directory":
            folder.chmod(0o777)
        case _:
            with closing(sqlite3.connect(file)) as database:
                database.execute(f"PRAGMA {'application_id' if fault == 'foreign' else 'user_version'} = 99")
    before = file.read_bytes() if file.is_file() else b""
    anew = ObjectMemory(file)
    found = anew.load()
    anew.keep(kept, {})
    anew.close()
    (problem,) = found.snapshot.problems

    assert (found.settled, found.snapshot.files) == (frozenset(), {})
    assert (problem.where, FAULTS[fault] in problem.text) == (str(file), True), problem
    if "is lost" in FAULTS[fault]:
        assert list(loaded(folder).files) == ["/m/a.yaml"]
        assert (folder / "objects.torn").read_bytes() == before
        assert not anew.problems
    else:
        assert (file.read_bytes() if file.is_file() else b"") == before, "it is left as it is"
        assert anew.problems


def test_a_disk_that_takes_nothing_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"a file in its place")
    memory = ObjectMemory(tmp_path / "state" / "objects.db")
    memory.keep({"/m/a.yaml": document(A)}, {})

    assert (tmp_path / "state").read_bytes() == b"a file in its place"


async def looks(root: Path, count: int, rescan_s: float = 300.0) -> list[ManifestSnapshot]:
    """A process that has all ConfigMaps of the directory in force and knows of no others, until it is killed."""
    seen: list[ManifestSnapshot] = []
    async with following(root / "manifests", root / "objects.db", SOURCES, rescan_s=rescan_s) as (source,):
        news = source.news()
        assert isinstance(news, AsyncGenerator)
        async with aclosing(news):
            async for wanted in news:
                seen.append(wanted.look)
                if not wanted.look.is_remembered:
                    await source.settle()
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
    (before,) = await looks(tmp_path, 1)
    (manifests / "b.yaml").unlink()
    (manifests / "a.yaml").write_bytes(b"{")
    remembered, now = await looks(tmp_path, 2)

    assert (remembered.is_remembered, now.is_remembered) == (True, False)
    assert (remembered.files, set(remembered.folders)) == (before.files, set(before.folders))
    assert now.files == {str(manifests / "a.yaml"): b"{"}, "what was deleted meanwhile is gone"


async def test_what_cannot_be_read_at_the_start_has_what_it_had(tmp_path: Path) -> None:
    """MAN-08, also across a restart."""
    manifests = filled(tmp_path)
    (before,) = await looks(tmp_path, 1)
    (manifests / "a.yaml").chmod(0o666)
    (_, file) = await looks(tmp_path, 2)
    (manifests / "a.yaml").chmod(0o600)
    manifests.chmod(0o777)
    (_, directory) = await looks(tmp_path, 2)
    manifests.rename(tmp_path / "aside")
    (_, missing) = await looks(tmp_path, 2)
    manifests.mkdir()
    (_, emptied) = await looks(tmp_path, 2)

    for look, words in (
        (file, "every user may write it"), (directory, "every user may write it"), (missing, "is not there"),
        (emptied, "is empty and another directory than before"),
    ):  # fmt: skip
        assert (look.files, set(look.folders), look.unread) == (before.files, set(before.folders), frozenset())
        assert [words for one in look.problems if words in one.text] == [words]


async def test_an_empty_directory_is_believed_a_rescan_after_the_start(tmp_path: Path) -> None:
    manifests = filled(tmp_path)
    await looks(tmp_path, 1)
    shutil.copytree(manifests, tmp_path / "aside")
    for place in manifests.iterdir():
        place.unlink() if place.is_file() else shutil.rmtree(place)
    (_, held, believed) = await looks(tmp_path, 3, rescan_s=0.1)

    assert (len(held.files), believed.files, believed.folders) == (2, {}, {})


async def test_a_node_that_never_had_manifests_complains_of_nothing(tmp_path: Path) -> None:
    (fresh,) = await looks(tmp_path, 1)
    (again,) = await looks(tmp_path, 1)

    assert (fresh.files, fresh.problems, fresh.doubtful) == ({}, (), {str(tmp_path / "manifests")})
    assert (again.files, again.problems, again.doubtful, again.unread) == ({}, (), frozenset(), frozenset())


def test_which_planes_know_what_was_in_force_is_remembered(memory: ObjectMemory) -> None:
    memory.keep({"/m/a.yaml": document(A)}, {})
    some = memory.load()
    memory.keep({"/m/a.yaml": document(A)}, {}, settled=frozenset({"pods"}))
    every = memory.load()

    assert (some.settled, every.settled) == (frozenset(), {"pods"})
    assert some.snapshot.files == every.snapshot.files == {"/m/a.yaml": document(A)}


async def test_what_nobody_has_read_yet_is_doubtful_until_something_is_remembered(tmp_path: Path) -> None:
    manifests = filled(tmp_path)
    (manifests / "a.yaml").chmod(0o666)
    (first,) = await looks(tmp_path, 1)
    (_, later) = await looks(tmp_path, 2)

    assert first.doubtful == first.unread == {str(manifests / "a.yaml")}
    assert (later.unread, later.doubtful) == (first.unread, frozenset()), "nothing of it was ever in force"
