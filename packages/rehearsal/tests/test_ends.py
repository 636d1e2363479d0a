# SPDX-License-Identifier: Apache-2.0
"""Ends of pods by their specs: signals, kills, and what no program could keep."""

from typing import Any

import pytest

from agent.pods.plan.stop import LEAST_AFTER_SIGNAL_S
from kepd_rehearsal.effects.ends import PodsEnd, ends_of
from kepd_rehearsal.effects.told import Asked, told_of
from kepd_rehearsal.plan.changes import Change
from kepd_rehearsal.plan.rehearse import rehearse
from packages.rehearsal.tests.clusters import Object, cluster, deployment, node

WEB = {"default/web-1-0": ("default/web",), "default/web-1-1": ("default/web",)}
PROXY = {"name": "proxy", "restartPolicy": "Always"}


def app(**stop: Any) -> Object:
    return {"name": "app", "lifecycle": {"preStop": stop}} if stop else {"name": "app"}


def ends(*containers: Object, grace: int | None = 30, inits: tuple[Object, ...] = (), count: int = 1) -> list[PodsEnd]:
    made = deployment("web", ["n0"] * count)
    for one in made[2:]:
        one["spec"] = {**one["spec"], "containers": list(containers), "initContainers": list(inits)}
        if grace is not None:
            one["spec"]["terminationGracePeriodSeconds"] = grace
    return list(ends_of(cluster(node("n0", "a"), *made).members, WEB))


def signals(one: PodsEnd) -> dict[str, tuple[float, float, float]]:
    return {each.name: (each.signal_first_s, each.signal_last_s, each.killed_s) for each in one.containers}


def test_pods_of_one_template_are_one_row_and_others_another() -> None:
    (row,) = ends(app(), count=2)
    members = cluster(node("n0", "a"), *deployment("web", ["n0"]), *deployment("db", ["n0"])).members

    assert row.what == "Deployment default/web"
    assert row.pods == ("default/web-1-0", "default/web-1-1")
    assert [one.what for one in ends_of(members, {})] == ["Deployment default/db", "Deployment default/web"]


def test_a_sleep_moves_the_signal_and_not_the_kill() -> None:
    (row,) = ends(app(sleep={"seconds": 10}))

    assert signals(row) == {"app": (10, 10, 30)}
    assert (row.grace_s, row.killed_s, row.faults, row.late_s) == (30, 30, (), 0)


def test_grace_that_no_spec_names_is_that_of_kubernetes() -> None:
    (row,) = ends(app(), grace=None)

    assert (row.grace_s, signals(row)) == (30, {"app": (0, 0, 30)})


@pytest.mark.parametrize("seconds", [30, 31, 3600])
def test_a_sleep_as_long_as_the_grace_leaves_nothing(seconds: int) -> None:
    (row,) = ends(app(sleep={"seconds": seconds}))

    assert signals(row)["app"] == (30, 30, 30 + LEAST_AFTER_SIGNAL_S)
    assert any("app" in one and f"sleeps {seconds} s" in one for one in row.faults)


def test_a_sidecar_ends_after_mains_in_reverse_and_may_have_only_the_least() -> None:
    (row,) = ends(app(), inits=({**PROXY, "name": "first"}, {**PROXY, "name": "second"}, {"name": "setup"}))
    made = signals(row)

    assert made["app"] == (0, 0, 30)
    assert made["first"] == made["second"] == (0, 30, 32)
    assert [one.left_s for one in row.containers if one.is_sidecar] == [2, 2]
    assert row.faults == ()
    assert "first has 2 s if the others use up their grace" in row.remarks


def test_a_sidecar_that_sleeps_less_than_it_has_is_in_time() -> None:
    hooked = {**PROXY, "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}
    (row,) = ends(app(), inits=(hooked,))
    (late,) = ends(app(sleep={"seconds": 30}), inits=(PROXY,))

    assert (signals(row)["proxy"][0], row.faults) == (20, ())
    assert any("left for proxy" in one for one in late.faults)


@pytest.mark.parametrize("kind", ["exec", "httpGet"])
def test_a_hook_of_unknown_length_is_told_as_such(kind: str) -> None:
    (row,) = ends(app(**{kind: {}}))

    assert signals(row) == {"app": (0, 30, 32)}
    assert (row.faults, row.remarks[0]) == ((), f"preStop of app may take any time, {kind}")


def test_no_grace_is_a_fault() -> None:
    (row,) = ends(app(), grace=0)

    assert row.faults == ("grace 0: a kubelet makes 1 s of it",)
    assert row.killed_s == LEAST_AFTER_SIGNAL_S


def test_only_pods_behind_services_can_lose_new_connections() -> None:
    (now,) = ends(app())
    (later,) = ends(app(sleep={"seconds": 1}))
    (alone,) = ends_of(cluster(node("n0", "a"), *deployment("web", ["n0"])).members, {})

    assert (now.services, now.late_s) == (("default/web",), 1)
    assert "proxies may send new connections for up to 1 s after the signal" in now.remarks
    assert (later.late_s, alone.late_s) == (0, 0)


def test_another_signal_is_named() -> None:
    (row,) = ends({"name": "app", "lifecycle": {"stopSignal": "SIGUSR1"}})

    assert "app gets USR1 in the place of TERM" in row.remarks


@pytest.mark.parametrize(
    "container",
    [
        {"name": 7, "lifecycle": []},
        {"name": "a", "lifecycle": {"preStop": "x"}},
        {"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": "long"}}}},
        {"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 10**30}}}},
        {},
    ],
)
def test_a_spec_that_is_no_spec_ends_all_the_same(container: Object) -> None:
    (row,) = ends(container)

    assert len(row.containers) == 1


def test_containers_beyond_any_use_are_counted() -> None:
    (row,) = ends(*({"name": f"c{place}"} for place in range(103)))

    assert "3 more containers are not looked at" in row.remarks


def test_a_pod_that_waits_for_a_node_has_nothing_to_end() -> None:
    known = cluster(node("n0", "a"), *deployment("web", ["n0"]))
    _, fuller = rehearse(known, [Change("scale", "default/web", 500, 500)])
    (told,), after = rehearse(fuller, [Change("scale", "default/web", 0, 0)])
    (row,) = told_of(told, "scale", fuller, after, Asked()).ends
    placed = sum(bool(one.node) for one in fuller.members)

    assert len(told.ending) == 500
    assert len(row.pods) == placed < 500
