# SPDX-License-Identifier: Apache-2.0
"""State files: one suite for the fake and the real directory, and what readers do with files they cannot use."""

import asyncio
import os
import stat

import pytest
from structlog.testing import capture_logs

from agent.drivers.state_files.driver import StateFiles
from agent.images.run.sizes import SizeRecord
from agent.images.run.state import ImageHistory, StateFile, encode_state
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.state_files import FakeStateFiles


@pytest.fixture(params=["fake", "directory"])
def files(request, tmp_path):
    subject = FakeStateFiles() if request.param == "fake" else StateFiles(tmp_path / "images")
    yield subject
    subject.close()


async def test_what_was_written_is_read_listed_and_removed(files) -> None:
    await files.write("a/x.json", b"1")
    await files.write("a/x.json", b"2")
    await files.write("a/y.json", b"3")

    assert await files.read("a/x.json") == b"2"
    assert await files.read_folder("a") == {"x.json": b"2", "y.json": b"3"}
    assert await files.read("none") is None
    assert await files.read_folder("none") == {}

    await files.remove("a/x.json")
    await files.remove("a/x.json")

    assert await files.read_folder("a") == {"y.json": b"3"}


async def test_what_is_set_aside_is_out_of_the_way_but_not_lost(files) -> None:
    await files.write("a/x.json", b"broken")
    place = await files.set_aside("a/x.json")

    assert place.endswith(".aside")
    assert await files.read_folder("a") == {}


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
async def test_no_name_leads_out_of_the_directory(files, name) -> None:
    with pytest.raises(ValueError, match="is not a name inside"):
        await files.write(name, b"")


async def test_a_disk_is_measured_and_a_wrong_path_is_an_error(files) -> None:
    disk = await files.measure("/")

    assert disk.capacity_bytes > disk.available_bytes > 0
    with pytest.raises(OSError, match="No such file"):
        await files.measure("nonexistent-relative")


async def test_files_are_private_and_leftovers_of_a_crash_are_not_read(tmp_path) -> None:
    """IMG-V05."""
    files = StateFiles(tmp_path / "images")
    await files.write("pulled/x.json", b"1")
    (tmp_path / "images/pulled/.x.json.abc").write_bytes(b"half")

    assert stat.S_IMODE((tmp_path / "images/pulled").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "images/pulled/x.json").stat().st_mode) == 0o600
    assert await files.read_folder("pulled") == {"x.json": b"1"}
    files.close()


async def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path, monkeypatch) -> None:
    files = StateFiles(tmp_path)
    await files.write("x.json", b"old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        await files.write("x.json", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert await files.read("x.json") == b"old"
    files.close()


async def test_the_loop_goes_on_while_files_are_written(tmp_path) -> None:
    """STY-34."""
    files = StateFiles(tmp_path)
    writes = asyncio.gather(*(files.write(f"{number}.json", b"x" * 100_000) for number in range(20)))
    turns = 0
    while not writes.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns > 10
    files.close()


def sizes(files) -> StateFile:
    return StateFile(files, "sizes.json", "SizeMemory", dict[str, SizeRecord])


async def test_state_comes_back_and_the_same_state_is_not_written_again(files) -> None:
    value = {"r.io/x": SizeRecord(10, 1.0)}
    await sizes(files).save(value)
    again = sizes(files)

    assert await again.load() == value

    before = await files.read("sizes.json")
    await again.save(value)

    assert await files.read("sizes.json") == before


WHOLE = encode_state("SizeMemory", {"r.io/x": SizeRecord(10, 1.0)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 40,
        WHOLE[:30],
        b"[]",
        b"{}",
        encode_state("Other", {}),
        encode_state("SizeMemory", {"a": {"size_bytes": "x"}}),
    ],
)
async def test_a_truncated_or_foreign_file_is_kept_aside_with_a_warning(content) -> None:
    files = FakeStateFiles()
    files.files["sizes.json"] = content
    with capture_logs() as logs:
        assert await sizes(files).load() is None

    assert files.aside == {"sizes.json": content}
    assert [line["event"] for line in logs] == ["image_state_set_aside"]
    assert "sizes.json" not in files.files


async def test_a_disk_that_refuses_is_told_and_asked_again() -> None:
    files = FakeStateFiles()
    files.failure = OSError(28, "No space left on device")
    state = sizes(files)
    with capture_logs() as logs:
        await state.save({})
    files.failure = None
    await state.save({})

    assert [line["event"] for line in logs] == ["image_state_not_written"]
    assert "sizes.json" in files.files


def listed(name: str, size: int = 5) -> pb.Image:
    return pb.Image(id=f"sha256:{name}", repo_tags=[name], size=size)


async def test_ages_survive_a_restart_and_unknown_images_are_as_old_as_the_runtime_says() -> None:
    """IMG-G08."""
    files, clock = FakeStateFiles(), FakeClock(wall_s=10_000)
    history = ImageHistory(files, clock=clock)
    await history.load()
    history.pulled("sha256:b", "pulled")
    history.observe([listed("a"), listed("b")], {"sha256:a"}, {"a": 4000.0})
    await history.save()
    await clock.advance(500)
    later = ImageHistory(files, clock=clock)
    await later.load()
    later.observe([listed("a"), listed("b")], set(), {})

    assert later.images["sha256:a"].first_seen_s == 4000
    assert later.images["sha256:a"].last_used_s == 10_000
    assert later.images["sha256:b"].first_seen_s == 10_000
    assert [later.images[f"sha256:{name}"].source for name in "ab"] == ["preloaded", "pulled"]


async def test_a_clock_that_is_set_back_makes_nothing_younger() -> None:
    """IMG-G08."""
    files = FakeStateFiles()
    first = ImageHistory(files, clock=FakeClock(wall_s=10_000))
    first.observe([listed("a")], {"sha256:a"}, {})
    await first.save(is_last=True)
    second = ImageHistory(files, clock=FakeClock(wall_s=5_000))
    await second.load()
    second.observe([listed("a")], {"sha256:a"}, {})

    assert second.images["sha256:a"].last_used_s == 10_000


async def test_history_is_written_once_a_minute_and_at_the_end() -> None:
    """IMG-G08."""
    files, clock = FakeStateFiles(), FakeClock()
    history = ImageHistory(files, clock=clock)
    await clock.advance(60)
    for _ in range(3):
        history.observe([listed("a")], {"sha256:a"}, {})
        await history.save()
        await clock.advance(29)

    assert files.writes == ["images.json"]

    await history.save(is_last=True)

    assert files.writes == ["images.json", "images.json"]
