# SPDX-License-Identifier: Apache-2.0
"""Many endpoints, followed step by step, come to the same rules as if everything were planned anew."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.nft_table import Content
from agent.model.services.service import ServiceKey
from agent.services.nftables.mirror import Mirror
from agent.services.objects import fold, merged
from agent.services.objects.reading_slice import ReadSlice
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.frontends import ServicePlan
from agent.services.routes.selection import Place
from tests.services.making import make_service, make_slice
from tests.services.nftables.test_mirror import Kernel, sync

PORTS = [{"name": f"p{one}", "protocol": "TCP", "port": 80 + one} for one in range(2)]
PLAIN: list[dict[str, Any]] = [{}, {"nodeName": "a"}, {"nodeName": "b"}]
ODD: list[dict[str, Any]] = [
    {"conditions": {"ready": False}},
    {"conditions": {"ready": False, "serving": True, "terminating": True}},
    {"hints": {"forZones": [{"name": "z1"}]}},
]
SPECS: list[dict[str, Any]] = [
    {},
    {"internalTrafficPolicy": "Local"},
    {"sessionAffinity": "ClientIP"},
    {"meta": {"annotations": {"kepd.dev/endpoint-weights": "10.1.0.1=2,10.1.0.2=0"}}},
]
SLICE, NUMBER = st.sampled_from("ab"), st.integers(1, 12)
CHANGES = st.lists(
    st.tuples(st.just("put"), SLICE, NUMBER, st.sampled_from(PLAIN))
    | st.tuples(st.just("put"), SLICE, NUMBER, st.sampled_from([*PLAIN, *PLAIN, *ODD]))
    | st.tuples(st.just("drop"), SLICE, NUMBER, st.none())
    | st.tuples(st.sampled_from(["plan", "sync"]), st.none(), st.none(), st.none())
    | st.tuples(st.just("service"), st.none(), st.none(), st.sampled_from(SPECS)),
    max_size=30,
)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """As if few endpoints were many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "LEAST_FOLLOWED", 1)
        patch.setattr(merged, "MOST_FOLLOWED", 6)
        yield


@given(CHANGES)
def test_steps_come_to_what_a_fresh_plan_comes_to(changes: list[tuple[str, Any, Any, Any]]) -> None:
    """FS-17: some changes are planned together, some plans are refused, and all kinds of endpoints come between."""
    followed, mirror, kernel = Desired("IPv4", NodeFacts(Place("a", "z1"))), Mirror(), Kernel()
    planned: dict[ServiceKey, ServicePlan | None] = {}
    spec: dict[str, Any] = {}
    slices: dict[str, dict[int, dict[str, Any]]] = {"a": {key: {} for key in range(1, 7)}, "b": {}}
    start = [("service", None, None, {}), ("put", "a", 1, {}), ("sync", None, None, None)]
    for kind, name, number, what in [*start, *changes, start[-1]]:
        if kind == "service":
            spec = what
            followed.fold.put_service(make_service(ports=PORTS, **spec))
        elif kind in ("plan", "sync"):
            planned.update(followed.update())
        if kind == "sync":
            staged = mirror.stage(planned)
            kernel.apply(staged.batch)
            mirror.commit(staged)
            planned.clear()
            assert kernel.full() == mirror.content()
        elif kind in ("put", "drop"):
            slices[name].pop(number, None)
            slices[name].update({number: what} if kind == "put" else {})
            followed.fold.put_slice(_slice(name, slices[name]))
    fresh, again, anew = Desired("IPv4", NodeFacts(Place("a", "z1"))), Mirror(), Kernel()
    fresh.fold.put_service(make_service(ports=PORTS, **spec))
    for name, endpoints in slices.items():
        fresh.fold.put_slice(_slice(name, endpoints))
    sync(fresh, again, anew)

    assert _by_way(kernel.full()) == _by_way(anew.full())


def _slice(name: str, endpoints: dict[int, dict[str, Any]]) -> ReadSlice:
    return make_slice([{"ip": f"10.1.0.{one}", **what} for one, what in endpoints.items()], name=name, ports=PORTS)


def _by_way(content: Content) -> dict[str, object]:
    """Everything, but which endpoint has which number."""
    found: dict[str, object] = {}
    for name, items in content.items():
        if name.startswith(("eps", "np_eps")):
            found[name] = sorted((key[:-4], data) for key, data in items.items()), sorted(items)
        else:
            found[name] = items
    return found
