# SPDX-License-Identifier: Apache-2.0
"""What-ifs of the spread filter. What it decides without them is recorded of the scheduler, in tests/vectors."""

from agent.model.nodes.node import Taint
from agent.topology.spread.filter import AS_IT_IS, SpreadQuestion, WhatIf, evaluate_spread
from tests.topology.builders import constraint, node, pod, pods_on

ABC = (node("n1", "a"), node("n2", "b"), node("n3", "c"))
TAINT = Taint("dedicated", "NoSchedule", "x")


def ask(cluster, existing, *constraints, what_if=AS_IT_IS, **more):
    return evaluate_spread(SpreadQuestion(pod(constraints=constraints, **more), cluster, existing), what_if)


def test_what_if_honors_taints():
    """TOP-86."""
    cluster = (*ABC[:2], node("n3", "c", taints=(TAINT,)))

    assert ask(cluster, pods_on(n1=1, n2=1), constraint(), what_if=WhatIf(honors_taints=True)).candidates == (
        "n1",
        "n2",
    )


def test_what_if_takes_other_min_domains():
    """TOP-86."""
    result = ask(ABC, pods_on(n1=1, n2=1, n3=1), constraint(min_domains=5), what_if=WhatIf(min_domains=3))

    assert result.candidates == ("n1", "n2", "n3")


def test_what_if_drops_a_node():
    """TOP-86."""
    result = ask(ABC, pods_on(n1=1, n2=1), constraint(), what_if=WhatIf(dropped_nodes=frozenset({"n3"})))

    assert result.candidates == ("n1", "n2")
    assert [verdict.name for verdict in result.nodes] == ["n1", "n2"]


def test_what_if_ignores_dead_domains_for_the_minimum_but_not_for_their_number():
    """TOP-86: the proposal of KEP-5980."""
    cluster = (*ABC[:2], node("n3", "c", taints=(TAINT,)))
    result = ask(cluster, pods_on(n1=1, n2=1), constraint(min_domains=3), what_if=WhatIf(ignores_dead_domains=True))

    assert result.constraints[0].dead == {"c"}
    assert (result.constraints[0].global_min, len(result.constraints[0].domains)) == (1, 3)
    assert result.candidates == ("n1", "n2")
