# SPDX-License-Identifier: Apache-2.0
"""Two samples as what people see, and who waits for the second (LIV-01)."""

import asyncio
from pathlib import Path

import pytest

from agent.model.nodes.usage_report import Stalls
from agent.observe.run.usage import UsageAnswers
from agent.observe.sample.node_sample import NodeSample
from agent.observe.sample.rates import Rates, rate
from agent.observe.view.usage import usage_report
from tests.observe.samples import container, figures, pod, sample
from tests.observe.test_collector import Observed


def two(**later: int) -> tuple[NodeSample, NodeSample]:
    first = container(figures=figures(cpu_ns=0, periods=0, throttled_periods=0))
    before = sample(pod(containers=(first,)), taken_s=10.0)
    second = container(figures=figures(**later), attempt=2, ooms=1)
    after = sample(pod(containers=(second,), created_at_s=7.0), taken_s=12.0)
    return before, after


def test_rates_are_of_the_time_between_two_looks() -> None:
    before, after = two(cpu_ns=500_000_000, periods=20, throttled_periods=5)
    report = usage_report(before, after, "n1", disk_share=0.5, with_readings=True)
    (found,) = report.pods
    (one,) = found.containers

    assert report.window_s == 2.0
    assert one.usage.cpu_cores == 0.25
    assert one.usage.throttled == 0.25
    assert (one.usage.cpu_limit_cores, one.usage.memory_bytes, one.usage.memory_limit_bytes) == (0.2, 7000, 64 << 20)
    assert one.usage.stalls == Stalls(cpu=5.0, memory=5.0, io=5.0)
    assert (one.restarts, one.ooms, found.restarts, found.ooms, found.created_at_s) == (2, 1, 2, 1, 7.0)
    assert (report.node.processors, report.node.pods, report.node.disk_share) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("before", "after", "seconds", "expected"),
    [(None, 1, 1.0, None), (1, None, 1.0, None), (5, 4, 1.0, None), (1, 2, 0.0, None), (1, 3, 2.0, 1.0)],
)
def test_a_rate_that_cannot_be_is_none(before: int | None, after: int | None, seconds: float, expected: float) -> None:
    assert rate(before, after, seconds) == expected


def test_another_instance_has_no_rate_yet() -> None:
    before, _ = two()
    after = sample(pod(containers=(container(id="another"),)), taken_s=12.0)

    assert Rates(before, after).of_container(after.pods[0].containers[0]) is None


def test_a_pod_without_a_group_is_the_sum_of_its_containers() -> None:
    """CMX-06."""
    before = sample(pod(figures=None, containers=(container(figures=figures(cpu_ns=0)),)), taken_s=10.0)
    after = sample(pod(figures=None, containers=(container(figures=figures(cpu_ns=10**9)),)), taken_s=12.0)

    assert Rates(before, after).of_pod(after.pods[0]) == 0.5


async def test_a_first_question_waits_for_its_second_look_and_the_next_does_not(tmp_path: Path) -> None:
    """LIV-01."""
    observed = Observed(tmp_path)
    observed.runtime.add_pod("web")
    answers = UsageAnswers(observed.collector, observed.clock, lambda: "n1", lambda: None)
    asking = asyncio.create_task(answers.usage(with_readings=True))
    await asyncio.sleep(0.3)
    assert not asking.done()
    await observed.later(1.0)
    first = await asking
    await observed.later(2.0)
    second = await answers.usage()
    third = await answers.usage()
    observed.close()

    assert (first.window_s, second.window_s, third.window_s) == (1.0, 2.0, 2.0)
    readings = {one.name: (one.value, one.path) for one in first.pods[0].containers[0].readings}
    assert readings["cpuacct.usage"] == ("5653327258", "/sys/fs/cgroup/cpuacct/kepd/pod-web/c-web-main-0/cpuacct.usage")


async def test_a_watch_has_the_rates_of_its_interval(tmp_path: Path) -> None:
    observed = Observed(tmp_path)
    observed.runtime.add_pod("web")
    watch = UsageAnswers(observed.collector, observed.clock, lambda: "n1", lambda: None).watch(3.0)
    windows = []
    for seconds in (1.0, 3.0, 3.0):
        asking = asyncio.create_task(anext(watch))
        await asyncio.sleep(0.2)
        await observed.later(seconds)
        windows.append((await asking).window_s)
    await watch.aclose()  # type: ignore[attr-defined]
    observed.close()

    assert windows == [1.0, 3.0, 3.0]
