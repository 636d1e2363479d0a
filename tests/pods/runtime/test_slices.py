# SPDX-License-Identifier: Apache-2.0
"""What systemd is asked for, from what is wanted of groups."""

import pytest

from agent.model.nodes.control_group import GroupShape
from agent.pods.runtime.pod_group import GroupPlan, LevelNeeds, PodLimits, WriteLimit, wanted_group
from agent.pods.runtime.slices import NO_LIMIT, slices_in, slices_of, units_of, whole_percents

POD = "/kepd.slice/kepd-burstable.slice/kepd-burstable-podu1.slice"
NEEDS = LevelNeeds(burstable_milli=2)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (1, ("CPUShares", "CPUQuotaPerSecUSec", "MemoryLimit", "TasksMax")),
        (2, ("CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "TasksMax")),
    ],
)
def test_each_limit_has_its_property(version: int, names: tuple[str, ...]) -> None:
    """RES-09: in both versions of control groups; what systemd has no word for stays a file."""
    shape = GroupShape(
        version=version, controllers=frozenset({"cpu", "memory", "pids", "hugetlb"}), hugepage_bytes=(2 << 20,),
        has_cpu_burst=True,
    )  # fmt: skip
    limits = PodLimits(cpu_shares=2, cpu_quota_us=150_000, memory_bytes=1 << 20, pids=7, hugepages=(("2MB", 0),))
    level, pod = slices_of(wanted_group(limits, POD, shape, NEEDS))

    assert level.unit == "kepd-burstable.slice"
    assert [name for name, _ in level.properties] == [names[0]]
    assert pod.unit == "kepd-burstable-podu1.slice"
    assert [name for name, _ in pod.properties] == list(names)
    assert [value for _, value in pod.properties][1:] == [1_500_000, 1 << 20, 7]


def test_no_limit_is_said_as_well() -> None:
    """RES-09: a limit that is taken away in place."""
    for version in (1, 2):
        *_, pod = slices_of(wanted_group(PodLimits(), POD, GroupShape(version=version), NEEDS))
        assert [value for _, value in pod.properties][1:] == [NO_LIMIT] * 3


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (1000, 1000), (1001, 2000), (15_500, 16_000), (150_000, 150_000)])
def test_a_share_of_the_processor_is_a_whole_number_of_percent_and_no_less_than_allowed(given: int, kept: int) -> None:
    """RES-09."""
    assert whole_percents(PodLimits(cpu_quota_us=given)).cpu_quota_us == kept


def test_units_are_known_by_their_files_and_groups() -> None:
    plan = GroupPlan((WriteLimit(f"cpu{POD}/cpu.shares", "2"), WriteLimit(f"{POD[1:]}/pids.max", "max")))

    assert units_of(plan) == {"kepd-burstable-podu1.slice"}
    assert slices_in([POD, "/kepd/besteffort/podu2"]) == ["kepd-burstable-podu1.slice"]
