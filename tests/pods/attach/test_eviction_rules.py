# SPDX-License-Identifier: Apache-2.0
"""Thresholds as they are configured, and what is wrong with them."""

from typing import Any

import pytest

from agent.config.kinds import THRESHOLD, Wrong
from agent.config.sections.pods import PodEviction, Pods
from agent.pods.attach.settings import DEFAULT_HARD, eviction_rules
from agent.pods.plan.evict import EvictionRules
from agent.pods.settings import pods_faults

MI = 1 << 20


def rules(**given: Any) -> EvictionRules:
    found = eviction_rules(PodEviction(**given), has_kubelet=False)
    assert found is not None
    return found


def test_who_evicts() -> None:
    """EVN-01."""
    for mode, has_kubelet, is_on in (
        ("auto", False, True), ("auto", True, False), ("on", True, True), ("off", False, False),
    ):  # fmt: skip
        assert (eviction_rules(PodEviction(mode=mode), has_kubelet=has_kubelet) is not None) is is_on


def test_what_is_given_replaces_single_defaults() -> None:
    """EVN-03."""
    assert {one.signal for one in rules().thresholds} == set(DEFAULT_HARD)
    given = rules(
        hard={"memory.available": str(500 * MI), "imagefs.available": "0%"}, min_reclaim={"nodefs.available": "5%"}
    )
    known = {one.signal: one for one in given.thresholds}
    assert known["memory.available"].quantity == 500 * MI
    assert "imagefs.available" not in known
    assert (known["nodefs.available"].share, known["nodefs.available"].reclaim_share) == (0.1, 0.05)
    soft = rules(soft={"memory.available": str(MI)}, soft_grace={"memory.available": 90.0}).thresholds[-1]
    assert (soft.kind, soft.grace_s) == ("soft", 90.0)


@pytest.mark.parametrize(
    ("value", "read"),
    [("100Mi", str(100 * MI)), (5, "5"), ("10%", "10%"), ("0.5%", "0.5%"), ("100%", "100%"), ("0", "0")],
)
def test_a_threshold_is_an_amount_or_a_share(value: object, read: str) -> None:
    assert THRESHOLD.read(value) == read


@pytest.mark.parametrize("value", ["101%", "-1%", "%", "ten", "10 %", True, None, [], "1e3", "1.5Gi"])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(Wrong, match="is not a size or number"):
        THRESHOLD.read(value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"hard": {"memory.avaliable": "1"}}, "pods.eviction.hard: 'memory.avaliable' is no signal; did you mean"),
        ({"min_reclaim": {"disk": "1"}}, "pods.eviction.minReclaim: 'disk' is no signal"),
        ({"soft": {"nodefs.available": "5%"}}, "pods.eviction.soft.nodefs.available: has no grace"),
        (
            {"soft_grace": {"nodefs.available": 1.0}},
            "pods.eviction.softGrace.nodefs.available: belongs to no threshold",
        ),
        (
            {"min_reclaim": {"memory.available": str(2 * MI)}},
            "pods.eviction.minReclaim.memory.available: 2097152 bytes are more than the 1048576 that this node has",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(given: dict[str, Any], text: str) -> None:
    found = [str(one) for one in pods_faults(Pods(eviction=PodEviction(**given)), memory_bytes=MI)]
    assert len(found) == 1
    assert text in found[0]
