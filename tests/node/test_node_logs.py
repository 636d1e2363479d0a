# SPDX-License-Identifier: Apache-2.0
"""Logs of the node from real journals and files, by the programs that read them (OBT-12)."""

import asyncio
import gzip
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.drivers.node_logs.files import LogFiles
from agent.drivers.node_logs.programs import Programs
from agent.model.nodes.log import LogPart, LogReader, LogRequest
from agent.model.refused import Refused
from agent.observe.run.node_logs import LogRules, NodeLogs
from tests.observe.journals import BOOTS, MICROS, Entry, write_journal

pytestmark = pytest.mark.node

BEGAN = 1_750_000_000 * MICROS
ROOT, MEMBER = LogReader(0, is_root=True), LogReader(4711, is_root=False)
LONG = 1 << 20
HOSTILE = "(a+)+$"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two boots, three units and the kernel."""
    entries = [
        Entry(BEGAN - 100 * MICROS, "kubelet.service", b"before the boot", boot=BOOTS[0]),
        *(
            Entry(BEGAN + number * MICROS, ("kubelet.service", "containerd.service")[number % 2], b"line %d" % number)
            for number in range(1000)
        ),
        Entry(BEGAN + 2000 * MICROS, "sshd.service", b"who came"),
        Entry(BEGAN + 2001 * MICROS, "kernel", b"from the kernel", priority=3),
        Entry(BEGAN + 2002 * MICROS, "long.service", b"y" * LONG),
        Entry(BEGAN + 2003 * MICROS, "hostile.service", b"a" * 60 + b"!"),
        Entry(BEGAN + 2004 * MICROS, "mykubelet.service", b"another unit"),
    ]
    return write_journal(tmp_path_factory.mktemp("logs") / "journal", entries)


@pytest.fixture
def logs(journal: Path, tmp_path: Path) -> Callable[..., NodeLogs]:
    tmp_path.chmod(0o755)

    def make(**rules: object) -> NodeLogs:
        given = {"journal": str(journal), "directories": (str(tmp_path),), "units": ("kubelet", "containerd"), **rules}
        return NodeLogs(LogFiles, Programs(), lambda: LogRules(**given), lambda: datetime.now(UTC))  # type: ignore[arg-type]

    return make


async def read(logs: NodeLogs, request: LogRequest, reader: LogReader = ROOT) -> tuple[list[bytes], str]:
    """Lines, and by what they were cut."""
    content, last = b"", None
    async with aclosing(logs.stream(request, reader)) as parts:
        async for part in parts:
            content += part.lines
            last = part if part.is_last else last
    assert last is not None
    return content.splitlines(), last.cut


def unit(*names: str, **options: object) -> LogRequest:
    return LogRequest(units=names, output="cat", **options)  # type: ignore[arg-type]


async def no_child_is_left() -> None:
    async with asyncio.timeout(30):
        while children():
            await asyncio.sleep(0.02)


def children() -> list[int]:
    found = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return [pid for pid in found if any(name in command(pid) for name in (b"journalctl", b"grep"))]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def bounds(pid: int) -> tuple[set[bytes], str, list[str]]:
    """Environment, limits and state of a process."""
    place = Path(f"/proc/{pid}")
    state = (place / "stat").read_text().rpartition(")")[2].split()
    return set((place / "environ").read_bytes().split(b"\0")), (place / "limits").read_text(), state


async def test_units_are_merged_by_time(logs: Callable[..., NodeLogs]) -> None:
    """NLG-01, NLG-05, NLG-06: the last 500 lines where nothing else bounds them."""
    lines, cut = await read(logs(), unit("kubelet", "containerd"))

    assert (lines, cut) == ([b"line %d" % number for number in range(500, 1000)], "")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (unit("kubelet", tail=2), [b"line 996", b"line 998"]),
        (unit("kubelet", tail=0), []),
        (unit("kubelet", boot="-1"), [b"before the boot"]),
        (unit("kubelet", boot=BOOTS[0]), [b"before the boot"]),
        (unit("containerd", since_us=BEGAN + 997 * MICROS), [b"line 997", b"line 999"]),
        (unit("containerd", since_us=BEGAN + 997 * MICROS + 1), [b"line 999"]),
        (unit("containerd", since_us=BEGAN, until_us=BEGAN + 2 * MICROS), [b"line 1"]),
        (unit("kubelet", grep="line 99", tail=1), [b"line 998"]),
        (unit("kubelet", grep="LINE 99"), []),
        (unit("kubelet", grep="LINE 99[02]", ignore_case=True), [b"line 990", b"line 992"]),
        (unit("kernel"), [b"from the kernel"]),
        (unit("kernel", "containerd", tail=2), [b"line 999", b"from the kernel"]),
        (unit("kernel", "sshd", priority=3), [b"from the kernel"]),
        (unit("gone"), []),
    ],
)  # fmt: skip
async def test_options_choose_lines(logs: Callable[..., NodeLogs], request_: LogRequest, expected: list[bytes]) -> None:
    """NLG-04, NLG-10, NLG-12."""
    assert await read(logs(), request_) == (expected, "")


async def test_a_boot_that_is_not_there_is_said(logs: Callable[..., NodeLogs]) -> None:
    lines, cut = await read(logs(), unit("kubelet", boot="-5"))

    assert not lines
    assert "boot" in cut


async def test_a_long_line_is_cut(logs: Callable[..., NodeLogs]) -> None:
    """NLG-05."""
    lines, _ = await read(logs(), unit("long"))

    assert lines == [b"y" * 65536 + f"…[+{LONG - 65536} bytes]".encode()]


async def test_an_answer_ends_at_its_bound_and_says_so(logs: Callable[..., NodeLogs]) -> None:
    """NLG-05."""
    lines, cut = await read(logs(most_bytes=100), unit("kubelet", "containerd"))

    assert sum(len(line) + 1 for line in lines) <= 100
    assert lines[0] == b"line 500"
    assert "telemetry.nodeLogs.maxBytes" in cut


async def test_a_hostile_pattern_costs_a_child_and_not_the_loop(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-10."""
    (tmp_path / "x.log").write_bytes((b"a" * 5000 + b"!\n") * 100)
    late: list[float] = []

    async def look() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - began)

    looking = asyncio.create_task(look())
    journals = await read(logs(run_s=2.0), unit("hostile", grep=HOSTILE))
    files = await read(logs(run_s=2.0), LogRequest(file="x.log", grep=r"(a|aa)*(\1)*x$"))
    looking.cancel()

    assert not journals[0]
    assert journals[1]
    assert not files[0]
    assert len(late) > 10
    await no_child_is_left()


async def test_follow_delivers_new_lines(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-06."""
    folder = write_journal(tmp_path / "followed", [Entry(BEGAN, "kubelet.service", b"old")], "a.journal")
    logs_ = logs(journal=str(folder))
    async with aclosing(logs_.stream(unit("kubelet", follow=True), ROOT)) as parts:
        assert (await anext(parts)).lines == b"old\n"
        write_journal(folder, [Entry(BEGAN + MICROS, "kubelet.service", b"new")], "b.journal")
        async with asyncio.timeout(30):
            assert (await anext(parts)).lines == b"new\n"

    await no_child_is_left()


async def test_follow_with_a_pattern_waits_for_the_first_match(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    folder = write_journal(tmp_path / "followed", [Entry(BEGAN, "kubelet.service", b"old")], "a.journal")
    logs_ = logs(journal=str(folder))
    async with aclosing(logs_.stream(unit("kubelet", follow=True, grep="n.w"), ROOT)) as parts:
        coming = asyncio.ensure_future(anext(parts))
        while not coming.done():  # what is there before it follows is not shown
            after = len(list(folder.iterdir()))
            write_journal(folder, [Entry(BEGAN + after * MICROS, "kubelet.service", b"new")], f"{after}.journal")
            await asyncio.wait((coming,), timeout=1)
        assert set((await coming).lines.split()) == {b"new"}


async def test_cancelling_leaves_no_child(logs: Callable[..., NodeLogs]) -> None:
    """NLG-11."""
    logs_ = logs()

    async def follow() -> None:
        async for _ in logs_.stream(unit("kubelet", follow=True, tail=1), ROOT):
            began.set()

    began = asyncio.Event()
    following = asyncio.create_task(follow())
    await began.wait()
    assert len(children()) == 1
    following.cancel()
    await asyncio.wait([following])

    await no_child_is_left()
    assert (await read(logs_, unit("kubelet", tail=1)))[0] == [b"line 998"]


async def test_the_longest_time_ends_following(logs: Callable[..., NodeLogs]) -> None:
    """NLG-05."""
    lines, cut = await read(logs(follow_s=0.5), unit("kubelet", follow=True, tail=1))

    assert {*lines} <= {b"line 998"}
    assert "longest" in cut
    await no_child_is_left()


async def test_a_reader_that_does_not_read_holds_nothing_for_long(
    logs: Callable[..., NodeLogs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NLG-06: the child stops with its reader, and ends without it."""
    monkeypatch.setattr("agent.observe.run.node_logs.STUCK_S", 0.1)
    logs_ = logs(run_s=0.3)
    async with aclosing(logs_.stream(unit("long", "kubelet"), ROOT)) as parts:
        await anext(parts)
        await no_child_is_left()


async def test_too_many_readers_are_refused(logs: Callable[..., NodeLogs]) -> None:
    """NLG-05."""
    logs_ = logs()

    async def begun(uid: int) -> AsyncIterator[LogPart]:
        parts = logs_.stream(unit("kubelet", follow=True, tail=1), LogReader(uid, is_root=False))
        await anext(parts)
        return parts

    held = [await begun(uid) for uid in (1, 1)]
    with pytest.raises(Refused) as own:
        await begun(1)
    held += [await begun(uid) for uid in (2, 3)]
    with pytest.raises(Refused) as all_:
        await begun(4)
    for one in held:
        await one.aclose()  # type: ignore[attr-defined]

    assert own.value.kind == all_.value.kind == "log_readers"
    await (await begun(4)).aclose()  # type: ignore[attr-defined]


async def test_members_read_their_units_and_root_all(logs: Callable[..., NodeLogs]) -> None:
    """NLG-02: a unit is its whole name."""
    for closed in ("sshd", "mykubelet", "kernel"):
        with pytest.raises(Refused) as refused:
            await read(logs(), unit("kubelet", closed), MEMBER)
        assert (refused.value.kind, closed in str(refused.value)) == ("log_closed", True)
    assert (await read(logs(), unit("sshd")))[0] == [b"who came"]
    assert (await read(logs(), unit("kubelet", tail=1), MEMBER))[0] == [b"line 998"]


async def test_switched_off_gives_nothing(logs: Callable[..., NodeLogs]) -> None:
    """NLG-02."""
    with pytest.raises(Refused) as refused:
        await read(logs(is_on=False), unit("kubelet"))
    with pytest.raises(Refused):
        await logs(is_on=False).sources(ROOT)

    assert refused.value.kind == "logs_off"


@pytest.mark.parametrize("follow", [False, True])
async def test_no_journal_is_said(logs: Callable[..., NodeLogs], tmp_path: Path, *, follow: bool) -> None:
    """NLG-12."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(Refused) as refused:
        await read(logs(journal=f"{tmp_path}/empty"), unit("kubelet", follow=follow))

    assert refused.value.kind == "no_journal"


async def test_a_journal_of_a_newer_systemd_is_said(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-14: with a flag in its head that the journalctl here does not know."""
    folder = write_journal(tmp_path / "newer", [Entry(BEGAN, "kubelet.service", b"old")])
    with (folder / "system.journal").open("r+b") as file:
        file.seek(12)
        file.write((1 << 30).to_bytes(4, "little"))

    with pytest.raises(Refused) as refused:
        await read(logs(journal=str(folder)), unit("kubelet"))

    assert (refused.value.kind, "newer systemd" in str(refused.value)) == ("no_journal", True)


async def test_sources_have_their_last_entry(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-01."""
    (tmp_path / "syslog").write_bytes(b"x\n")
    own = {one.name: one for one in await logs().sources(MEMBER)}
    all_ = {one.name: one for one in await logs().sources(ROOT)}

    assert set(own) == {"kubelet.service", "containerd.service", "syslog"}
    assert own["kubelet.service"].last_at_s == BEGAN / 1e6 + 998
    assert (own["syslog"].kind, own["syslog"].size_bytes) == ("file", 2)
    assert {"kernel", "sshd.service"} <= set(all_)


async def test_a_file_is_read_from_its_end(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-08."""
    (tmp_path / "a.log.2.gz").write_bytes(gzip.compress(b"1\n2\n"))
    (tmp_path / "a.log.1").write_bytes(b"3\n4\n")
    (tmp_path / "a.log").write_bytes(b"5\n6\n")

    def asked(**options: object) -> LogRequest:
        return LogRequest(file="a.log", **options)  # type: ignore[arg-type]

    assert await read(logs(), asked()) == ([b"5", b"6"], "")
    assert await read(logs(), asked(tail=1)) == ([b"6"], "")
    assert await read(logs(), asked(rotated=True)) == ([b"1", b"2", b"3", b"4", b"5", b"6"], "")
    assert await read(logs(), asked(rotated=True, tail=5)) == ([b"2", b"3", b"4", b"5", b"6"], "")
    assert await read(logs(), asked(rotated=True, tail=3, grep="[246]")) == ([b"2", b"4", b"6"], "")
    assert await read(logs(), asked(rotated=True, tail=2, grep="[246]")) == ([b"4", b"6"], "")
    assert await read(logs(), asked(grep="nothing")) == ([], "")
    assert "grep: " in (await read(logs(), asked(grep="(")))[1]


async def test_lines_of_a_file_are_chosen_by_their_times(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-04."""
    (tmp_path / "a.log").write_bytes(b"2026-01-01T00:00:00Z a\n2026-01-01T02:30:00+02:00 b\n2026-01-01T01:00:00Z c\n")
    (tmp_path / "b.log").write_bytes(b"no time\n")
    since = round(datetime(2026, 1, 1, 0, 10, tzinfo=UTC).timestamp() * 1e6)
    until = round(datetime(2026, 1, 1, 0, 40, tzinfo=UTC).timestamp() * 1e6)

    lines, _ = await read(logs(), LogRequest(file="a.log", since_us=since, until_us=until))
    with pytest.raises(Refused) as refused:
        await read(logs(), LogRequest(file="b.log", since_us=since))

    assert lines == [b"2026-01-01T02:30:00+02:00 b"]
    assert refused.value.kind == "log_request"


async def test_binary_files_are_refused(logs: Callable[..., NodeLogs], tmp_path: Path) -> None:
    """NLG-08."""
    (tmp_path / "a.log").write_bytes(b"x\0y\n")

    with pytest.raises(Refused) as refused:
        await read(logs(), LogRequest(file="a.log"))

    assert refused.value.kind == "log_request"


@pytest.mark.parametrize("grep", ["", "line"])
async def test_a_file_is_followed_over_truncation_and_renaming(
    logs: Callable[..., NodeLogs], tmp_path: Path, grep: str
) -> None:
    """NLG-04."""
    path = tmp_path / "a.log"
    path.write_bytes(b"line 1\nline 2\n")
    async with aclosing(logs().stream(LogRequest(file="a.log", follow=True, tail=1, grep=grep), ROOT)) as parts:

        async def next_lines() -> bytes:
            async with asyncio.timeout(30):
                return (await anext(parts)).lines

        assert await next_lines() == b"line 2\n"
        with path.open("ab") as file:
            file.write(b"line 3\n")
        assert await next_lines() == b"line 3\n"
        path.write_bytes(b"line 4\n")
        assert await next_lines() == b"line 4\n"
        path.rename(tmp_path / "a.log.1")
        with (tmp_path / "a.log.1").open("ab") as file:
            file.write(b"line 5\n")
        assert await next_lines() == b"line 5\n"
        path.write_bytes(b"line 6\n")
        assert await next_lines() == b"line 6\n"


async def test_a_child_ends_with_its_parent(journal: Path) -> None:
    """NLG-11: also when that is killed."""
    code = (
        "import asyncio\nfrom agent.drivers.node_logs.programs import Programs\n"
        "async def main():\n"
        f"    child = await Programs().start('journalctl', ['--directory={journal}', '--follow', '--lines=1'])\n"
        "    await child.read()\n    print(child.pid, flush=True)\n    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    was_there = bool(command(pid))
    parent.kill()
    await parent.communicate()

    assert was_there
    async with asyncio.timeout(30):
        while command(pid):
            await asyncio.sleep(0.02)


async def test_a_child_has_bounds_and_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """NLG-11."""
    monkeypatch.setenv("SECRET", "value")
    child = await Programs().start("grep", ["-e", "x"], has_input=True)
    try:
        async with asyncio.timeout(30):
            while b"grep" not in command(child.pid)[:20]:
                await asyncio.sleep(0.01)
        environment, limits, state = bounds(child.pid)
    finally:
        await child.end()

    assert environment == {b"LC_ALL=C.UTF-8", b"SYSTEMD_PAGER=", b"SYSTEMD_COLORS=0", b""}
    assert "Max address space         67108864" in limits
    assert state[16] == "10"
    assert state[2] == str(child.pid)
