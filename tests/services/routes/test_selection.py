# SPDX-License-Identifier: Apache-2.0
"""What the vectors of real kube-proxy do not have: our ordered fallback, and the words of an explanation."""

from agent.model.services.service import Backend, ServiceOptions
from agent.services.routes.selection import Place, Use, select
from agent.services.view.explain import Reasons, explain_hints

LABELS = {
    "here": {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"},
    "near": {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"},
    "far": {"topology.kubernetes.io/zone": "z2", "topology.kubernetes.io/region": "r1"},
    "away": {"topology.kubernetes.io/zone": "z9", "topology.kubernetes.io/region": "r9"},
}
PLACE = Place("here", "z1", LABELS)
KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "*")
CLUSTER = Use(cluster=True, local=False)


def backend(number: int, node: str, **fields: object) -> Backend:
    return Backend(f"10.1.0.{number}:80", bytes([10, 1, 0, number, 0, 80, 0, 0]), node, **fields)  # type: ignore[arg-type]


HERE, NEAR, FAR, AWAY = (backend(number, node) for number, node in enumerate(LABELS, 1))


def chosen(*backends: Backend, **options: object) -> tuple[list[str], str]:
    found = select(backends, CLUSTER, PLACE, ServiceOptions(topology_keys=KEYS, **options))  # type: ignore[arg-type]
    return [one.node for one in found.cluster or ()], found.level


def test_the_nearest_level_that_has_anybody_wins() -> None:
    """SEL-20: node, zone, region, any."""
    assert chosen(HERE, NEAR, FAR, AWAY) == (["here"], "kubernetes.io/hostname")
    assert chosen(NEAR, FAR, AWAY) == (["near"], "topology.kubernetes.io/zone")
    assert chosen(FAR, AWAY) == (["far"], "topology.kubernetes.io/region")
    assert chosen(AWAY) == (["away"], "*")


def test_a_level_with_too_few_does_not_count() -> None:
    """SEL-22."""
    assert chosen(HERE, NEAR, FAR, min_endpoints=2) == (["here", "near"], "topology.kubernetes.io/zone")


def test_a_list_without_any_is_empty_where_nobody_is_near() -> None:
    """SEL-20: then traffic is dropped, as with a Local policy."""
    found = select((AWAY,), CLUSTER, PLACE, ServiceOptions(topology_keys=KEYS[:-1]))

    assert (found.cluster, found.has_any) == ((), True)


def test_one_endpoint_without_a_hint_is_named_as_the_reason() -> None:
    """SEL-24: this is what people search for hours."""
    hinted, bare = backend(1, "here", zones=("z1",)), backend(2, "far")
    selection = select((hinted, bare), CLUSTER, PLACE)

    assert list(explain_hints(selection, PLACE)) == [
        "zone hints are ignored: 1 ready endpoints have none, for instance 10.1.0.2:80"
    ]


def test_where_hints_do_not_count_the_explanation_says_so() -> None:
    """SEL-24, SEL-20: topology keys and a Local policy come before hints."""
    hinted = backend(1, "here", zones=("z1",))
    by_keys = select((hinted,), CLUSTER, PLACE, ServiceOptions(topology_keys=KEYS))
    local = select((hinted,), Use(cluster=False, local=True), PLACE)

    assert list(explain_hints(by_keys, PLACE)) == ["hints do not count: the Service has topology keys"]
    assert list(explain_hints(local, PLACE)) == ["hints do not count: traffic stays on this node"]


def test_whoever_is_used_by_the_last_key_shares_nothing_with_this_node() -> None:
    """SEL-20, SEL-24."""
    near, away = (select((one,), CLUSTER, PLACE, ServiceOptions(topology_keys=KEYS)) for one in (NEAR, AWAY))

    assert Reasons(near, PLACE).of(NEAR).text == "it shares topology.kubernetes.io/zone with this node"
    assert Reasons(away, PLACE).of(AWAY).text == "no key before * matches"


def test_each_endpoint_has_a_reason() -> None:
    """FS-25: from the selection and the endpoint in question alone."""
    mine, other = backend(1, "here", zones=("z1",)), backend(2, "far", zones=("z2",))
    sick = backend(3, "near", is_ready=False)
    everyone = (mine, other, sick)
    selection = select(everyone, CLUSTER, PLACE)
    told = [Reasons(selection, PLACE).of(one) for one in everyone]

    assert told[0].text == "its hint names this zone"
    assert told[1].text == "its hint names other zones (z2), this is z1"
    assert told[2].text == "it is not ready, and others are ready"


def test_all_unready_are_used_where_the_service_asks_for_it() -> None:
    """Not those on their way out, and only while none is ready and none that ends still serves."""
    bad, end = ([backend(number, "here", is_ready=False, is_serving=False, is_terminating=ends) for number in numbers]
                for numbers, ends in (((1, 2), False), ((3,), True)))  # fmt: skip
    both = Use(cluster=True, local=True)
    for others, options, wanted in ((end, True, bad), ((), False, []), ([AWAY], True, [AWAY])):
        found = select([*bad, *others], both, PLACE, ServiceOptions(uses_unready=options))
        assert list(found.everyone) == wanted
        assert found.last_resort == ("" if others == [AWAY] else "unready" if options else "terminating")
