# SPDX-License-Identifier: Apache-2.0
"""The parts of the screen that know no terminal: cells, the board, keys, and what is sent so that lines change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kinds.table import Object
from agent.model.pods.wall_clock import stamp
from agent.wire.kepd.v1 import list_pb2
from kepd_ui.board import Began, Board, Counted, Lost, News
from kepd_ui.cells import Line, Span, cut, cut_line, fit, line_width, span, width_of
from kepd_ui.keys import read_keys
from kepd_ui.painting import painted

ADDED, MODIFIED = list_pb2.CHANGE_TYPE_ADDED, list_pb2.CHANGE_TYPE_MODIFIED
DELETED, BOOKMARK = list_pb2.CHANGE_TYPE_DELETED, list_pb2.CHANGE_TYPE_BOOKMARK


@given(st.text(), st.integers(0, 40))
def test_a_cell_is_exactly_as_wide_as_it_should_be_whatever_is_in_it(text: str, width: int) -> None:
    found = fit(text, width)

    assert width_of(found) == width
    assert found.isprintable()


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("web", 5, "web"), ("website", 4, "web…"), ("日本語", 4, "日…"), ("e\u0301é", 2, "e\u0301é"), ("x", 0, "")],
)  # fmt: skip
def test_what_does_not_fit_ends_with_an_ellipsis(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


def test_marks_without_end_do_not_make_a_line_without_end() -> None:
    assert len(cut("a" + "\u0301" * 100_000, 5)) <= 20


@given(st.lists(st.text(max_size=9), max_size=6), st.integers(0, 30))
def test_a_line_of_pieces_is_never_too_wide(texts: list[str], width: int) -> None:
    assert line_width(cut_line([span(text) for text in texts], width)) <= width


def pod(name: str) -> Object:
    return {"metadata": {"namespace": "default", "name": name}}


def pull(key: str, stage: str, position: int = 0) -> Object:
    return {"metadata": {"name": key}, "status": {"id": key, "stage": stage, "position": position}}


def test_a_watch_that_begins_again_forgets_what_went_meanwhile() -> None:
    board = Board()
    for told in (Began("pods"), News("pods", ADDED, pod("a")), News("pods", ADDED, pod("b")), News("pods", BOOKMARK)):
        board.take(told)
    board.take(Lost("pods", "gone"))

    assert (board.pods.order(), board.pods.trouble) == (["default/a", "default/b"], "gone")

    for told in (Began("pods"), News("pods", ADDED, pod("b")), News("pods", BOOKMARK)):
        board.take(told)

    assert (board.pods.order(), board.pods.trouble) == (["default/b"], "")


def test_a_deleted_object_goes_and_another_deletion_of_it_is_none() -> None:
    board = Board()
    board.take(News("pods", ADDED, pod("a")))
    for _ in range(2):
        board.take(News("pods", DELETED, pod("a")))

    assert board.pods.order() == []


def test_events_have_a_bound_and_the_newest_are_first() -> None:
    board = Board()
    for number in range(5000):
        event = {"metadata": {"name": str(number)}, "lastTimestamp": stamp(float(number))}
        board.take(News("events", ADDED, event))

    assert board.events.order()[:2] == ["4999", "4998"]
    assert len(board.events.items) <= 2000
    assert len(board.events.order()) == 1000


def test_pulls_at_work_come_before_those_that_wait_in_their_order() -> None:
    board = Board()
    stages = {"d": ("done", 0), "q2": ("queued", 2), "w": ("downloading", 0), "q1": ("queued", 1)}
    for key, (stage, position) in stages.items():
        board.take(News("pulls", ADDED, pull(key, stage, position)))

    assert board.pulls.order() == ["w", "q1", "q2", "d"]

    board.take(News("pulls", MODIFIED, pull("q2", "downloading")))

    assert board.pulls.order() == ["q2", "w", "q1", "d"]


def test_connections_a_second_need_two_looks_and_a_counter_that_grows() -> None:
    board = Board()
    board.take(Counted(10.0, {"d/a": 100, "d/b": 7}))

    assert board.rates == {}

    board.take(Counted(12.0, {"d/a": 150, "d/b": 3, "d/new": 9}))

    assert board.rates == {"d/a": 25.0}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("jk", ["j", "k"]),
        ("\x1b[A\x1bOB\x1b[5~", ["up", "down", "page-up"]),
        ("\x03\x1a\r\x7f", ["interrupt", "suspend", "enter", "backspace"]),
        ("\x1b", ["escape"]),
        ("\x1b[99;99R\x00x", ["x"]),
        ("ü日", ["ü", "日"]),
    ],
)
def test_keys_have_names_and_what_means_nothing_is_left_out(sent: str, expected: list[str]) -> None:
    assert read_keys(sent) == (expected, "")


def test_half_an_arrow_waits_for_its_other_half() -> None:
    keys, rest = read_keys("j\x1b[", is_all=False)

    assert (keys, rest) == (["j"], "\x1b[")
    assert read_keys(rest + "A", is_all=False) == (["up"], "")


@given(st.text())
def test_no_input_ends_the_reading_of_keys(sent: str) -> None:
    keys, _ = read_keys(sent, is_all=False)

    assert all(len(key) > 1 or key.isprintable() for key in keys)


def lines(*texts: str) -> list[Line]:
    return [(Span(text),) for text in texts]


def test_only_lines_that_changed_are_sent() -> None:
    assert painted(lines("a", "b", "c"), lines("a", "B", "c"), has_colour=True) == "\x1b[2;1HB\x1b[K"
    assert painted(lines("a"), lines("a"), has_colour=True) == ""
    assert painted([], lines("a"), has_colour=True).endswith("\x1b[2J\x1b[1;1Ha\x1b[K")


def test_without_colour_what_is_chosen_is_still_seen() -> None:
    line = (Span("x", "red"), Span("y", "reverse"))

    assert painted(lines(""), [line], has_colour=False) == "\x1b[1;1Hx\x1b[7my\x1b[0m\x1b[K"
    assert "\x1b[31mx" in painted(lines(""), [line], has_colour=True)
