# SPDX-License-Identifier: Apache-2.0
"""What pressure means for pods that want to begin or to come back."""

from typing import Any

import pytest

from agent.pods.plan.scarcity.victims import ReturnState, refused_by, return_of
from tests.pods.pods import make_pod

TOLERATES = {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}


@pytest.mark.parametrize(
    ("conditions", "qos", "tolerations", "expected"),
    [
        ((), "BestEffort", None, ""),
        (("MemoryPressure",), "BestEffort", None, "Pod was rejected: The node had condition: [MemoryPressure]"),
        (("MemoryPressure",), "Burstable", None, ""),
        (("MemoryPressure",), "BestEffort", [TOLERATES], ""),
        (("MemoryPressure",), "BestEffort", [{"operator": "Exists"}], ""),
        (("MemoryPressure",), "BestEffort", [{**TOLERATES, "effect": "NoExecute"}], "MemoryPressure"),
        (("MemoryPressure",), "BestEffort", [{**TOLERATES, "operator": "Equal", "value": "x"}], "MemoryPressure"),
        (("MemoryPressure",), "BestEffort", "rubbish", "MemoryPressure"),
        (("DiskPressure", "MemoryPressure"), "Guaranteed", [TOLERATES], "[DiskPressure]"),
        (("PIDPressure",), "Guaranteed", None, "[PIDPressure]"),
    ],
)
def test_who_waits_while_the_node_is_short(conditions: Any, qos: str, tolerations: Any, expected: str) -> None:
    """EVN-10."""
    given = make_pod(tolerations=tolerations)
    refused = refused_by(conditions, given, qos, is_critical=False)
    assert expected in (refused.message if refused is not None else "")
    assert bool(refused) is bool(expected)
    assert refused is None or refused.reason == "NodeUnderPressure"
    assert refused_by(conditions, given, qos, is_critical=True) is None


def test_who_comes_back_waits_longer_each_time() -> None:
    """EVN-09."""
    assert return_of((), 0.0, 300.0) is ReturnState.MAY
    assert return_of((100.0,), 109.9, 300.0) is ReturnState.WAITS
    assert return_of((100.0,), 110.0, 300.0) is ReturnState.MAY
    assert return_of((100.0, 200.0), 219.9, 300.0) is ReturnState.WAITS
    assert return_of((100.0, 200.0), 215.0, 15.0) is ReturnState.MAY
    assert return_of((100.0, 200.0, 300.0), 3699.9, 300.0) is ReturnState.THRASHING
    assert return_of((100.0, 200.0, 300.0), 3700.0, 300.0) is ReturnState.MAY
