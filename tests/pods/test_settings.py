# SPDX-License-Identifier: Apache-2.0
"""Values of the section `pods` that are wrong only together."""

from agent.config.sections.pods import Pods, PodShutdown
from agent.pods.settings import pods_faults


def faults(*groups: tuple[int, float]) -> list[str]:
    pairs = tuple((("priority", priority), ("period", period)) for priority, period in groups)
    return [str(one) for one in pods_faults(Pods(shutdown=PodShutdown(groups=pairs)))]


def test_groups_differ_in_priority_and_have_time() -> None:
    """NSD-01."""
    assert faults() == faults((0, 20), (5, 1)) == []
    assert faults((0, 20), (5, 1), (0, 3)) == [
        "pods.shutdown.groups[2]: priority 0 is already that of groups[0]; expected one group per priority"
    ]
    assert faults((0, 0)) == [
        "pods.shutdown.groups[0]: period 0s would kill its pods at once; expected a second or more, or no group"
    ]


def test_memory_qos_needs_version_two() -> None:
    """RES-08."""
    text = "true has no effect with control groups of version 1, which this node has; expected false, or version 2"

    assert list(pods_faults(Pods(memory_qos=True))) == list(pods_faults(Pods(), is_legacy=True)) == []
    assert [str(one) for one in pods_faults(Pods(memory_qos=True), is_legacy=True)] == [f"pods.memoryQos: {text}"]
