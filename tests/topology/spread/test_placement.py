# SPDX-License-Identifier: Apache-2.0
"""Taints, cordons and required node affinity."""

import pytest

from agent.model.nodes.node import NodeTerm, Taint, Toleration
from agent.model.selector import Requirement
from agent.topology.spread.placement import stand, tolerates
from tests.topology.builders import node, pod

TAINT = Taint("dedicated", "NoSchedule", "web")


@pytest.mark.parametrize(
    ("toleration", "matches"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("dedicated", "Exists", effect="NoSchedule"), True),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
        (Toleration("dedicated", "Equal", "web"), True),
        (Toleration("dedicated", "", "web"), True),
        (Toleration("dedicated", "Equal", "db"), False),
        (Toleration("other", "Equal", "web"), False),
        (Toleration("", "Equal", "web"), True),
        (Toleration("dedicated", "Gt", "1"), False),
        (Toleration("dedicated", "Lt", "web"), False),
    ],
)
def test_a_toleration_matches_by_effect_key_and_value(toleration, matches):
    """TOP-73: empty effect and key stand for any; Gt and Lt never tolerate."""
    assert tolerates(toleration, TAINT) is matches


def term(*requirements, fields=()):
    return NodeTerm(tuple(requirements), tuple(fields))


HAS_ZONE_A = Requirement("topology.kubernetes.io/zone", "In", ("a",))
BROKEN = Requirement("pool", "In", ())


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        (None, True),
        ((), False),
        ((term(),), False),
        ((term(HAS_ZONE_A),), True),
        ((term(HAS_ZONE_A, Requirement("pool", "Exists")),), False),
        ((term(Requirement("pool", "Exists")), term(HAS_ZONE_A)), True),
        ((term(BROKEN),), False),
        ((term(HAS_ZONE_A, BROKEN),), False),
        ((term(BROKEN), term(HAS_ZONE_A)), True),
        ((term(Requirement("pool", "NotIn", ("x y",))),), False),
        ((term(fields=[Requirement("metadata.name", "In", ("n",))]),), True),
        ((term(fields=[Requirement("metadata.name", "NotIn", ("n",))]),), False),
        ((term(fields=[Requirement("metadata.name", "In", ("n", "m"))]),), False),
        ((term(fields=[Requirement("metadata.name", "Exists")]),), False),
        ((term(HAS_ZONE_A, fields=[Requirement("metadata.name", "In", ("m",))]),), False),
    ],
)
def test_terms_are_alternatives_and_everything_in_one_must_hold(terms, matches):
    """TOP-72: an empty term selects nothing, a malformed one never matches, others still count."""
    assert stand(pod(required_terms=terms), node("n", "a")).matches_affinity is matches
