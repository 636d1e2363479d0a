# SPDX-License-Identifier: Apache-2.0
"""Ends of any pod: they end in time, in order, and a crash between any two steps changes nothing."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.pod import ContainerKind
from agent.pods.plan.order import Member, waits_for_end
from agent.pods.plan.stop import after_step, plan_stop, steps_to_repeat
from agent.pods.plan.stop_state import Ending, Stop, Trigger, begin_stop, exited, hook_ended, resumed
from agent.pods.plan.stop_steps import Signal, StopPodSandbox
from agent.pods.view.forecast import Assumption, HookAssumption, Request, forecast_stop

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
            Ending(
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
@given(pods(), st.lists(st.builds(Request, SECONDS, st.integers(0, 20)), max_size=2))
def test_every_pod_ends_within_its_budget_and_two_seconds(
    given_pod: tuple[Stop, dict[str, Assumption]], requests: list[Request]
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
    whole, crashed = World(assumptions), World(assumptions)

    assert sorted(whole.run(stop, crash_after=None)) == sorted(crashed.run(stop, crash_after=survived))


class World:
    """Containers that behave as assumed, driven by plans; the driver may die once, between writing and acting."""

    def __init__(self, assumptions: dict[str, Assumption]) -> None:
        self.assumptions = assumptions
        self.signals: set[tuple[str, int]] = set()
        self.restarts = 0

    def run(self, stop: Stop, crash_after: int | None) -> list[tuple[float, str]]:
        """When each container ended."""
        now_s, steps_left, exits = 0.0, crash_after, []
        deaths = {
            one.name: self.assumptions[one.name].exits_at_s
            for one in stop.containers
            if one.is_running and self.assumptions[one.name].exits_at_s is not None
        }
        for _ in range(500):
            for name in [name for name, at_s in deaths.items() if at_s is not None and at_s <= now_s]:
                del deaths[name]
                stop = exited(stop, name, now_s)
                exits.append((now_s, name))
            for one in stop.containers:
                ends_s = self._hook_end_s(one)
                if ends_s is not None and ends_s <= now_s:
                    stop = hook_ended(stop, one.name, "ok", now_s)  # type: ignore[arg-type]
            plan = plan_stop(stop, now_s)
            pending = list(plan.steps)
            for index, step in enumerate(pending):
                stop = after_step(stop, step, now_s)
                if steps_left is not None:
                    steps_left -= 1
                    if steps_left == 0:
                        stop, steps_left = resumed(stop), None
                        again = steps_to_repeat(stop, now_s)
                        stop = self._act(stop, again, now_s, deaths)
                        del pending[index + 1 :]
                        break
                stop = self._act(stop, (step,), now_s, deaths)
            if plan.steps:
                continue
            if stop.has_ended:
                return exits
            times = [plan.wake_s, *deaths.values(), *(self._hook_end_s(one) for one in stop.containers)]
            now_s = min(at_s for at_s in times if at_s is not None and at_s > now_s)
        raise AssertionError(stop)

    def _hook_end_s(self, one: Ending) -> float | None:
        hook = self.assumptions[one.name].hook
        is_running = one.hook_phase == "running" and hook is not None and hook.seconds is not None
        return (one.hook_began_s or 0.0) + hook.seconds if is_running and hook and hook.seconds is not None else None

    def _act(self, stop: Stop, steps: tuple, now_s: float, deaths: dict[str, float | None]) -> Stop:
        for step in steps:
            name = getattr(step, "name", "")
            assumed = self.assumptions.get(name)
            kind = type(step).__name__
            if isinstance(step, Signal) and assumed is not None:
                if (name, self.restarts) in self.signals:
                    continue  # as a runtime does: an instance gets its signal once
                self.signals.add((name, self.restarts))
                if assumed.exit_after_s is not None:
                    known_s = deaths.get(name)
                    exit_s = now_s + assumed.exit_after_s
                    deaths[name] = exit_s if known_s is None else min(known_s, exit_s)
            elif kind == "Kill":
                deaths[name] = now_s
            elif kind == "RestartSidecar":
                self.restarts += 1
                stop = stop.changed(name, lambda one: replace(one, is_running=True, is_starting=False, ended_s=None))
            elif isinstance(step, StopPodSandbox):
                pass
        return stop
