# SPDX-License-Identifier: Apache-2.0
"""Ends of any pod: they end in time, in order, and a crash between any two steps changes nothing."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.order import Member, waits_for_end
from agent.pods.plan.stop import after_step, plan_stop, steps_to_repeat
from agent.pods.plan.stop_state import ContainerEnding, RunHook, Signal, Stop, StopStep, Trigger, begin_stop, resumed
from agent.pods.view.forecast import Assumption, EndSimulation, ForecastRequest, HookAssumption, forecast_stop

SECONDS = st.integers(0, 80).map(lambda half: half / 2)
KINDS = st.sampled_from([ContainerKind.MAIN, ContainerKind.SIDECAR, ContainerKind.INIT])
HOOKS = st.none() | st.builds(HookAssumption, seconds=st.none() | SECONDS, succeeds=st.booleans())
SLEEPS = st.none() | st.builds(HookAssumption, seconds=SECONDS, is_native=st.just(True))


@st.composite
def pods(draw: st.DrawFn, hooks: st.SearchStrategy = HOOKS | SLEEPS) -> tuple[Stop, dict[str, Assumption]]:
    """A pod at the beginning of its end, and how its containers behave."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=5))
    members = [Member(name=f"c{index}", kind=kind) for index, kind in enumerate(kinds)]
    waits = waits_for_end(members)
    endings, assumptions = [], {}
    for member in members:
        hook = draw(hooks) if member.kind is not ContainerKind.INIT else None
        assumptions[member.name] = Assumption(
            hook=hook, exit_after_s=draw(st.none() | SECONDS), exits_at_s=draw(st.none() | SECONDS)
        )
        endings.append(
            ContainerEnding(
                name=member.name,
                kind=member.kind,
                hook="" if hook is None else "sleep" if hook.is_native else "exec",
                waits_for=waits[member.name],
                is_running=draw(st.booleans()),
            )
        )
    trigger = draw(st.sampled_from([Trigger.DELETE, Trigger.COMPLETE]))
    return begin_stop(trigger, endings, draw(st.integers(0, 40)), 0.0), assumptions


@settings(max_examples=300, deadline=None)
@given(pods(), st.lists(st.builds(ForecastRequest, SECONDS, st.integers(0, 20)), max_size=2))
def test_every_pod_ends_within_its_budget_and_two_seconds(
    given_pod: tuple[Stop, dict[str, Assumption]], requests: list[ForecastRequest]
) -> None:
    """TRM-06, TRM-11, TRM-23: at most 2 s over, one hook and one signal per instance, later sidecars first."""
    stop, assumptions = given_pod
    happenings = forecast_stop(stop, assumptions, requests)

    assert happenings[-1].event == "sandbox_stop"
    assert happenings[-1].at_s <= stop.deadline_s + 2
    for one in stop.containers:
        own = [happening.event for happening in happenings if happening.container == one.name]
        assert own.count("prestop_start") <= 1
        assert own.count("stop_signal") <= 1
        assert own.count("exit") == one.is_running + own.count("restart")


@settings(max_examples=300, deadline=None)
@given(pods())
def test_no_sidecar_is_signalled_before_the_deadline_while_somebody_needs_it(
    given_pod: tuple[Stop, dict[str, Assumption]],
) -> None:
    """TRM-10, TRM-11, TRM-13, TRM-16."""
    stop, assumptions = given_pod
    runs = {one.name for one in stop.containers if one.is_running}
    for happening in forecast_stop(stop, assumptions):
        sidecar = stop.of(happening.container)
        if happening.event == "exit":
            runs.discard(happening.container)
        elif happening.event == "restart":
            runs.add(happening.container)
        elif happening.event == "stop_signal" and sidecar is not None and happening.at_s < stop.deadline_s:
            assert not sidecar.waits_for & runs


@settings(max_examples=200, deadline=None)
@given(pods())
def test_planning_what_a_plan_leaves_gives_nothing(given_pod: tuple[Stop, dict[str, Assumption]]) -> None:
    """STY-03."""
    stop, _ = given_pod
    for now_s in (0.0, stop.deadline_s, stop.deadline_s + 2):
        for step in plan_stop(stop, now_s).steps:
            stop = after_step(stop, step, now_s)

        assert plan_stop(stop, now_s).steps == ()


@settings(max_examples=200, deadline=None)
@given(pods(hooks=SLEEPS), st.integers(1, 12))
def test_a_crash_after_any_step_and_a_new_plan_reach_the_same_end(
    given_pod: tuple[Stop, dict[str, Assumption]], survived: int
) -> None:
    """STY-03, TRM-31: what was written down goes on; steps that may be lost are repeated, none comes twice."""
    stop, assumptions = given_pod
    whole, crashed = Crashing(stop, assumptions, 0), Crashing(stop, assumptions, survived)
    ends = sorted(whole.exits())
    # Which of two that end in one moment is heard of first, a crash may change; a sidecar may begin anew in between.
    own = {name: one.exits_at_s for name, one in assumptions.items()}
    assume(not any(end_s == own[other] for end_s, name in ends for other in own if other != name))

    assert ends == sorted(crashed.exits())


class Crashing(EndSimulation):
    """An end whose driver dies once, after so many steps (0: never), between writing a step down and taking it."""

    def __init__(self, stop: Stop, assumptions: dict[str, Assumption], survived: int) -> None:
        super().__init__(stop, assumptions, ())
        self._left = survived
        self._signals: set[tuple[str, int]] = set()

    def decide(self) -> tuple[list[StopStep], float | None]:
        plan = plan_stop(self.stop, self.now_s)
        taken: list[StopStep] = []
        for step in plan.steps:
            self.stop = after_step(self.stop, step, self.now_s)
            self._left -= 1
            if self._left == 0:
                for one in taken:
                    self.do(one)
                self.stop = resumed(self.stop)
                # A sleep goes on where it was (HOK-12).
                asleep = [step] if isinstance(step, RunHook) else []
                return [*asleep, *steps_to_repeat(self.stop, self.now_s)], self.now_s
            taken.append(step)
        return taken, plan.wake_s

    def do(self, step: StopStep) -> None:
        """As a runtime does, an instance gets its signal once."""
        if isinstance(step, Signal):
            one = self.stop.of(step.name)
            instance = (step.name, one.restarts if one is not None else 0)
            if instance in self._signals:
                return
            self._signals.add(instance)
        super().do(step)

    def exits(self) -> list[tuple[float, str]]:
        """When each container ended."""
        self.run_until()
        return [(one.at_s, one.container) for one in self.happenings if one.event == "exit"]
