# SPDX-License-Identifier: Apache-2.0
"""Requests for logs of the node as values: what is refused, how journalctl is asked, and how lines are cut."""

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.document import Configuration
from agent.model.nodes.log import LogRequest
from agent.observe.node_logs.checking import faults, lines_from_end, matches
from agent.observe.node_logs.journal import journal_arguments, last_cursor, needs_search, no_journal, search_arguments
from agent.observe.node_logs.lines import LONGEST_LINE, Between, LineCutter, line_time

USUAL = Configuration().telemetry.node_logs.units
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))


def test_all_faults_of_a_request_come_at_once() -> None:
    """NLG-04."""
    wrong = LogRequest(
        units=("a*", "-b", "c", "d", "e"), file="x", since_us=10, until_us=10, tail=100_001, follow=True, boot="first",
        grep="p" * 1025, priority=8, output="verbose", rotated=True,
    )  # fmt: skip

    assert sorted(one.path for one in faults(wrong)) == sorted([
        "units", "units", "units", "units", "tail", "grep", "boot", "priority", "output", "until", "until", "boot",
        "rotated", "boot", "priority", "output",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (LogRequest(), "units"),
        (LogRequest(units=("a",), grep="a\nb"), "grep"),
        (LogRequest(units=("a",), grep="a\0b"), "grep"),
        (LogRequest(units=("a",), ignore_case=True), "ignoreCase"),
        (LogRequest(units=("a b",)), "units"),
        (LogRequest(units=("a" * 257,)), "units"),
        (LogRequest(units=("a\n",)), "units"),
        (LogRequest(units=("a",), boot="1"), "boot"),
        (LogRequest(units=("a",), boot="-1", follow=True), "boot"),
        (LogRequest(file="a", output="json"), "output"),
        (LogRequest(file="a.gz", follow=True), "follow"),
    ],
)
def test_each_contradiction_names_its_option(request_: LogRequest, path: str) -> None:
    """NLG-04, NLG-11."""
    assert [one.path for one in faults(request_)] == [path]


@pytest.mark.parametrize(
    "request_",
    [
        LogRequest(units=("kubelet", "kernel", r"dev-disk-by\x2did.device", "a@b:1.service")),
        LogRequest(units=("a",), since_us=1, until_us=2, tail=0, boot="-1", grep="(a+)+$", priority=0, output="json"),
        LogRequest(file="syslog", tail=5, follow=True, rotated=True, grep="x", ignore_case=True, output="cat"),
    ],
)
def test_what_makes_sense_is_taken(request_: LogRequest) -> None:
    assert not faults(request_)


def test_units_match_whole_names() -> None:
    """NLG-02."""
    taken = [one for one in ("kubelet", "kubelet.service", "kepd-dns", "kepd.socket", "kernel") if matches(one, USUAL)]

    assert taken == ["kubelet", "kubelet.service", "kepd-dns", "kepd.socket", "kernel"]
    assert not any(matches(one, USUAL) for one in ("sshd", "mykubelet", "kubelet.timer", "kubelet2", "x-kepd"))


def test_the_program_is_asked_in_words_that_nothing_expands() -> None:
    """NLG-11, NLG-12."""
    asked = LogRequest(
        units=("kubelet", "a.socket"), since_us=1_700_000_000_000_001, until_us=1_700_000_100_000_000, boot="-1",
        priority=3, grep="-x", ignore_case=True,
    )  # fmt: skip

    assert journal_arguments(asked, "/logs") == (
        "--no-pager", "--quiet", "--directory=/logs", "--output=short-iso-precise", "--all", "--lines=all",
        "--since=@1700000000.000001", "--until=@1700000100.000000", "--boot=-1", "--priority=3", "--grep=-x",
        "--case-sensitive=no", "--unit=kubelet.service", "--unit=a.socket",
    )  # fmt: skip


def test_the_kernel_stands_beside_units() -> None:
    asked = journal_arguments(LogRequest(units=("kubelet", "kernel"), output="json"), "")

    assert "--all" not in asked
    assert asked[-9:] == (
        "_SYSTEMD_UNIT=kubelet.service", "+", "UNIT=kubelet.service", "_PID=1", "+",
        "OBJECT_SYSTEMD_UNIT=kubelet.service", "_UID=0", "+", "_TRANSPORT=kernel",
    )  # fmt: skip


def test_the_last_lines_with_a_pattern_are_found_from_the_end() -> None:
    """NLG-10."""
    asked = LogRequest(units=("a",), grep="x", tail=3)

    assert needs_search(asked)
    assert {"--reverse", "--lines=3", "--grep=x"} <= set(search_arguments(asked, ""))
    cursor = last_cursor(b'{"__CURSOR":"s=1;i=9"}\n{"__CURSOR":"s=1;i=7"}\n')
    again = journal_arguments(asked, "", cursor)
    assert {"--cursor=s=1;i=7", "--lines=all", "--grep=x"} <= set(again)
    assert not needs_search(LogRequest(units=("a",), grep="x", since_us=1))


def test_without_a_bound_the_last_500_lines_are_meant() -> None:
    """NLG-05."""
    bounded = (LogRequest(units=("a",), since_us=1), LogRequest(units=("a",), boot="0"))

    assert lines_from_end(LogRequest(units=("a",), grep="x")) == 500
    assert [lines_from_end(one) for one in bounded] == [None, None]
    assert lines_from_end(LogRequest(units=("a",), since_us=1, tail=7)) == 7


def test_what_the_program_says_of_journals_is_recognised() -> None:
    """NLG-12, NLG-14."""
    assert "newer systemd" in no_journal("Journal file /x uses an unsupported feature, ignoring file.")
    assert no_journal("No journal files were found.")
    assert "may not read" in no_journal("No journal files were opened due to insufficient permissions.")
    assert not no_journal("")


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 20))
def test_lines_come_whole_however_they_are_cut_into_pieces(pieces: list[bytes], longest: int) -> None:
    """NLG-05."""
    cutter = LineCutter(longest)
    content = b"".join(pieces)
    found = b"".join([*(cutter.feed(piece) for piece in pieces), cutter.rest()])
    expected = content.split(b"\n") if content else []
    expected = expected[:-1] if content.endswith(b"\n") else expected

    lines = found.split(b"\n")[:-1]
    assert len(lines) == len(expected)
    for line, whole in zip(lines, expected, strict=True):
        kept, mark, _ = line.rpartition("…[+".encode())
        assert line == whole if len(whole) <= longest else mark
        assert whole.startswith(kept)


def test_a_line_of_four_gibibytes_takes_no_more_memory_than_a_long_one() -> None:
    """NLG-05."""
    chunk, count = b"x" * (1 << 20), 4 << 10
    cutter = LineCutter()
    tracemalloc.start()
    said = [cutter.feed(chunk) for _ in range(count)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    line = cutter.feed(b"\n")

    assert set(said) == {b""}
    assert line == b"x" * LONGEST_LINE + f"…[+{(4 << 30) - LONGEST_LINE} bytes]\n".encode()
    assert most < 4 << 20


def test_a_long_line_says_how_much_it_lacks_and_keeps_signs_whole() -> None:
    cutter = LineCutter(4)

    assert cutter.feed("aé€b".encode() + b"\nxy\n") == "aé…[+4 bytes]\nxy\n".encode()
    assert LineCutter(2).feed(b"\xff\xff\xff\n").endswith(b"bytes]\n")


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"2026-01-02T03:04:05Z x", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (b"2026-01-02T03:04:05.5+01:00 x", datetime(2026, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC)),
        (b"2026-01-02 03:04:05,250 x", datetime(2026, 1, 2, 1, 4, 5, 250_000, tzinfo=UTC)),
        (b"Mar  1 11:00:00 host x", datetime(2026, 3, 1, 9, 0, tzinfo=UTC)),
        (b"Dec 31 23:59:59 host x", datetime(2025, 12, 31, 21, 59, 59, tzinfo=UTC)),
        (b"<13>Feb 28 00:00:00 x", datetime(2026, 2, 27, 22, 0, tzinfo=UTC)),
    ],
)
def test_times_of_lines_keep_their_zone(line: bytes, time: datetime) -> None:
    """NLG-04: without a zone it is the node's, without a year the last one."""
    assert line_time(line, NOW) == round(time.timestamp() * 1e6)


@pytest.mark.parametrize("line", [b"", b"hello", b"2026-13-01T00:00:00Z x", b"Feb 30 00:00:00 x", b"12:00 x"])
def test_what_is_no_time_is_none(line: bytes) -> None:
    assert line_time(line, NOW) is None


def test_a_line_without_a_time_goes_with_the_one_before_it() -> None:
    def time_of(line: bytes) -> int | None:
        return int(line[:1]) if line[:1].isdigit() else None

    between = Between(2, 3, time_of)

    assert between.of(b"1 a\n+ b\n2 c\n+ d\n3 e\n4 f\n+ g\n") == b"2 c\n+ d\n3 e\n"
