# SPDX-License-Identifier: Apache-2.0
"""The end of pods, rule by rule, in virtual time. The recorded timelines are in tests/vectors."""

import pytest
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.order import Dependency, Member, cycle, cycle_text, waits_for_end
from agent.pods.plan.stop import after_step, blockers_of, note_exit, plan_stop, steps_to_repeat
from agent.pods.plan.stop_state import (
    ContainerEnding,
    HookPhase,
    Kill,
    RunHook,
    Signal,
    Stop,
    StopPodSandbox,
    Trigger,
    begin_stop,
    exited,
    resumed,
    shortened,
)
from agent.pods.view.forecast import Assumption, ForecastRequest, HookAssumption, forecast_stop

MAIN, SIDECAR, INIT = ContainerKind.MAIN, ContainerKind.SIDECAR, ContainerKind.INIT
OBEYS = Assumption(exit_after_s=1)
DEAF = Assumption()


def pod(*members: Member | str, grace_s: float = 30, trigger: Trigger = Trigger.DELETE, **each: object) -> Stop:
    """A pod of mains, and of what else is given; all containers run."""
    listed = [Member(name=one, kind=MAIN) if isinstance(one, str) else one for one in members]
    waits = waits_for_end(listed)
    endings = [ContainerEnding(name=one.name, kind=one.kind, waits_for=waits[one.name], **each) for one in listed]  # type: ignore[arg-type]
    return begin_stop(trigger, endings, grace_s, 0.0)


def sidecar(name: str) -> Member:
    return Member(name=name, kind=SIDECAR)


def lines(stop: Stop, assumptions: dict[str, Assumption], *requests: ForecastRequest) -> list[str]:
    return [f"{one.at_s:g} {one.event} {one.container}".strip() for one in forecast_stop(stop, assumptions, requests)]


def test_dead_sidecars_in_the_middle_do_not_break_the_order_of_the_others() -> None:
    """TRM-13: a goes after c although b is gone."""
    stop = pod(sidecar("a"), sidecar("b"), sidecar("c"), "app")
    stop = stop.changed("b", lambda one: replace(one, is_running=False))

    assert lines(stop, {"a": OBEYS, "c": OBEYS, "app": OBEYS}) == [
        "0 stop_signal app", "1 exit app", "1 stop_signal c", "2 exit c", "2 stop_signal a", "3 exit a",
        "3 sandbox_stop",
    ]  # fmt: skip


def test_a_sidecar_that_crashes_again_waits_as_long_as_after_any_second_crash() -> None:
    """TRM-15 with RST-01: at once after the first exit, 10 s after the second."""
    stop = pod(sidecar("net"), "app", grace_s=60)
    stop = after_step(stop, Signal("app", 60), 0.0)
    for died_s, due_s in ((5.0, 5.0), (6.0, 16.0), (17.0, 37.0)):
        stop = exited(stop, "net", died_s)
        early, late = plan_stop(stop, died_s), plan_stop(stop, due_s)
        assert early.steps == (late.steps if died_s == due_s else ())
        assert [str(step) for step in late.steps] == ["restart net, which others still need"]
        stop = after_step(stop, late.steps[0], due_s)
        stop = stop.changed("net", lambda one: replace(one, is_running=True, is_starting=False, ended_s=None))


def test_a_sidecar_being_restarted_still_counts_as_there() -> None:
    stop = pod(sidecar("a"), sidecar("b"), "app")
    stop = stop.changed("b", lambda one: replace(one, is_running=False, is_starting=True))
    stop = exited(stop, "app", 1.0)

    assert blockers_of(stop, "a") == ("b",)


@pytest.mark.parametrize(("grace_s", "left"), [(1, "grace 1"), (30, "too little left")])
def test_a_sidecar_nobody_can_use_in_time_stays_dead(grace_s: float, left: str) -> None:
    """TRM-15."""
    stop = pod(sidecar("net"), "app", grace_s=grace_s)
    stop = after_step(stop, Signal("app", 30), 0.0)
    stop = exited(stop, "net", max(grace_s - 2, 0.0))

    assert plan_stop(stop, max(grace_s - 2, 0.0)).steps == (), left


def test_grace_of_a_container_frees_the_chain_early() -> None:
    """BEY-01, and TRM-06: never less than 2 s."""
    stop = pod(sidecar("net"), "app").changed("app", lambda one: replace(one, own_grace_s=4))
    hasty = pod("app").changed("app", lambda one: replace(one, own_grace_s=0.5))

    assert lines(stop, {"net": OBEYS, "app": DEAF})[1:4] == ["4 sigkill app", "4 exit app", "4 stop_signal net"]
    assert lines(hasty, {"app": DEAF})[1] == "2 sigkill app"


def test_a_reserve_leaves_sidecars_their_time() -> None:
    """BEY-02: mains are killed that much earlier."""
    stop = pod(sidecar("net"), "app").changed("app", lambda one: replace(one, reserve_s=10))

    assert lines(stop, {"net": DEAF, "app": DEAF}) == [
        "0 stop_signal app", "20 sigkill app", "20 exit app", "20 stop_signal net", "30 sigkill net", "30 exit net",
        "30 sandbox_stop",
    ]  # fmt: skip


def test_a_hook_may_run_at_the_turn_of_its_sidecar() -> None:
    """BEY-06."""
    stop = pod(sidecar("net"), "app").changed("net", lambda one: replace(one, hook="sleep", is_hook_at_turn=True))
    hooked = Assumption(hook=HookAssumption(seconds=3, is_native=True), exit_after_s=1)

    assert lines(stop, {"net": hooked, "app": OBEYS})[1:5] == [
        "1 exit app", "1 prestop_start net", "4 prestop_end net", "4 stop_signal net",
    ]  # fmt: skip


def test_dependencies_end_after_those_that_need_them() -> None:
    """BEY-03: the other way round than the list order of mains, which has none."""
    members = (Member(name="db", kind=MAIN), Member(name="app", kind=MAIN, needs=(Dependency("db"),)))

    assert lines(pod(*members), {"db": OBEYS, "app": OBEYS})[:3] == [
        "0 stop_signal app", "1 exit app", "1 stop_signal db",
    ]  # fmt: skip


def test_a_circle_of_dependencies_is_found() -> None:
    """BEY-03."""
    ring = [Member(name=name, kind=MAIN, needs=(Dependency(other),)) for name, other in ("ab", "bc", "ca")]

    assert cycle(ring) == ("a", "b", "c", "a")
    assert cycle(ring[:2]) == ()


@pytest.mark.parametrize(
    ("who", "needed", "ring"),
    [
        ("net", "app", "net → app → net (listed before app)"),
        ("setup", "log", "setup → log → setup (listed before log)"),
        ("net", "log", "net → log → net (listed before log)"),
        ("app", "net", ""),
        ("log", "setup", ""),
        ("web", "app", ""),
    ],
)
def test_a_circle_through_the_order_of_the_list_is_found(who: str, needed: str, ring: str) -> None:
    """FP-12: such a pod waited for ever."""
    members = [
        Member(name=name, kind=kind, needs=(Dependency(needed),) if name == who else ())
        for name, kind in (("setup", INIT), ("net", SIDECAR), ("log", SIDECAR), ("app", MAIN), ("web", MAIN))
    ]
    found = cycle(members)

    assert (cycle_text(members, found) if found else "") == ring


def test_a_shorter_delete_shortens_and_a_longer_one_does_not() -> None:
    """TRM-22."""
    stop = pod("app", grace_s=20)

    assert shortened(stop, 5, 3.0).deadline_s == 8
    assert shortened(stop, 600, 3.0) == stop
    assert [str(step) for step in plan_stop(shortened(stop, 0, 3.0), 3.0).steps] == ["kill app"]


def test_negative_grace_reads_as_one_second() -> None:
    """TRM-21."""
    assert (pod("app", grace_s=-5).deadline_s, pod("app", grace_s=-5).is_forced) == (1.0, False)


def test_the_runtime_is_given_the_whole_seconds_that_are_left() -> None:
    """2.3: it still kills if kepd dies."""
    stop = pod("app", hook="exec").changed(
        "app", lambda one: replace(one, hook_phase=HookPhase.OK, hook_began_s=0.0, hook_ended_s=5.9)
    )

    assert plan_stop(stop, 5.9).steps == (Signal("app", 25),)
    assert plan_stop(stop, 5.9).wake_s == 30.0


def test_a_crash_loses_hooks_of_others_but_no_sleep_and_repeats_signals_with_what_is_left() -> None:
    """TRM-23, TRM-31, HOK-12."""
    stop = pod("slept", "asked", "told", grace_s=30)
    for name, hook in (("slept", "sleep"), ("asked", "exec")):
        stop = stop.changed(name, lambda one, hook=hook: replace(one, hook=hook))  # type: ignore[misc]
        stop = after_step(stop, RunHook(name), 0.0)
    stop = resumed(after_step(stop, Signal("told", 30), 0.0))

    assert plan_stop(stop, 12.2).steps == (Signal("asked", 18),)
    assert steps_to_repeat(stop, 12.2) == (Signal("told", 18),)
    killed = after_step(stop, Kill("told"), 31.0)
    assert steps_to_repeat(killed, 31.0) == (Kill("told"),)
    assert steps_to_repeat(replace(exited(killed, "told", 31.0), is_sandbox_stopped=True), 32.0) == (StopPodSandbox(),)


def test_an_exit_told_twice_is_one_exit() -> None:
    stop = note_exit(pod("app"), "app", 3.0)

    assert note_exit(stop, "app", 9.0) == stop
