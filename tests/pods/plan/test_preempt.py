# SPDX-License-Identifier: Apache-2.0
"""Who ends for a critical pod. The choices are those of a kubelet's critical pod admission."""

from typing import Any

import pytest

from agent.pods.plan.admit import AskedResources, Capacity, Occupant, is_critical, plan_preemption
from tests.pods.pods import container, make_pod

MIB = 1 << 20
NODE = Capacity(milli_cpus=1000, memory_bytes=1000 * MIB, pods=6)
QUALITIES = {"e": "BestEffort", "b": "Burstable", "g": "Guaranteed"}
NODE_CRITICAL = {"priorityClassName": "system-node-critical"}


def there(text: str) -> list[Occupant]:
    """`b1:300/200` is a Burstable pod with 300m of CPU and 200 MiB; `!` after its name is critical, `-` ends."""
    found = []
    for word in text.split():
        name, _, figures = word.partition(":")
        cpu, _, memory = figures.partition("/")
        asked = AskedResources(milli_cpus=int(cpu or 0), memory_bytes=int(memory or 0) * MIB)
        quality = QUALITIES[name[0]]
        found.append(
            Occupant(
                uid=name.rstrip("!-"), asked=asked, qos=quality, is_critical="!" in name, is_ending=name.endswith("-")
            )
        )
    return found


def ended(occupants: str, cpu: int = 0, memory: int = 0, **spec: Any) -> str:
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    pod = make_pod([container("app", resources={"requests": requests})], **(spec or NODE_CRITICAL))
    return " ".join(plan_preemption(pod, there(occupants), NODE))


@pytest.mark.parametrize(
    ("occupants", "asked", "gone"),
    [
        # There is room.
        ("b1:500/100", (500, 0), ""),
        # The nearest to what is missing: 100 of 300.
        ("b1:300 b2:100 b3:600", (100, 0), "b2"),
        ("b1:300 b2:90 b3:610", (100, 0), "b1"),
        # One pod rather than two small ones.
        ("b1:300 b2:300 b3:400", (400, 0), "b3"),
        # Of two that come equally near, who asks for less: memory counts before CPU.
        ("b1:500/300 b2:500/200", (400, 0), "b2"),
        ("b1:600/200 b2:400/200", (400, 0), "b2"),
        # Burstable before Guaranteed, also where a Guaranteed pod would fit better.
        ("g1:200 b1:800", (200, 0), "b1"),
        ("g1:800 b1:200", (200, 0), "b1"),
        ("g1:800 b1:200", (300, 0), "g1"),
        ("g1:600 b1:400", (1000, 0), "b1 g1"),
        # A BestEffort pod has neither CPU nor memory to leave, only its place.
        ("e1 b1:1000", (100, 0), "b1"),
        ("e1 e2 e3 b1:1 b2:1 g1:1/1", (1, 0), "e1"),
        # Two resources at once.
        ("b1:500/0 b2:500/1000", (500, 500), "b2"),
        ("b1:1000/0 b2:0/1000", (500, 500), "b1 b2"),
        # Never a critical one, and none where it would not help.
        ("b1!:900 b2:100", (500, 0), ""),
        ("b1!:500 b2:500", (500, 0), "b2"),
        ("b1:1000", (1001, 0), ""),
        # Who ends already counts as gone.
        ("b1-:500 b2:500", (500, 0), ""),
        ("b1-:500 b2:500", (600, 0), "b2"),
    ],
)
def test_the_cheapest_set_of_pods_ends(occupants: str, asked: tuple[int, int], gone: str) -> None:
    """PRE-01."""
    assert ended(occupants, *asked) == gone


@pytest.mark.parametrize(
    ("spec", "critical"),
    [
        ({}, False),
        ({"priority": 1_999_999_999}, False),
        ({"priority": 2_000_000_000}, True),
        ({"priorityClassName": "system-cluster-critical"}, True),
        (NODE_CRITICAL, True),
        ({"priorityClassName": "another"}, False),
    ],
)
def test_pods_are_critical_by_their_priority(spec: dict[str, Any], critical: bool) -> None:
    """PRE-01."""
    assert is_critical(make_pod(**spec)) is critical
    assert ended("b1:1000", 1, **(spec or {"priority": 0})) == ("b1" if critical else "")
