# SPDX-License-Identifier: Apache-2.0
from agent.model.component import Board, State


def test_the_board_says_in_one_line_what_is_missing() -> None:
    board = Board(lambda: 100.0)
    pods = board.add("pods", State.STARTING, "starting", is_plane=True)
    board.add("images", State.OFF, is_plane=True)
    runtime = board.add("runtime", State.STARTING)

    assert [line.name for line in board.lines() if not line.is_ready] == ["pods", "runtime"]
    assert not board.line("pods").has_settled

    pods.ready()
    runtime.degraded("unix:///x does not answer")
    assert board.summary() == "runtime: unix:///x does not answer"

    runtime.ready()
    assert board.summary() == "ready; planes: pods"


def test_a_failure_counts_as_settled_and_is_remembered() -> None:
    board = Board(lambda: 100.0)
    report = board.add("pods", State.STARTING, is_plane=True)
    report.busy_until(5.0)
    report.failed("ValueError: x", 101.0)
    line = board.line("pods")

    assert (line.state, line.restarts, line.restart_at_s, line.busy_until_s) == (State.FAILED, 1, 101.0, None)
    assert line.has_settled

    report.starting()
    assert board.line("pods").restarts == 1


def test_states_are_published_but_deadlines_are_not() -> None:
    board = Board(lambda: 100.0)
    report = board.add("pods", State.STARTING)
    version = board.feed.version
    report.busy_until(5.0)
    assert board.feed.version == version

    report.ready()
    assert board.feed.version == version + 1
