# SPDX-License-Identifier: Apache-2.0
"""SVN-125: when the plane is alone, and when a server has returned."""

from hypothesis import given
from hypothesis import strategies as st

from agent.services.outage.silence import KINDS, Phase, Silence


def test_both_kinds_have_to_be_silent_for_the_whole_time() -> None:
    one = Silence(10.0, 0.0)
    for kind in KINDS:
        one.heard(kind)
    one.lost("Service", 5.0)
    one.look(100.0)
    assert (one.phase, one.due_s) == (Phase.WITH_SERVER, float("inf"))
    one.lost("EndpointSlice", 101.0)
    one.look(110.9)
    assert (one.phase, one.due_s) == (Phase.WITH_SERVER, 111.0)

    assert one.look(111.0)
    assert (one.phase, one.since_s) == (Phase.ALONE, 101.0)
    assert not one.look(500.0)


def test_a_server_that_was_never_there_is_away_from_the_start() -> None:
    one = Silence(10.0, 3.0)
    one.look(13.0)

    assert (one.phase, one.since_s) == (Phase.ALONE, 3.0)


def test_it_has_returned_once_both_kinds_speak_and_no_list_is_doubted() -> None:
    one = Silence(10.0, 0.0)
    one.look(10.0)
    one.heard("Service")
    one.look(20.0)
    assert one.phase is Phase.RETURNING
    one.doubts("EndpointSlice", is_doubted=True)
    one.heard("EndpointSlice")
    assert not one.look(21.0)
    one.doubts("EndpointSlice", is_doubted=False)
    one.look(22.0)

    assert (one.phase, one.since_s) == (Phase.WITH_SERVER, 22.0)


def test_who_is_lost_on_the_way_back_is_alone_at_once() -> None:
    one = Silence(10.0, 0.0)
    one.look(10.0)
    one.heard("Service")
    one.look(20.0)
    one.lost("Service", 21.0)
    one.look(21.0)

    assert one.phase is Phase.ALONE


def test_after_a_boot_the_silence_is_as_old_as_the_snapshot_once_a_server_was_asked() -> None:
    one = Silence(10.0, 100.0)
    one.vouched_s = 40.0
    assert one.due_s == 110.0
    for kind in KINDS:
        one.lost(kind, 101.0)
    one.look(101.0)

    assert (one.phase, one.since_s) == (Phase.ALONE, 40.0)


@given(
    st.lists(st.tuples(st.sampled_from(["heard", "lost", "doubt", "trust"]), st.sampled_from(KINDS), st.floats(0, 30)))
)
def test_phases_are_those_of_a_plain_model(steps: list[tuple[str, str, float]]) -> None:
    one, now_s = Silence(10.0, 0.0), 0.0
    lost, doubted, is_away = dict.fromkeys(KINDS, 0.0), set[str](), False
    for what, kind, pause_s in steps:
        # Time passes, then something happens; whoever waits looks at the moment that was named.
        now_s += pause_s
        if one.due_s <= now_s:
            one.look(one.due_s)
        if len(lost) == 2 and now_s >= max(lost.values()) + 10.0:
            is_away = True
        match what:
            case "heard":
                one.heard(kind)
                lost.pop(kind, None)
            case "lost":
                one.lost(kind, now_s)
                lost.setdefault(kind, now_s)
            case "doubt" | "trust":
                one.doubts(kind, is_doubted=what == "doubt")
                (doubted.add if what == "doubt" else doubted.discard)(kind)
        one.look(now_s)
        if doubted and len(lost) < 2:
            is_away = True
        if not lost and not doubted:
            is_away = False
        expected = Phase.WITH_SERVER if not is_away else Phase.ALONE if len(lost) == 2 else Phase.RETURNING
        assert one.phase is expected
