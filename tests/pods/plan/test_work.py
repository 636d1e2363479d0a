# SPDX-License-Identifier: Apache-2.0
"""What is being done to a pod, as values."""

from agent.pods.plan.probe import ProbeKind
from agent.pods.plan.start import plan_start
from agent.pods.plan.work import (
    EndingAlone,
    FetchingAhead,
    HoldingLimits,
    KillingContainer,
    Launching,
    MakingSandbox,
    Probing,
    Refreshing,
    Releasing,
    RemovingDead,
    Resizing,
    RestartingAll,
    RestartingSidecar,
    RunningHook,
    Saving,
    StoppingContainer,
    StoppingPod,
    UpdatingVolumes,
    Work,
    containers_at_work,
    holds_end_up,
    is_pod_at_work,
)
from agent.pods.view.status import why_starting
from tests.pods.pods import World, make_pod

OTHERS: tuple[Work, ...] = (
    StoppingPod(), RunningHook("app"), StoppingContainer("app"), KillingContainer("app"), RestartingSidecar("app"),
    FetchingAhead("app"), Probing(ProbeKind.LIVENESS, "app"), Refreshing("app"), UpdatingVolumes(), HoldingLimits(),
    Resizing(), RemovingDead(), Releasing(), Saving(),
)  # fmt: skip
OF_THE_START: tuple[Work, ...] = (Launching("app"), EndingAlone("web"), MakingSandbox(), RestartingAll())


def test_an_end_waits_for_what_makes_or_removes_containers_and_for_nothing_else() -> None:
    """FP-26: a restart of all containers was left out."""
    waited_for = {work for work in (*OTHERS, *OF_THE_START) if holds_end_up(work)}

    assert waited_for == {Launching("app"), MakingSandbox(), RestartingAll()}


def test_only_containers_that_start_or_end_are_at_work() -> None:
    """FP-26: a hook or a probe of a container does not keep the planner from it."""
    assert containers_at_work(OTHERS) == frozenset()
    assert containers_at_work(OF_THE_START) == {"app", "web"}


def test_work_on_the_whole_pod_lets_no_container_start() -> None:
    """FP-26: a container that is named like a piece of work is only a container."""
    world = World(make_pod(("sandbox",)))
    world.settle()
    world.exit(world.of("sandbox").id, 1)

    def steps(work: Work) -> bool:
        plan = plan_start(world.pod, world.seen, world.memory, 50.0, world.rules, works=frozenset({work}))
        return bool(plan.steps)

    assert [steps(work) for work in (MakingSandbox(), RestartingAll(), Launching("sandbox"))] == [False] * 3
    assert all(steps(work) for work in OTHERS)
    assert [is_pod_at_work((work,)) for work in OF_THE_START] == [False, False, True, True]


def test_people_read_what_is_waited_for_once_and_in_order() -> None:
    """BEY-04."""
    works = (Probing(ProbeKind.STARTUP, "c1"), Launching("app"), EndingAlone("web"), MakingSandbox(), Saving())

    assert why_starting((), works, "", 1.0) == "app to start; web to end; its sandbox"
    assert why_starting((), works, "fetch i for app", 1.0) == "fetch i for app; web to end; its sandbox"


def test_each_work_says_what_it_is_and_is_found_under_an_equal_value() -> None:
    tasks = {work: str(work) for work in (*OTHERS, *OF_THE_START)}

    assert tasks[Launching("app")] == "start app"
    assert tasks[StoppingContainer("app")] != tasks[KillingContainer("app")]
    assert len(set(tasks.values())) == len(tasks)
