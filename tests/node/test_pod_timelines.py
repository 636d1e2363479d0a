# SPDX-License-Identifier: Apache-2.0
"""The worked timelines of pods' ends on real containers, measured from inside the containers.

The recorded timelines are in seconds of virtual time (tests/vectors); here the same shapes run in a few real seconds.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import (
    Actor,
    Stage,
    assert_timeline,
    check_kill,
    check_time,
    played_up_to_three_times,
    pods_daemon,
    uptime_s,
)

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port) as daemon:
        yield daemon


@pytest.fixture
def stage(kepd: Kepd, lab: Lab) -> Stage:
    return Stage(kepd, lab.push(Image(name="node/timelines")))


@played_up_to_three_times
def test_a_sleep_shares_the_budget(stage: Stage) -> None:
    """TL-01: the signal comes when the hook ends."""
    stage.begin([Actor("app", on_term=1, hook={"sleep": {"seconds": 2}})], terminationGracePeriodSeconds=10)
    stage.remove()
    stage.wait_gone()

    assert_timeline(stage.timeline("app"), {"app": [("term", 2), ("exit", "app.term+1")]})


@played_up_to_three_times
def test_sidecars_end_one_by_one_in_reverse(stage: Stage) -> None:
    """TL-02."""
    stage.begin([Actor("app", 1)], [Actor("net", 0.5), Actor("log", 1)])
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "log", "net"),
        {
            "app": [("term", 0), ("exit", "app.term+1")],
            "log": [("term", "app.exit"), ("exit", "log.term+1")],
            "net": [("term", "log.exit"), ("exit", "net.term+0.5")],
        },
    )


@played_up_to_three_times
def test_a_sidecars_hook_runs_at_once_and_its_signal_waits(stage: Stage) -> None:
    """TL-03, with exec hooks that write when they run."""
    stage.begin([Actor("app", 1, hook_script="sleep 2")], [Actor("net", 0.5, hook_script="sleep 1")])
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "net"),
        {
            "app": [("hook", 0), ("hookend", "app.hook+2"), ("term", "app.hookend"), ("exit", "app.term+1")],
            "net": [("hook", 0), ("hookend", "net.hook+1"), ("term", "app.exit"), ("exit", "net.term+0.5")],
        },
    )


@played_up_to_three_times
def test_a_hung_hook_costs_the_budget_and_two_seconds(stage: Stage) -> None:
    """TL-04, TRM-07: not twice the budget."""
    stage.begin([Actor("app", None, hook_script="sleep 1000")], terminationGracePeriodSeconds=2)
    stage.remove()
    stage.wait_gone()

    assert_timeline(stage.timeline("app"), {"app": [("hook", 0), ("term", 2)]})
    check_kill(4, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_at_the_deadline_order_is_lost(stage: Stage) -> None:
    """TL-05, TRM-14."""
    stage.begin([Actor("app", None)], [Actor("net", 0.5), Actor("log", 0.5)], terminationGracePeriodSeconds=3)
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "log", "net"),
        {
            "app": [("term", 0)],
            "log": [("term", 3), ("exit", "log.term+0.5")],
            "net": [("term", 3), ("exit", "net.term+0.5")],
        },
    )
    check_kill(3, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_a_deaf_sidecar_starves_the_one_before_it(stage: Stage) -> None:
    """TL-06."""
    stage.begin([Actor("app", 0.5)], [Actor("net", 0.5), Actor("log", None)], terminationGracePeriodSeconds=3)
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "log", "net"),
        {
            "app": [("term", 0), ("exit", "app.term+0.5")],
            "log": [("term", "app.exit")],
            "net": [("term", 3), ("exit", "net.term+0.5")],
        },
    )
    check_kill(3, stage.killed_s("log"), "the kill of log")


@played_up_to_three_times
def test_a_main_hook_that_eats_the_budget(stage: Stage) -> None:
    """TL-07."""
    stage.begin([Actor("app", None, hook_script="sleep 1000")], [Actor("net", 0.5)], terminationGracePeriodSeconds=2)
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "net"),
        {"app": [("hook", 0), ("term", 2)], "net": [("term", 2), ("exit", "net.term+0.5")]},
    )
    check_kill(4, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_grace_zero_is_force(stage: Stage) -> None:
    """TL-08, TRM-20: no hook, no signal."""
    stage.begin([Actor("app", None, hook={"sleep": {"seconds": 0}})], terminationGracePeriodSeconds=0)
    stage.remove()
    stage.wait_gone()

    assert stage.timeline("app") == {"app": []}
    check_kill(0, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_a_container_that_dies_during_its_sleep_frees_the_others(stage: Stage) -> None:
    """TL-09, TRM-09."""
    app = Actor("app", 1, hook={"sleep": {"seconds": 20}}, dies_after=4)
    stage.begin([app], [Actor("net", 0.5)], terminationGracePeriodSeconds=30, restartPolicy="Always")
    began_s = stage.lines("app")[0][1]
    stage.remove()
    stage.wait_gone()

    died_s = began_s + 4 - stage.ended_s
    assert_timeline(
        stage.timeline("app", "net"),
        {"app": [("exit", died_s)], "net": [("term", "app.exit"), ("exit", "net.term+0.5")]},
    )


@played_up_to_three_times
def test_a_sidecar_that_crashes_during_the_end_is_restarted(stage: Stage) -> None:
    """TL-10, TRM-15."""
    stage.begin([Actor("app", 5)], [Actor("net", 0.5, dies_after=3)], terminationGracePeriodSeconds=30)
    began_s = stage.lines("net")[0][1]
    stage.remove()
    stage.wait_gone()

    died_s = began_s + 3 - stage.ended_s
    actual = stage.timeline("app", "net")
    assert_timeline({"app": actual["app"]}, {"app": [("term", 0), ("exit", "app.term+5")]})
    assert [event for event, _ in actual["net"]] == ["exit", "start", "term", "exit"]
    assert actual["net"][1][1] >= died_s
    check_time(died_s, max(actual["net"][1][1] - 0.7, died_s), "its restart")
    check_time(actual["app"][1][1], actual["net"][2][1], "its signal")


@played_up_to_three_times
def test_deleted_during_initialisation_sidecars_wait_for_the_init(stage: Stage) -> None:
    """TL-11, TRM-16."""
    setup = Actor("setup", 1).container(stage.image, stage.out)
    net = Actor("net", 0.5).container(stage.image, stage.out, is_sidecar=True)
    stage.write([Actor("app", 0)], initContainers=[net, setup])
    stage.wait(lambda: stage.lines("setup"), "the init runs")
    stage.remove()
    stage.wait_gone()

    assert_timeline(
        stage.timeline("setup", "net"),
        {"setup": [("term", 0), ("exit", "setup.term+1")], "net": [("term", "setup.exit"), ("exit", "net.term+0.5")]},
    )
    assert stage.lines("app") == []


@played_up_to_three_times
def test_a_job_ends_its_sidecars_and_stays_as_a_record(stage: Stage) -> None:
    """TL-12, CMP-02, CMP-06: also after kepd was killed."""
    job = Actor(
        "job",
        0,
        more={
            "command": ["sh", "-c", 'NAME=job; read now rest < /proc/uptime; echo "start $now" >> /out/job; sleep 2']
        },
    )
    stage.begin([job], [Actor("net", 0.5), Actor("log", 1)], restartPolicy="OnFailure")
    done_s = stage.lines("job")[0][1] + 2
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Succeeded", "it succeeded")
    stage.ended_s = done_s
    assert_timeline(
        stage.timeline("log", "net"),
        {"log": [("term", 0), ("exit", "log.term+1")], "net": [("term", "log.exit"), ("exit", "net.term+0.5")]},
    )

    stage.kepd.end(signal.SIGKILL)
    stage.kepd.start("--planes", "pods").wait_ready()
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Succeeded", "it is still so")
    assert [event for event, _ in stage.lines("job")] == ["start"]


@played_up_to_three_times
def test_a_later_delete_with_less_grace_counts_at_once(stage: Stage) -> None:
    """TL-13, TRM-22: for the hook, the signal and the kill."""
    stage.begin([Actor("app", None, hook={"sleep": {"seconds": 20}})], terminationGracePeriodSeconds=40)
    stage.remove()
    stage.wait(lambda: "preStop" in str(stage.kepd.json("timeline", stage.name)), "the hook runs")
    asked_s = stage.delete(2)
    stage.wait_gone()

    assert_timeline(stage.timeline("app"), {"app": [("term", asked_s + 2)]})
    check_kill(asked_s + 4, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_a_deadline_is_no_whole_second(stage: Stage) -> None:
    """TL-14, TRM-17: what a hook took is taken from the budget to the hundredth."""
    stage.begin([Actor("app", None, hook_script="sleep 1.9")], terminationGracePeriodSeconds=4)
    stage.remove()
    stage.wait_gone()

    assert_timeline(stage.timeline("app"), {"app": [("hook", 0), ("hookend", "app.hook+1.9"), ("term", "app.hookend")]})
    check_kill(4, stage.killed_s("app"), "the kill of app")


@played_up_to_three_times
def test_kepd_dies_while_a_pod_ends_and_the_budget_goes_on(stage: Stage) -> None:
    """TRM-31: order kept, deadline honoured, no second signal, no second hook."""
    stage.begin([Actor("app", None, hook_script="sleep 1")], [Actor("net", 0.5)], terminationGracePeriodSeconds=5)
    stage.remove()
    stage.wait(lambda: "term" in [event for event, _ in stage.lines("app")], "it is signalled")
    stage.kepd.end(signal.SIGKILL)
    stage.kepd.start("--planes", "pods")
    took_s = stage.wait_gone()

    assert_timeline(
        stage.timeline("app", "net"),
        {
            "app": [("hook", 0), ("hookend", "app.hook+1"), ("term", "app.hookend")],
            "net": [("term", 5), ("exit", "net.term+0.5")],
        },
    )
    assert took_s <= 5.5 + 2


@played_up_to_three_times
def test_kepd_dies_during_a_sleep_and_only_the_rest_of_it_is_slept(stage: Stage) -> None:
    """HOK-12."""
    stage.begin([Actor("app", 0.5, hook={"sleep": {"seconds": 4}})], terminationGracePeriodSeconds=20)
    stage.remove()
    while uptime_s() < stage.ended_s + 1:
        stage.pod()
    stage.kepd.end(signal.SIGKILL)
    stage.kepd.start("--planes", "pods")
    stage.wait_gone()

    assert_timeline(stage.timeline("app"), {"app": [("term", 4), ("exit", "app.term+0.5")]})


@played_up_to_three_times
def test_containerd_restarts_while_a_pod_ends(stage: Stage, lab: Lab) -> None:
    """TRM-19: the remaining budget, and the order."""
    stage.begin([Actor("app", 4)], [Actor("net", 0.5)], terminationGracePeriodSeconds=20)
    stage.remove()
    stage.wait(lambda: "term" in [event for event, _ in stage.lines("app")], "it is signalled")
    lab.containerd.kill()
    lab.containerd.start()
    stage.wait_gone()

    actual = stage.timeline("app", "net")
    assert [event for event, _ in actual["app"]] == ["term", "exit"]
    assert [event for event, _ in actual["net"]] == ["term", "exit"]
    assert actual["net"][0][1] >= actual["app"][1][1]
