# SPDX-License-Identifier: Apache-2.0
"""The state machine alone: every edge, every missing edge, the queries, the waits."""

import pytest

from agent.drivers.kube import errors
from agent.drivers.kube.reflector import (
    FIRST_WAIT_S,
    PAGE_LIMIT,
    TRANSITIONS,
    Delay,
    Phase,
    Position,
    Reply,
    advance,
    classify,
)

WATCHING = Position(phase=Phase.WATCHING, resource_version="7")
PAGING = Position(phase=Phase.PAGING, continue_token="next")
MISSING_EDGES = [(phase, answer) for phase in Phase for answer in Reply if (phase, answer) not in TRANSITIONS]


@pytest.mark.parametrize(("phase", "answer"), TRANSITIONS)
def test_every_edge_leads_where_the_table_says(phase: Phase, answer: Reply) -> None:
    move = TRANSITIONS[phase, answer]

    decision = advance(Position(phase=phase), answer)

    assert decision.position.phase is move.to or answer is Reply.UNANSWERED
    assert (decision.wait_s > 0) == (move.wait in (Delay.BACKOFF, Delay.SLOW))
    assert decision.is_outage == move.is_outage


@pytest.mark.parametrize(("phase", "answer"), MISSING_EDGES)
def test_answer_that_a_phase_cannot_get_is_refused(phase: Phase, answer: Reply) -> None:
    with pytest.raises(KeyError):
        advance(Position(phase=phase), answer)


def test_missing_edges_are_those_of_lists_and_streams() -> None:
    stream_only = {Reply.ENDED, Reply.ENDED_AT_ONCE, Reply.INITIAL_END}

    assert {answer for phase, answer in MISSING_EDGES if phase is Phase.PAGING} == stream_only
    assert {answer for phase, answer in MISSING_EDGES if phase is not Phase.PAGING} == {
        Reply.PAGE,
        Reply.LAST_PAGE,
        Reply.INITIAL_END,
    }


@pytest.mark.parametrize("answer", [answer for phase, answer in TRANSITIONS if phase is Phase.WATCHING])
def test_watch_never_goes_back_to_a_version_it_has_passed(answer: Reply) -> None:
    """Whatever happens, the next request continues at the version reached or lists everything."""
    position = advance(WATCHING, answer).position

    assert position.phase is not Phase.WATCHING or position.resource_version == "7"


@pytest.mark.parametrize("start", [Position(), PAGING, WATCHING])
def test_waits_are_capped_whatever_goes_on_failing(start: Position) -> None:
    position = start
    waits = []
    for _ in range(100):
        decision = advance(position, Reply.FAILED, luck=0.999)
        position = decision.position
        waits.append(decision.wait_s)

    assert waits == sorted(waits)
    assert max(waits) <= 30.0
    assert waits[-1] > 29.0


def test_who_is_denied_for_good_asks_less_and_less_often() -> None:
    """A server that has just started denies everybody, after failures that have nothing to do with it."""
    position = Position(phase=Phase.WATCHING, resource_version="7", failures=9)
    waits = []
    for _ in range(8):
        decision = advance(position, Reply.DENIED)
        position = decision.position
        waits.append(decision.wait_s)

    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert advance(position.delivered("8"), Reply.DENIED).wait_s == 0.5


def test_what_expired_is_listed_at_once_whatever_failed_before() -> None:
    """A restart of the server: refused for a while, then "too old"; the second time in a row it is no restart."""
    first = advance(Position(phase=Phase.WATCHING, resource_version="7", failures=5), Reply.EXPIRED, luck=0.5)
    listed = advance(first.position, Reply.INITIAL_END, resource_version="9").position

    assert (first.wait_s, first.position.phase) == (0.5, Phase.STREAMING)
    assert advance(listed, Reply.EXPIRED, luck=0.5).wait_s > 10.0
    assert advance(listed.delivered("10"), Reply.EXPIRED, luck=0.5).wait_s == 0.5


def test_streaming_is_not_asked_again_where_it_is_not_understood() -> None:
    position = advance(Position(), Reply.NOT_UNDERSTOOD).position
    position = advance(position, Reply.LAST_PAGE, resource_version="9").position
    position = advance(position, Reply.EXPIRED).position

    assert position.phase is Phase.PAGING
    assert not position.may_stream


def test_new_list_starts_from_its_first_page() -> None:
    again = advance(WATCHING, Reply.UNREADABLE).position

    assert again.options(300) == {"limit": str(PAGE_LIMIT), "continue": ""}


def test_page_that_fails_is_asked_for_again() -> None:
    assert advance(PAGING, Reply.FAILED).position.continue_token == "next"


def test_page_too_large_is_asked_for_in_smaller_parts() -> None:
    limits = []
    position = PAGING
    for _ in range(4):
        position = advance(position, Reply.TOO_BIG).position
        limits.append(position.page_limit)

    assert limits == [50, 5, 1, 1]


def test_expired_page_restarts_and_the_second_time_takes_all_at_once() -> None:
    once = advance(PAGING, Reply.EXPIRED).position
    twice = advance(once, Reply.EXPIRED).position

    assert once.options(1) == {"limit": "500", "continue": ""}
    assert twice.options(1) == {"continue": ""}


def test_delivery_ends_the_memory_of_failures() -> None:
    position = advance(advance(WATCHING, Reply.FAILED).position, Reply.FAILED).position

    assert position.failures == 2
    assert position.delivered("8") == Position(phase=Phase.WATCHING, resource_version="8")
    assert position.delivered("").resource_version == "7"


def test_list_alone_does_not_end_the_memory_of_failures() -> None:
    """Or a watch that always breaks at once would list without pause."""
    position = advance(WATCHING, Reply.UNREADABLE).position
    position = advance(position, Reply.LAST_PAGE, resource_version="8").position

    assert advance(position, Reply.UNREADABLE).wait_s > advance(WATCHING, Reply.UNREADABLE).wait_s


def test_watch_that_ends_at_once_is_not_repeated_at_once() -> None:
    assert advance(WATCHING, Reply.ENDED).wait_s == 0.0
    assert advance(WATCHING, Reply.ENDED_AT_ONCE).wait_s > 0.0


def test_retry_after_is_the_least_wait() -> None:
    assert advance(WATCHING, Reply.THROTTLED, retry_after_s=10.0, luck=0.5).wait_s == pytest.approx(11.0)
    assert advance(WATCHING, Reply.FAILED, retry_after_s=0.1).wait_s == 0.25


def test_other_servers_are_asked_without_waiting() -> None:
    waits = []
    position = WATCHING
    for _ in range(4):
        decision = advance(position, Reply.FAILED, server_count=3)
        position = decision.position
        waits.append(decision.wait_s)

    assert waits[:2] == [0.0, 0.0]
    assert waits[2] > 0.0


def test_unanswered_watch_is_followed_by_a_list_at_once() -> None:
    """A server that was restored knows nothing of the version, and would let the watch wait for ever."""
    decision = advance(Position(phase=Phase.WATCHING, resource_version="99"), Reply.UNANSWERED, luck=1.0)

    assert decision.position.phase is Phase.STREAMING
    assert decision.wait_s <= FIRST_WAIT_S


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors.Expired("", 410), Reply.EXPIRED),
        (errors.VersionAhead("", 504), Reply.AHEAD),
        (errors.Unprocessable("", 422), Reply.NOT_UNDERSTOOD),
        (errors.Denied("", 403), Reply.DENIED),
        (errors.Missing("", 404), Reply.DENIED),
        (errors.Throttled("", 429), Reply.THROTTLED),
        (errors.Unauthenticated("", 401), Reply.FAILED),
        (errors.ServerFailed("", 500), Reply.FAILED),
        (errors.Unreachable(""), Reply.FAILED),
        (errors.CredentialsFailed(""), Reply.FAILED),
        (errors.Unanswered(""), Reply.UNANSWERED),
        (errors.StreamSilent(""), Reply.SILENT),
        (errors.AnswerTooBig(""), Reply.TOO_BIG),
        (errors.AnswerUnreadable(""), Reply.UNREADABLE),
    ],
)
def test_each_kind_of_error_is_an_answer(error: errors.KubeError, answer: Reply) -> None:
    assert classify(error) is answer


def test_position_reads_as_one_line() -> None:
    assert str(WATCHING) == "watching at 7, failures=0"
