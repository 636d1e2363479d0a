# SPDX-License-Identifier: Apache-2.0
"""Log files below a directory, and what is not there for who asks (OBT-11, NLG-02, NLG-03, NLG-07)."""

import errno
import gzip
import os
import socket
import threading
from pathlib import Path

import pytest

from agent.drivers.node_logs import files as driver
from agent.drivers.node_logs.files import LogFiles
from agent.model.nodes.log import NoSuchLog

MOST = 1 << 20
SECRET = b"secret\n"


@pytest.fixture(params=["openat2", "step by step"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the kernel's own call, and where a filter of our unit forbids it."""
    if request.param == "step by step":

        def forbidden(*_: object) -> int:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(driver, "open_within", forbidden)
    return str(request.param)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory of logs beside a file that is none."""
    top = tmp_path / "log"
    (top / "apt").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(SECRET)
    (top / "syslog").write_bytes(b"one\ntwo\n")
    (top / "apt/history.log").write_bytes(b"three\n")
    top.chmod(0o755)
    return top


def read(logs: Path, name: str, *, is_root: bool = True) -> bytes:
    file = LogFiles([str(logs)]).open(name, is_root=is_root, most_bytes=MOST)
    try:
        return file.read()
    finally:
        file.close()


def refused(logs: Path, name: str, *, is_root: bool = True) -> bool:
    try:
        content = read(logs, name, is_root=is_root)
    except NoSuchLog as error:
        # The same for all: what was asked for, and nothing about it.
        return str(error) == name
    assert content != SECRET
    return False


def test_files_below_the_directory_are_read(logs: Path, opened: str) -> None:
    """NLG-07."""
    assert opened
    assert read(logs, "syslog") == b"one\ntwo\n"
    assert read(logs, "apt/history.log") == b"three\n"
    assert read(logs, f"{logs}/apt/history.log") == b"three\n"


def test_nothing_leads_out_of_the_directory(logs: Path, opened: str) -> None:
    """OBT-11, NLG-07."""
    (logs / "out").symlink_to("../secret")
    (logs / "absolute").symlink_to(logs.parent / "secret")
    (logs / "magic").symlink_to("/proc/self/root")
    (logs / "folder").symlink_to("..")
    (logs / "hard").hardlink_to(logs.parent / "secret")
    os.mkfifo(logs / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        # By a descriptor, for the path of a test may be too long for a socket.
        handle = os.open(logs, os.O_PATH)
        listener.bind(f"/proc/self/fd/{handle}/socket")
        os.close(handle)
    names = [
        "../secret", "apt/../../secret", "/etc/passwd", f"{logs}/../secret", f"{logs.parent}/secret", "out", "absolute",
        f"magic{logs.parent}/secret", "folder/secret", "hard", "fifo", "socket", "apt", ".", "..", "", "/", "gone",
        "syslog/", "syslog\0", "a" * 5000, "a/" * 2500,
    ]  # fmt: skip

    assert opened
    assert [name for name in names if not refused(logs, name)] == []


def test_a_device_is_no_log(logs: Path, opened: str) -> None:
    """OBT-11: a bind or a node of a device; the null device stands for all."""
    files = LogFiles(["/dev"])

    assert opened
    for name in ("null", "zero"):
        with pytest.raises(NoSuchLog):
            files.open(name, is_root=True, most_bytes=MOST)


def test_a_link_that_stays_inside_is_followed_by_the_kernel_alone(logs: Path) -> None:
    """NLG-07."""
    (logs / "inside").symlink_to("apt/history.log")

    assert read(logs, "inside") == b"three\n"


def test_without_openat2_no_link_is_followed(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NLG-07."""

    def forbidden(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    (logs / "inside").symlink_to("apt/history.log")
    monkeypatch.setattr(driver, "open_within", forbidden)

    assert refused(logs, "inside")


def test_a_path_that_changes_while_it_is_opened_never_leads_out(logs: Path, opened: str) -> None:
    """OBT-11: 1000 races."""
    outside = logs.parent / "outside"
    outside.mkdir()
    (outside / "history.log").write_bytes(SECRET)
    ends = threading.Event()

    def swap() -> None:
        place, kept, link = logs / "apt", logs / "kept", logs / "link"
        link.symlink_to(outside)
        while not ends.is_set():
            place.rename(kept)
            link.rename(place)
            place.rename(link)
            kept.rename(place)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        found = {refused(logs, "apt/history.log") for _ in range(1000)}
    finally:
        ends.set()
        swapper.join()

    assert opened
    assert found <= {True, False}


def test_others_read_what_the_mode_gives_them(logs: Path) -> None:
    """NLG-02: the file's own mode, and that of the folders above it."""
    modes = {"open": 0o644, "closed": 0o600, "nothing": 0o000, "group": 0o640}
    for name, mode in modes.items():
        (logs / name).write_bytes(b"x\n")
        (logs / name).chmod(mode)
    (logs / "room").mkdir(mode=0o700)
    (logs / "room/open").write_bytes(b"x\n")
    (logs / "room/open").chmod(0o644)

    assert not refused(logs, "open", is_root=False)
    assert all(refused(logs, name, is_root=False) for name in ("closed", "nothing", "group", "room/open"))
    assert not refused(logs, "closed")
    assert {one.name for one in LogFiles([str(logs)]).listed(is_root=False)} == {"syslog", "apt/history.log", "open"}


def test_what_has_another_way_or_none_is_left_out(logs: Path) -> None:
    """NLG-03."""
    for folder in ("pods", "containers", "journal", "private", "audit"):
        (logs / folder).mkdir()
        (logs / folder / "x.log").write_bytes(b"x\n")
    for name in ("btmp", "wtmp", "btmp.1", "lastlog", "faillog", "wtmp-20260101.gz"):
        (logs / name).write_bytes(b"x\n")
    (logs / "detour").symlink_to("pods/x.log")
    left_out = ["pods/x.log", "containers/x.log", "journal/x.log", "private/x.log", "btmp", "wtmp", "btmp.1", "lastlog"]

    assert all(refused(logs, name) for name in [*left_out, "faillog", "wtmp-20260101.gz", "detour"])
    assert not refused(logs, "audit/x.log")
    assert refused(logs, "audit/x.log", is_root=False)
    assert {one.name for one in LogFiles([str(logs)]).listed(is_root=True)} == {"syslog", "apt/history.log"}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_the_last_lines_begin_where_they_begin(logs: Path, ending: bytes, *, is_packed: bool) -> None:
    lines = [b"%d-%s" % (number, b"x" * (number * 37 % 3000)) for number in range(300)]
    content = b"\n".join(lines) + ending
    name = "big.gz" if is_packed else "big"
    (logs / name).write_bytes(gzip.compress(content) if is_packed else content)
    file = LogFiles([str(logs)]).open(name, is_root=True, most_bytes=MOST)

    for wanted in (0, 1, 2, 150, 299, 300, 301):
        count, place = file.begin_of_last(wanted)
        expected = b"\n".join(lines[300 - min(wanted, 300) :]) + ending if wanted else b""
        assert (count, content[place:]) == (min(wanted, 300), expected)
        assert file.place() == place
    file.close()


def test_rotated_files_come_oldest_first(logs: Path) -> None:
    """NLG-08."""
    others = ("syslog.old", "syslogs.1")
    for name in ("syslog.1", "syslog.2.gz", "syslog.10.gz", "syslog-20260101.gz", "syslog-20260201", *others):
        (logs / name).write_bytes(b"")

    assert LogFiles([str(logs)]).older("syslog") == [
        "syslog.10.gz", "syslog.2.gz", "syslog.1", "syslog-20260101.gz", "syslog-20260201",
    ]  # fmt: skip


def test_inflating_ends_at_the_bound_and_at_rubbish(logs: Path) -> None:
    """NLG-08."""
    (logs / "bomb.gz").write_bytes(gzip.compress(bytes(8 * MOST)))
    (logs / "torn.gz").write_bytes(gzip.compress(os.urandom(9000))[:5000])
    (logs / "no.gz").write_bytes(b"plain")

    def size(name: str) -> int:
        file = LogFiles([str(logs)]).open(name, is_root=True, most_bytes=MOST)
        found = 0
        while chunk := file.read():
            found += len(chunk)
        file.close()
        return found

    assert size("bomb.gz") == MOST
    assert size("torn.gz") < 9000
    assert size("no.gz") == 0


def test_no_descriptor_is_left(logs: Path) -> None:
    (logs / "closed").write_bytes(b"x\n")
    (logs / "closed").chmod(0o600)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("syslog", "closed", "gone", "apt", "../secret"):
        refused(logs, name, is_root=False)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
