# SPDX-License-Identifier: Apache-2.0
"""SVN-120 to SVN-124: which endpoints are checked when, and what the answers mean, beside a plain model."""

import random
from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.check import Asked, Outcome
from agent.model.services.service import Backend, PortKey, ServiceKey
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.merged import Endpoints
from agent.services.outage.judged import judged, targets_of
from agent.services.outage.judgement import SOON_S, Judgement, Pace
from agent.services.routes.selection import Place, Use, select
from tests.services.making import make_service, make_slice

TICK_S = 0.1


def target(number: int, protocol: str = "TCP") -> Asked:
    return Asked(protocol, number.to_bytes(4, "big") + b"\x1f\x90\0\0")  # type: ignore[arg-type]


def watched(count: int, *, pace: Pace | None = None, nodes: int = 5, seed: int = 1) -> Judgement:
    made = Judgement(pace or Pace(), 0.0, random.Random(seed).random)
    made.follow({target(one): f"n{one % nodes}" for one in range(count)}, 0.0)
    return made


def run(one: Judgement, answer: dict[Asked, Outcome], begin_s: float, end_s: float) -> list[tuple[float, Asked]]:
    """Everybody else answers at once. Returns who was asked when."""
    asked = []
    for at in range(round(begin_s / TICK_S), round(end_s / TICK_S)):
        now_s = at * TICK_S
        for found in list(one.due(now_s)):
            asked.append((now_s, found))
            one.take(found, answer.get(found, "open"), now_s)
    return asked


def test_who_does_not_answer_is_dead_within_three_seconds_and_alive_again_as_fast() -> None:
    """SVN-120: of a hundred endpoints."""
    one = watched(100)
    run(one, {}, 0.0, 5.0)
    assert one.dead == set()
    lost: dict[Asked, Outcome] = {target(number): "refused" for number in range(30)}
    run(one, lost, 5.0, 8.0)
    assert one.dead == lost.keys()
    run(one, {}, 8.0, 11.0)

    assert one.dead == set()


@pytest.mark.parametrize("nodes", [1, 7, 400])
@pytest.mark.parametrize("kind", ["open", "refused", "silent"])
def test_no_second_has_more_checks_than_the_bound(nodes: int, kind: Outcome) -> None:
    """SVN-121: whatever is answered, and half of it for one node."""
    one = watched(3000, nodes=nodes)
    asked = run(one, {target(number): kind for number in range(3000)}, 0.0, 40.0)
    moments = [now_s for now_s, _ in asked]
    assert most_in_a_second(moments) <= 200 + 20
    for node in range(min(nodes, 7)):
        its = [now_s for now_s, found in asked if int.from_bytes(found.data[:4], "big") % nodes == node]
        assert most_in_a_second(its) <= 100 + 10


def most_in_a_second(moments: list[float]) -> int:
    window, most = deque[float](), 0
    for now_s in moments:
        window.append(now_s)
        while now_s - window[0] >= 1.0:
            window.popleft()
        most = max(most, len(window))
    return most


@pytest.mark.parametrize("node", [lambda _: "", lambda port: f"n{port}"])
def test_one_address_gets_no_more_whatever_its_endpoints_say_of_nodes(node: Callable[[int], str]) -> None:
    """SVN-121: thousands of ports at one address, without a node or each at another."""
    one = Judgement(Pace(), 0.0, random.Random(1).random)
    ports = range(1, 3001)
    one.follow(
        {Asked("TCP", bytes((10, 1, 0, 1)) + port.to_bytes(2, "big") + bytes(2)): node(port) for port in ports}, 0.0
    )
    asked = [now_s for now_s, _ in run(one, {}, 0.0, 20.0)]

    assert most_in_a_second(asked) <= 100 + 10


def test_another_pace_holds_at_once() -> None:
    """SVN-121: who turns it down does so while it disturbs."""
    one = watched(1000)
    assert len(run(one, {}, 0.0, 10.0)) > 1000
    one.set_pace(Pace(per_s=10.0))

    assert len(run(one, {}, 10.0, 20.0)) <= 10 * 10 + 1


def test_an_endpoint_that_moves_counts_for_its_new_node() -> None:
    """SVN-121."""
    one = watched(1)
    one.follow({target(0): "elsewhere"}, 1.0)

    assert {found for _, found in run(one, {}, 1.0, 5.0)} == {target(0)}


def test_a_round_comes_to_everybody_and_no_two_rounds_fall_together() -> None:
    """SVN-121."""
    one = watched(2000)
    asked = run(one, {}, 0.0, 30.0)
    counts = Counter(found for _, found in asked)
    assert len(counts) == 2000
    assert max(counts.values()) - min(counts.values()) <= 2
    at_once = Counter(now_s for now_s, _ in asked)

    assert max(at_once.values()) <= 21


def test_many_nodes_ask_one_endpoint_no_faster_than_few() -> None:
    """SVN-121."""
    one = watched(1000, nodes=1000)

    assert one.round_s >= 1000 / 50


@given(st.lists(st.sampled_from(["open", "refused", "unreachable", "silent", "unknown"]), max_size=30))
def test_verdicts_are_those_of_a_plain_model(answers: list[Outcome]) -> None:
    """SVN-120: dead after two failures in a row, alive after two answers; `unknown` counts for nothing."""
    one = watched(1)
    is_dead, last = False, list[bool]()
    for at, outcome in enumerate(answers):
        changed = one.take(target(0), outcome, float(at))
        if outcome != "unknown":
            last = [*last, outcome == "open"][-2:]
        before = is_dead
        if len(last) == 2 and last[0] == last[1]:
            is_dead = not last[0]
        assert (target(0) in one.dead) is is_dead
        assert changed is (before is not is_dead)


@pytest.mark.parametrize(
    ("answers", "is_dead"),
    [
        (["silent", "silent", "silent"], False),
        (["refused", "refused"], True),
        (["refused", "refused", "silent", "silent"], False),
        (["answered", "silent", "silent"], True),
        (["answered", "silent", "silent", "silent", "silent"], True),
        (["answered", "silent", "silent", "answered", "answered"], False),
    ],
)
def test_silence_by_udp_speaks_against_those_alone_that_have_answered(answers: list[Outcome], is_dead: bool) -> None:
    """SVN-122."""
    one = Judgement(Pace(), 0.0, lambda: 0.5)
    asked = target(1, "UDP")
    one.follow({asked: "n"}, 0.0)
    for at, outcome in enumerate(answers):
        one.take(asked, outcome, float(at))

    assert (asked in one.dead) is is_dead


def test_silence_by_udp_speaks_against_a_host_that_says_nothing_by_tcp_either() -> None:
    """SVN-122: and no longer once it does."""
    one = Judgement(Pace(), 0.0, lambda: 0.5)
    plain, other = target(1), target(1, "UDP")
    one.follow({plain: "n", other: "n"}, 0.0)
    for outcome, dead in (("silent", {plain, other}), ("open", set()), ("refused", {plain})):
        for at in range(3):
            one.take(plain, outcome, float(at))  # type: ignore[arg-type]
            one.take(other, "silent", float(at))
        for at in range(2):
            one.take(other, "silent", float(at))
        assert one.dead == dead


def test_one_failure_is_asked_again_soon() -> None:
    """SVN-120."""
    one = watched(1)
    list(one.due(2.0))
    one.take(target(0), "refused", 2.0)
    assert list(one.due(2.0 + SOON_S - 0.01)) == []

    assert list(one.due(2.0 + SOON_S)) == [target(0)]


def test_who_is_no_endpoint_any_more_is_forgotten() -> None:
    """SVN-123."""
    one = watched(2)
    for _ in range(2):
        one.take(target(0), "refused", 1.0)
    assert one.follow({target(1): "n1"}, 2.0) == {target(0)}
    assert one.dead == set()
    assert one.take(target(0), "refused", 3.0) is False

    assert {found for _, found in run(one, {}, 3.0, 6.0)} == {target(1)}


ENDS = st.lists(
    st.builds(
        lambda number, node, ready, terminating, zone: Backend(
            f"10.0.0.{number}:80", bytes((10, 0, 0, number, 0, 80, 0, 0)), node, ready, ready or terminating,
            terminating, zone,
        ),
        st.integers(1, 200), st.sampled_from(["here", "there"]), st.booleans(), st.booleans(),
        st.sampled_from([(), ("a",), ("b",)]),
    ),
    min_size=1, max_size=8, unique_by=lambda one: one.key,
)  # fmt: skip


@given(ENDS, st.data(), st.booleans(), st.booleans())
def test_no_judgement_empties_a_service_or_brings_back_what_the_api_took(
    ends: list[Backend], data: st.DataObject, has_cluster: bool, has_local: bool
) -> None:
    """SVN-123, SVN-124: and while one lives, only living ones get traffic of its list."""
    dead = {Asked("TCP", one.data) for one in ends if data.draw(st.booleans())}
    use, place = Use(has_cluster, has_local or not has_cluster), Place("here", "a")
    whole = tuple(sorted(ends, key=lambda one: one.key))
    plain = select(whole, use, place)
    found = select(judged(Endpoints(whole), "TCP", dead).whole, use, place)
    ready = {one.key for one in whole if one.is_ready}
    usable = ready | {one.key for one in whole if one.is_serving and one.is_terminating}

    for before, after in ((plain.cluster, found.cluster), (plain.local, found.local)):
        assert bool(before) is bool(after)
        assert {one.key for one in after or ()} <= usable
    living = {one.key for one in whole if one.is_ready and ("TCP", one.data) not in dead}
    if living and use.cluster:
        assert {one.key for one in found.cluster or ()} <= living
    if not dead:
        assert found == plain


def test_only_what_may_get_traffic_of_a_named_port_is_checked() -> None:
    """SVN-121."""
    fold = ServiceIndex()
    ports = [{"name": "http", "protocol": "TCP", "port": 80}, {"name": "x", "protocol": "SCTP", "port": 90}]
    fold.put_service(make_service("web", ports=ports))
    offered = [
        {"name": "http", "protocol": "TCP", "port": 8080},
        {"name": "x", "protocol": "SCTP", "port": 9090},
        {"name": "metrics", "protocol": "TCP", "port": 9100},
    ]
    ends = [{"ip": "10.1.0.1", "nodeName": "n1"}, {"ip": "10.1.0.2", "conditions": {"ready": False}}]
    fold.put_slice(make_slice(ends, ports=offered))
    found = list(targets_of(fold, ServiceKey("shop", "web"), ("IPv4", "IPv6")))

    assert found == [(Asked("TCP", bytes((10, 1, 0, 1, 0x1F, 0x90, 0, 0))), "n1")]
    assert len(fold.backends(ServiceKey("shop", "web"), "IPv4", PortKey("http", "TCP"))) == 2
    assert list(targets_of(fold, ServiceKey("shop", "other"), ("IPv4",))) == []
