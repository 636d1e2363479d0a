# SPDX-License-Identifier: Apache-2.0
"""Starts, restarts and completion, rule by rule, in virtual time."""

import msgspec
import pytest
from msgspec.structs import replace

from agent.pods.plan.order import Dependency
from agent.pods.plan.remembered import ContainerMemory, Failing, resumed_memory
from agent.pods.plan.restart import RestartCurve
from agent.pods.plan.start import plan_start
from agent.pods.plan.start_steps import Launch, StartRules
from agent.pods.plan.stop_state import HookPhase
from agent.pods.plan.work import EndingAlone, Launching
from agent.pods.runtime.observed import Stage
from tests.pods.pods import Runs, World, container, make_pod

FAILS = Runs(1, 1)
DONE = Runs(1, 0)


def test_inits_run_one_after_the_other_then_sidecars_then_mains() -> None:
    """STA-01 to STA-04."""
    world = World(make_pod(("app", "web"), ("one", "+net", "two")), {"one": [DONE], "two": [DONE]}).run(10)

    assert world.log == [
        "0 sandbox 0", "0 start one", "1 one exits 0", "1 start net", "1 start two", "2 two exits 0", "2 start app",
        "2 start web",
    ]  # fmt: skip


def test_nothing_starts_after_a_sidecar_that_has_not_started() -> None:
    """STA-03."""
    net = container("net", restartPolicy="Always", startupProbe={"exec": {"command": ["true"]}})
    world = World(make_pod(("app",), (net,)), started=lambda name: name != "net")
    plan = world.settle()

    assert world.log == ["0 sandbox 0", "0 start net"]
    assert [(one.name, one.why) for one in plan.waiting] == [("", "net to be started")]


def test_a_main_that_cannot_start_holds_no_other_up() -> None:
    """STA-04."""
    world = World(make_pod(("app", "web")), fails={"app": "ErrImagePull"})
    plan = world.settle()

    assert world.log == ["0 sandbox 0", "0 no app", "0 start web"]
    assert [(one.name, one.until_s) for one in plan.waiting] == [("app", 11.0)]


def test_a_container_created_and_never_started_is_replaced_whatever_the_policy() -> None:
    """STA-09."""
    world = World(make_pod(restartPolicy="Never"))
    world.settle()
    (only,) = world.seen.instances
    world.seen = replace(world.seen, instances=(replace(only, stage=Stage.CREATED),))

    assert world.plan().steps == (Launch("app", 0, only.sandbox_id, (only.id,), None),)


def test_a_container_in_an_unknown_state_is_ended_first() -> None:
    """STA-10: never two instances of one name."""
    world = World(make_pod())
    world.settle()
    (only,) = world.seen.instances
    world.seen = replace(world.seen, instances=(replace(only, stage=Stage.UNKNOWN),))

    assert [str(step) for step in world.plan().steps] == [
        "end app within 30 s: Container app is in unknown state, try killing it"
    ]


def test_a_sidecar_that_dies_during_initialisation_restarts_and_no_init_runs_again() -> None:
    """STA-11."""
    world = World(
        make_pod(("app",), ("one", "+net", "two")), {"one": [DONE], "net": [Runs(3, 1), Runs()], "two": [Runs(9)]}
    )
    world.run(30)

    assert world.log[2:] == [
        "1 one exits 0", "1 start net", "1 start two", "4 net exits 1", "4 start net 1", "10 two exits 0",
        "10 start app",
    ]  # fmt: skip


def test_a_sidecar_that_dies_later_restarts_alone() -> None:
    """STA-11."""
    world = World(make_pod(("app",), ("one", "+net")), {"one": [DONE], "net": [Runs(50, 0), Runs()]}).run(100)

    assert world.log[5:] == ["51 net exits 0", "51 start net 1"]


class TestSandboxLoss:
    def test_everything_begins_again_in_a_new_sandbox(self) -> None:
        """SBX-01 to SBX-03, LBL-06: attempts go on."""
        world = World(make_pod(("app",), ("one", "+net")), {"one": [DONE]}).run(5)
        world.lose_sandbox()
        world.run(5)

        assert set(world.log[5:8]) == {"5 stop: sandbox", "5 net exits 143", "5 app exits 143"}
        assert world.log[8:] == ["5 sandbox 1", "5 start one", "6 one exits 0", "6 start net", "6 start app 1"]

    def test_a_main_of_an_old_sandbox_is_no_evidence_of_initialisation(self) -> None:
        """SBX-04, against Q-STALE: after a reboot inits run although a main was created before."""
        world = World(make_pod(("app",), ("one", "two")), {"one": [DONE], "two": [DONE]}).run(5)
        app = world.of("app")
        world.seen = replace(world.seen, instances=(replace(app, stage=Stage.CREATED),))
        world.lose_sandbox()
        world.run(5)

        assert world.starts()[3:] == ["5 start one", "6 start two", "7 start app"]

    def test_never_ends_a_pod_that_ran(self) -> None:
        """SBX-05."""
        world = World(make_pod(restartPolicy="Never")).run(5)
        world.exit(world.of("app").id, 3)
        world.lose_sandbox()
        world.run(5)

        assert world.log[-1] == "5 Failed"

    def test_on_failure_starts_only_what_has_not_succeeded(self) -> None:
        """SBX-05, SBX-06."""
        world = World(make_pod(("a", "b"), restartPolicy="OnFailure"), {"a": [DONE]}).run(5)
        world.lose_sandbox()
        world.run(5)
        assert world.starts() == ["0 start a", "0 start b", "5 start b 1"]
        world.exit(world.of("b").id, 0)
        world.lose_sandbox()
        world.run(1)

        assert world.log[-1] == "10 Succeeded"


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_mains_restart_as_the_policy_says(policy: str, code: int, restarts: bool) -> None:
    world = World(make_pod(("app", "other"), restartPolicy=policy), {"app": [Runs(1, code), Runs()]}).run(5)

    assert ("1 start app 1" in world.log) is restarts


def test_a_main_killed_by_a_probe_restarts_on_failure_even_if_it_then_exits_zero() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [143]}}]
    for policy, restarts in (("OnFailure", True), ("Never", False)):
        app = container("app", restartPolicy=policy, restartPolicyRules=rules)
        world = World(make_pod((app, "other")))
        world.settle()
        failing = Failing(instance=world.of("app").id, cause="liveness", message="m", grace_s=5)
        world.memory = world.memory.changed("app", lambda one, failing=failing: replace(one, failing=failing))
        assert [str(step) for step in world.plan().steps] == ["end app within 5 s: m"]
        world.run(5)

        assert ("0 start app 1" in world.log) is restarts, "RST-04: rules do not count for what a probe killed"


def test_restarts_come_at_once_then_later_and_later() -> None:
    """RST-01."""
    world = World(make_pod(), {"app": [Runs(0, 1)]}).run(2000)

    assert [int(line.split()[0]) for line in world.starts()] == [
        0, 0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510, 1810,
    ]  # fmt: skip


def test_a_container_that_ran_for_long_restarts_at_once() -> None:
    """RST-02: more than 600 s between start and exit."""
    world = World(make_pod(), {"app": [Runs(0, 1)] * 3 + [Runs(601, 1)] * 2 + [Runs()]}).run(5000)

    assert [int(line.split()[0]) for line in world.starts()] == [0, 0, 10, 30, 631, 1232]


def test_a_shorter_longest_pause_shortens_the_first() -> None:
    """RST-06."""
    world = World(make_pod(), {"app": [Runs(0, 1)]}, StartRules(curve=RestartCurve(longest_s=2))).run(5)

    assert [int(line.split()[0]) for line in world.starts()] == [0, 0, 2, 4]


def test_a_failing_init_is_repeated_or_ends_the_pod() -> None:
    world = World(make_pod(("app",), ("one",)), {"one": [FAILS, DONE]}).run(20)
    never = World(make_pod(("app",), ("+net", "one"), restartPolicy="Never"), {"one": [FAILS]}).run(20)

    assert world.log[1:] == ["0 start one", "1 one exits 1", "1 start one 1", "2 one exits 0", "2 start app"]
    assert never.log[3:] == ["1 one exits 1", "1 stop: completed", "1 net exits 143", "1 Failed"]


def test_an_init_that_ran_out_of_memory_is_not_done_although_it_exits_zero() -> None:
    """STA-02."""
    world = World(make_pod(("app",), ("one",)), {"one": [Runs(1, 0, "OOMKilled"), DONE]}).run(20)

    assert "1 start one 1" in world.log


class TestCompletion:
    """Job-like pods."""

    def test_sidecars_end_when_all_mains_are_done_and_do_not_count(self) -> None:
        """CMP-01 to CMP-03."""
        world = World(make_pod(("a", "b"), ("+net",), restartPolicy="OnFailure"), {"a": [Runs(2)], "b": [Runs(4)]})
        world.run(20)

        assert world.log[4:] == ["2 a exits 0", "4 b exits 0", "4 stop: completed", "4 net exits 143", "4 Succeeded"]

    def test_a_main_in_back_off_keeps_the_pod(self) -> None:
        """CMP-01."""
        behaves = {"a": [Runs(1)], "b": [FAILS, FAILS, Runs(1)]}
        world = World(make_pod(("a", "b"), ("+net",), restartPolicy="OnFailure"), behaves).run(11)
        assert "stop" not in str(world.log)
        world.run(20)

        assert world.log[-1] == "13 Succeeded"

    def test_a_finished_pod_is_never_run_again(self) -> None:
        """CMP-05, CMP-06: not after a reboot either."""
        world = World(make_pod(restartPolicy="Never"), {"app": [DONE]}).run(5)
        assert world.log[-1] == "1 Succeeded"
        world.seen = replace(world.seen, sandboxes=(), instances=())

        assert world.plan().steps == ()

    def test_rules_of_a_container_beat_the_policy(self) -> None:
        """RST-04."""
        rules = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [3]}}]
        app = container("app", restartPolicy="Never", restartPolicyRules=rules)
        world = World(make_pod((app,)), {"app": [Runs(1, 7), Runs(1, 3)]}).run(30)

        assert world.log[1:] == [
            "0 start app", "1 app exits 7", "1 start app 1", "2 app exits 3", "2 stop: completed", "2 Failed",
        ]  # fmt: skip

    def test_all_containers_restart_for_one(self) -> None:
        """RST-05: in the same sandbox, inits again."""
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]
        app = container("app", restartPolicy="Never", restartPolicyRules=rules)
        world = World(make_pod((app, "b"), ("one",)), {"one": [DONE]}).run(2)
        world.exit(world.of("app").id, 7)
        world.run(20)

        assert world.log[5:] == [
            "2 app exits 7", "2 restart all for app", "2 start one", "3 one exits 0", "3 start app", "3 start b",
        ]  # fmt: skip

    def test_who_makes_all_restart_again_and_again_is_waited_for(self) -> None:
        """RST-05 with RST-01: no circle without a pause."""
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]
        world = World(make_pod((container("app", restartPolicyRules=rules), "b")))
        world.settle()
        known = world.memory.of("app").backoff.started(1.0, 1.0)
        world.memory = world.memory.changed("app", lambda one: replace(one, backoff=known))
        world.exit(world.of("app").id, 7)
        plan = world.settle()

        assert [(one.name, one.why, one.until_s) for one in plan.waiting] == [("app", "back-off", 11.0)]
        world.run(10)
        assert "10 restart all for app" in world.log

    def test_a_deadline_ends_the_pod(self) -> None:
        world = World(make_pod(activeDeadlineSeconds=60))
        world.memory = replace(world.memory, first_seen_s=1.0)
        world.run(100)

        assert world.log[2:] == ["60 stop: deadline", "60 app exits 143", "60 Failed"]

    def test_a_deadline_in_a_back_off_ends_what_is_there(self) -> None:
        """FP-9: nothing runs, but the sandbox is up."""
        world = World(make_pod(activeDeadlineSeconds=15), {"app": [FAILS]})
        world.memory = replace(world.memory, first_seen_s=1.0)
        world.run(40)

        assert world.log[-2:] == ["15 stop: deadline", "15 Failed"]
        assert world.seen.active is None

    def test_a_keystone_ends_the_pod_with_its_code(self) -> None:
        """BEY-07."""
        world = World(make_pod(("job", "helper")), {"job": [Runs(3)]}, StartRules(keystone="job")).run(10)

        assert world.log[3:] == ["3 job exits 0", "3 stop: completed", "3 helper exits 143", "3 Succeeded"]

    def test_too_many_restarts_end_the_pod(self) -> None:
        """BEY-09."""
        world = World(make_pod(), {"app": [FAILS]}, StartRules(most_restarts=2)).run(100)

        assert (world.log[-1].split()[1], len(world.starts())) == ("Failed", 3)

    def test_many_restarts_in_a_window_end_the_pod_and_the_same_number_over_a_long_time_does_not(self) -> None:
        """BEY-09."""
        rules = StartRules(most_restarts=2, restart_window_s=60)
        quick = World(make_pod(), {"app": [FAILS]}, rules).run(200)
        slow = World(make_pod(), {"app": [Runs(100, 1)]}, rules).run(1000)

        assert (quick.log[-1], len(quick.starts())) == ("13 Failed", 3)
        assert len(slow.starts()) > 5


def test_containers_start_when_what_they_need_is_there() -> None:
    """BEY-03, BEY-05: in any order of the list, independent ones at the same time."""
    needs = {"app": (Dependency("db", "ready"), Dependency("migrate", "completed")), "migrate": (Dependency("db"),)}
    world = World(
        make_pod(("app", "migrate", "db"), restartPolicy="OnFailure"), {"migrate": [Runs(5)]}, StartRules(needs=needs)
    )
    plan = world.run(8).settle()
    assert world.starts() == ["0 start db", "0 start migrate"]
    assert [(one.name, one.why) for one in plan.waiting] == [("app", "db to be ready")]
    world.memory = world.memory.changed("db", lambda one: replace(one, is_ready=True))
    world.settle()

    assert world.starts()[2:] == ["8 start app"]


def test_a_changed_definition_restarts_its_container_and_no_other() -> None:
    """MAN-11; resources alone change nothing."""
    world = World(make_pod(("app", "web")))
    world.settle()
    changed = [
        msgspec.structs.replace(one, args=("-v",))
        if one.name == "app"
        else container("web", resources={"limits": {"cpu": 1}})
        for one in world.pod.spec.containers
    ]
    world.pod = make_pod(changed)
    world.settle()

    assert world.log[3:] == ["0 end app", "0 app exits 143", "0 start app 1"]


@pytest.mark.parametrize("condition", ["started", "ready", "completed"])
def test_a_need_of_an_init_container_that_is_done_is_met(condition: str) -> None:
    """FP-12, BEY-05: it runs no more, and after a while no instance of it is left."""
    rules = StartRules(needs={"app": (Dependency("setup", condition),)})
    world = World(make_pod(("app",), ("setup",)), {"setup": [DONE], "app": [FAILS]}, rules)
    world.run(1)
    world.seen = replace(world.seen, instances=tuple(one for one in world.seen.instances if one.name == "app"))
    world.run(2)

    assert world.starts() == ["0 start setup", "1 start app", "2 start app 1"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize("code", [0, 143])
@pytest.mark.parametrize("name", ["app", "net", "setup"])
def test_a_changed_container_starts_again_whatever_the_policy_and_its_code_say(
    policy: str, code: int, name: str
) -> None:
    """FP-8, MAN-11: also an init container, which would count as failed or as done."""
    inits = ("setup", "+net") if name == "setup" else ("+net",)
    world = World(make_pod(("app", "web"), inits, restartPolicy=policy))
    world.obeys_with = code
    world.settle()
    before = len(world.log)
    change = {name: container(name, args=["-v"], **({"restartPolicy": "Always"} if name == "net" else {}))}
    world.pod = make_pod(
        tuple(change.get(one, one) for one in ("app", "web")),
        tuple(change.get(one.removeprefix("+"), one) for one in inits),
        restartPolicy=policy,
    )
    world.run(60)

    assert world.log[before:] == [f"0 end {name}", f"0 {name} exits {code}", f"0 start {name} 1"]


@pytest.mark.parametrize("cause", ["asked", "resize"])
def test_a_container_that_people_have_end_starts_again_whatever_the_policy_says(cause: str) -> None:
    """FP-8, BEY-11, RSZ-01; one that its probe ends does not."""
    for one, starts in ((cause, 2), ("liveness", 1)):
        world = World(make_pod(restartPolicy="Never"))
        world.settle()
        failing = Failing(instance=world.of("app").id, cause=one, message="because")
        world.remember("app", lambda known, failing=failing: replace(known, failing=failing))
        world.run(60)

        assert len(world.starts()) == starts, one


@pytest.mark.parametrize("rules", [StartRules(keystone="app"), StartRules(most_restarts=0)])
def test_a_change_is_neither_the_end_of_a_keystone_nor_one_restart_too_many(rules: StartRules) -> None:
    """FP-8, BEY-07, BEY-09."""
    world = World(make_pod(("app", "web")), rules=rules)
    world.settle()
    world.pod = make_pod((container("app", args=["-v"]), "web"))
    world.run(60)

    assert world.log[3:] == ["0 end app", "0 app exits 143", "0 start app 1"]


def test_a_container_that_was_taken_out_of_the_manifest_ends_and_no_other() -> None:
    """FP-7, MAN-11: and it is not started again."""
    world = World(make_pod(("app", "web")))
    world.settle()
    world.pod = make_pod(("app",))
    world.run(60)

    assert world.log[3:] == ["0 end web", "0 web exits 143"]
    assert [one.name for one in world.seen.running] == ["app"]


@pytest.mark.parametrize("name", ["setup", "net"])
def test_nothing_new_starts_beside_an_init_or_sidecar_that_was_taken_out(name: str) -> None:
    """FP-7: entries of the list never overlap, whoever leaves it."""
    more = {"restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}} if name == "net" else {}
    inits = (container(name, **more), "migrate")
    world = World(make_pod(("app",), inits), {"migrate": [Runs(5)]}, started=lambda name: name != "net")
    world.settle()
    world.pod = make_pod(("app",), ("migrate",))
    assert [str(step) for step in world.plan().steps] == [
        f"end {name} within 30 s: Container {name} is no longer in the manifest, will be ended"
    ]
    busy = plan_start(
        world.pod, world.seen, world.memory, world.now_s, world.rules, works=frozenset({EndingAlone(name)})
    )
    assert (busy.steps, [one.why for one in busy.waiting]) == ((), [f"{name} to end"])
    world.run(60)

    assert world.log[2:4] == [f"0 end {name}", f"0 {name} exits 143"]
    assert world.log[4:] == ["0 start migrate", "5 migrate exits 0", "5 start app"]


def test_a_container_in_the_place_of_one_that_was_taken_out_waits_for_its_end() -> None:
    """FP-7: a new name often comes with the old port; what runs already is not held up."""
    world = World(make_pod(("app", "web")))
    world.settle()
    world.exit(world.of("app").id, 1)
    world.pod = make_pod(("app", "api"))

    assert [str(step).split(" within")[0] for step in world.plan().steps] == ["end web", "start app, attempt 1"]
    world.run(60)
    assert world.log[4:] == ["0 end web", "0 web exits 143", "0 start app 1", "0 start api"]


def test_an_instance_found_running_whose_post_start_nobody_noted_is_gone_on_with() -> None:
    """HOK-12: kepd died between start and postStart."""
    world = World(make_pod(("app", "web")))
    world.settle()
    (web,) = (one for one in world.seen.instances if one.name == "web")
    world.memory = replace(world.memory, containers={"app": world.memory.of("app")})

    assert [str(step) for step in world.plan().steps] == ["go on with web"]
    assert world.of("web") == web


HOOK = {"lifecycle": {"postStart": {"exec": {"command": ["begin"]}}}}
PROBE = {"startupProbe": {"exec": {"command": ["true"]}}}
WHERE = {
    "before it is noted": HookPhase.NONE,
    "while it runs": HookPhase.RUNNING,
    "after an earlier version died while it ran": HookPhase.OK,
    "after its failure is noted": HookPhase.FAILED,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("is_sidecar", [True, False])
@pytest.mark.parametrize("has_probe", [True, False])
@pytest.mark.parametrize("deaths", [1, 2])
def test_wherever_kepd_died_around_a_post_start_the_pod_goes_on(
    where: str, is_sidecar: bool, has_probe: bool, deaths: int
) -> None:
    """FP-2, HOK-12: no hook runs twice, and no container ends because kepd did."""
    more = HOOK | (PROBE if has_probe else {}) | ({"restartPolicy": "Always"} if is_sidecar else {})
    hooked = container("hooked", **more)
    world = World(make_pod(("app",), (hooked,)) if is_sidecar else make_pod((hooked, "app")))
    for _ in range(2):
        for step in world.plan().steps:
            world.do(step)
    instance, phase = world.of("hooked"), WHERE[where]
    failing = Failing(instance=instance.id, cause="hook", message="") if phase is HookPhase.FAILED else None
    known = ContainerMemory(instance=instance.id, post_start=phase, failing=failing)
    world.memory = replace(world.memory, containers={"hooked": known}, passed=frozenset(), is_initialised=False)
    for _ in range(deaths):
        world.memory = resumed_memory(world.memory)
        plan = world.plan()
    is_ended = phase is HookPhase.FAILED
    # With a startup probe the old state is the right one of a container that is being probed.
    is_probed = has_probe and phase is HookPhase.OK

    wanted = "end hooked" if is_ended else "go on with hooked"
    assert [str(step)[: len(wanted)] for step in plan.steps if "hooked" in str(step)] == ([] if is_probed else [wanted])
    if is_probed:
        return
    world.run(60)
    assert world.memory.of("hooked").is_started
    assert "app" in {one.name for one in world.seen.running}
    assert world.of("hooked").attempt == int(is_ended)


def test_a_busy_container_is_left_alone() -> None:
    world = World(make_pod())
    world.settle()
    world.exit(world.of("app").id, 1)

    plan = plan_start(world.pod, world.seen, world.memory, 5.0, world.rules, works=frozenset({Launching("app")}))
    assert plan.steps == ()
