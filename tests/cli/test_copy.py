# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl cp`, also from a container whose tar is hostile."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.cli.session import CommandFailed
from agent.cli.streams.archives import unpack
from agent.cli.streams.remote_copy import Planned
from tests.cli.pod_node import V4, PodNode, pod_node
from tests.pods.plane import manifest


@asynccontextmanager
async def web(tmp_path: Path, short_path: Path) -> AsyncIterator[PodNode]:
    """A container whose `/` is the folder `root` of the test."""
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        yield node


async def test_a_file_and_a_folder_come_out(tmp_path: Path, short_path: Path) -> None:
    async with web(tmp_path, short_path) as node:
        (node.streams.root / "d" / "e").mkdir(parents=True)
        (node.streams.root / "d" / "e" / "f").write_bytes(os.urandom(300_000))
        (node.streams.root / "d" / "run").write_text("#!")
        (node.streams.root / "d" / "run").chmod(0o4755)
        (node.streams.root / "d" / "link").symlink_to("e/f")
        here = tmp_path / "here"
        here.mkdir()
        done = [await node.ctl(f"cp web:d/run {here / 'named'}"), await node.ctl(f"cp web/a:d {here}")]
        content = (node.streams.root / "d" / "e" / "f").read_bytes()

    assert [one.exit_code for one in done] == [0, 0], [one.exception for one in done]
    assert (here / "named").read_text() == "#!"
    assert (here / "named").stat().st_mode & 0o7111 == 0o111, "no rights but to run it"
    assert (here / "d" / "e" / "f").read_bytes() == content
    assert (here / "d" / "link").readlink() == Path("e/f")


@pytest.mark.parametrize(("target", "place"), [("web:new", "new"), ("web:there", "there/s"), ("web:there/", "there/s")])
async def test_a_folder_goes_in(tmp_path: Path, short_path: Path, target: str, place: str) -> None:
    source = tmp_path / "s"
    source.mkdir()
    (source / "f").write_bytes(b"x" * 200_000)
    async with web(tmp_path, short_path) as node:
        (node.streams.root / "there").mkdir()
        done = await node.ctl(["cp", str(source), target])

    assert done.exit_code == 0, done.exception
    assert (node.streams.root / place / "f").stat().st_size == 200_000


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 300_000])
async def test_it_ends_where_the_end_of_an_input_cannot_be_told(tmp_path: Path, short_path: Path, size: int) -> None:
    """containerd 1.6 has no way to close the input of a command, and a tar reads until it ends."""
    source = tmp_path / ("s" * 120)
    (source / "inner").mkdir(parents=True)
    (source / "inner" / ("n" * 90)).write_bytes(b"x" * size)
    (source / "link").symlink_to("inner")
    (source / "a").write_bytes(b"a" * size)
    (source / "same").hardlink_to(source / "a")
    async with web(tmp_path, short_path) as node:
        node.streams.protocol = V4
        async with asyncio.timeout(30):
            done = await node.ctl(["cp", str(source), "web:new"])
            back = await node.ctl(["cp", "web:new", str(tmp_path / "back")])

    assert (done.exit_code, back.exit_code) == (0, 1), (done.exception, back.exception)
    assert "left out: ./new/" in back.stderr, "a hard link"
    assert (tmp_path / "back" / "inner" / ("n" * 90)).read_bytes() == b"x" * size
    assert (node.streams.root / "new" / "same").stat().st_size == size


def test_the_size_of_an_archive_is_known_before_it_is_written(tmp_path: Path) -> None:
    """Also if a file grows meanwhile; one that shrinks is an error."""
    (tmp_path / "s").mkdir()
    for length in (1, 99, 101, 200):
        (tmp_path / "s" / ("ä" * (length // 2) + "x")).write_bytes(b"x" * length * 100)
    plan = Planned(tmp_path / "s", "there")
    (tmp_path / "s" / "x").write_bytes(b"x" * 70_000)
    written = io.BytesIO()
    plan.write(written)

    assert len(written.getvalue()) == plan.size
    (tmp_path / "s" / "x").write_bytes(b"")
    with pytest.raises(OSError, match="unexpected end"):
        plan.write(io.BytesIO())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("cp a b", "expected one of them to be POD:PATH"),
        ("cp web:/a web:/b", "expected one of them to be POD:PATH"),
        ("cp web:/ x", "has no name of its own"),
        ("cp ./none web:/a", "there is no such file or folder"),
        ("cp web:none x", "tar in the container ended with exit code 2: tar: ./none: Cannot stat"),
        ("cp gone:/a x", 'no pod "gone"'),
    ],
)
async def test_what_cannot_be_copied_is_told(
    tmp_path: Path, short_path: Path, words: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with web(tmp_path, short_path) as node:
        done = await node.ctl(words)

    assert isinstance(done.exception, CommandFailed)
    assert text in str(done.exception)
    assert not (tmp_path / "x").exists()


def archive(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """Of names, types of tar, and contents or what links lead to."""
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as made:
        for name, kind, more in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(more)
            else:
                member.linkname = more
            made.addfile(member, io.BytesIO(more.encode()))
    kept.seek(0)
    return kept


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
HOSTILE = {
    "a name that goes up": [("d/../../evil", FILE, "x")],
    "a name from the root": [("/evil", FILE, "x"), ("//d/evil", FILE, "x")],
    "another name": [("evil", FILE, "x")],
    "a link out, and a file through it": [("d/l", LINK, ".."), ("d/l/evil", FILE, "x")],
    "a link from the root": [("d/l", LINK, "/"), ("d/l/evil", FILE, "x")],
    "a way back behind a link": [("d/s", FOLDER, ""), ("d/l", LINK, "s/../.."), ("d/l/evil", FILE, "x")],
    "a deep link that goes up too far": [("d/s", FOLDER, ""), ("d/s/l", LINK, "../.."), ("d/s/l/evil", FILE, "x")],
    "the target itself a link": [("d", LINK, ".."), ("d/evil", FILE, "x")],
    "a hard link": [("d/l", HARD, "outside/secret"), ("d/l", FILE, "x")],
    "a device": [("d/null", tarfile.CHRTYPE, "")],
    "a pipe": [("d/pipe", tarfile.FIFOTYPE, "")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_outside_of_the_target_changes(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    target = tmp_path / "in" / "d"
    target.parent.mkdir()
    left_out = list(unpack(archive(("d", FOLDER, ""), *members), "d", target))

    assert left_out
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "outside"]
    assert [one.name for one in target.parent.iterdir()] == ["d"]
    assert (outside / "secret").read_text() == "s"
    assert not [one for one in target.rglob("*") if one.is_symlink() or not (one.is_file() or one.is_dir())]


def test_a_link_that_is_there_already_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "d"
    target.mkdir()
    (tmp_path / "secret").write_text("s")
    (target / "file").symlink_to(tmp_path / "secret")
    (target / "folder").symlink_to(tmp_path)
    left_out = list(unpack(archive(("d/file", FILE, "x"), ("d/folder/evil", FILE, "x")), "d", target))

    assert left_out == ["d/folder/evil: a link or a file is in its way"]
    assert (tmp_path / "secret").read_text() == "s"
    assert not (target / "file").is_symlink()
    assert not (tmp_path / "evil").exists()


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="is no archive"):
        list(unpack(io.BytesIO(b"sh: tar: not found" * 100), "d", tmp_path / "d"))
