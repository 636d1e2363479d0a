# SPDX-License-Identifier: Apache-2.0
"""Dumps with anything at any place: they are read, with words about what is wrong, or they are not; nothing fails."""

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.topology.manifest.objects import Document
from kepd_rehearsal.plan.advice import advise, parse_goal
from kepd_rehearsal.plan.assumed import with_assumed
from kepd_rehearsal.plan.changes import BadChange, Change, parse_add_node, parse_traffic
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import rehearse
from kepd_rehearsal.run.clusters.shedding import shed_dump
from packages.rehearsal.tests.clusters import SIX, budget, deployment, documents, service
from packages.rehearsal.tests.test_slices import slices_of

Object = dict[str, Any]
JUNK = (
    None, 0, -1, 1.5, True, "", "x", "\x1b[31m", [], {}, [1], {"a": 1}, "9" * 30, ["a"], [{}], 10**20, "1e9999", "100%",
    "-5%",
)  # fmt: skip
CHANGES = (
    Change("drain", "n0"),
    Change("lose-zone", "a"),
    Change("scale", "default/web", 9, 9),
    Change("roll", "default/web"),
    Change("roll", "default/web", value="x:1"),
    parse_add_node("LIKE=n0,zone=c"),
    parse_traffic("web=Local"),
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def whole() -> Object:
    items = [*SIX, *deployment("web", ["n0", "n1"]), service("web"), budget("web", minAvailable=2)]
    items = copy.deepcopy([*items, slices_of("web", ["n0", "n1"], ["a", "b"])])
    chosen = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    liked = {"weight": 3, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    for one in items:
        if one["kind"] == "Pod":
            near = {"podAntiAffinity": {REQUIRED: [chosen]}}
            one["spec"]["affinity"] = {**near, "nodeAffinity": {REQUIRED.replace("required", "preferred"): [liked]}}
            one["spec"] |= {"overhead": {"cpu": "1m"}, "resources": {"requests": {"cpu": "1"}}}
    return {"apiVersion": "v1", "kind": "List", "items": items}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[name], (*path, name))


def spoilt(seed: int) -> Object:
    dice, made = random.Random(seed), whole()
    for _ in range(dice.choice((1, 1, 2, 3))):
        *way, last = dice.choice(list(places(made)))
        holder: Any = made
        for name in way:
            holder = holder[name]
        if isinstance(holder, dict) and dice.random() < 0.15:
            del holder[last]
        else:
            holder[last] = dice.choice(JUNK)
    return made


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_in_a_dump_makes_a_rehearsal_fail(seed: int) -> None:
    document = Document("dump", shed_dump(json.dumps(spoilt(seed)).encode()))
    reading = read_cluster([document])
    if reading.errors:
        return
    known, _ = with_assumed(reading.cluster, [document])
    for change in CHANGES:
        with suppress(BadChange):
            rehearse(known, [change])
    advise(known, parse_goal("hints"), "hints")


@pytest.mark.parametrize("value", [[], "x", True, -1, "-5%", 1.5])
def test_a_budget_of_no_number_is_refused(value: object) -> None:
    (error,) = read_cluster(documents(*SIX, budget("web", minAvailable=value))).errors

    assert "minAvailable" in str(error)
    assert "expected a number of pods or a percentage" in error.text
