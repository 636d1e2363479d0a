# SPDX-License-Identifier: Apache-2.0
"""Who owns an address that several claim, and who has to be planned again."""

from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.service import ServiceKey
from agent.services.routes import desired as module
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from tests.services.making import make_service

EXTERNAL = "203.0.113.7"


def claimant(number: int, created: int, external: int = 0) -> object:
    spec = {"externalIPs": [EXTERNAL] if not external else [f"203.0.113.{external}"]}
    meta = {"creationTimestamp": f"2026-01-01T00:00:{created:02d}Z"}
    return make_service(f"s{number}", ip=f"10.96.{number // 250}.{number % 250 + 1}", meta=meta, **spec)


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=40)


@given(steps=STEPS)
def test_whoever_comes_and_goes_the_plans_are_those_of_a_fresh_start(steps: list[tuple[int, int, int, bool]]) -> None:
    """TY-19, FS-18."""
    desired = Desired("IPv4", NodeFacts(Place("node-a")))
    for number, created, external, stays in steps:
        if stays:
            desired.fold.put_service(claimant(number, created, external))  # type: ignore[arg-type]
        else:
            desired.fold.drop_service(ServiceKey("shop", f"s{number}"))
        desired.update()
    fresh = Desired("IPv4", desired.node, desired.fold)
    fresh.changed.update(desired.fold.services)
    fresh.update()

    assert {one.key: one for one in desired.plans()} == {one.key: one for one in fresh.plans()}
    for key in desired.fold.services:
        assert list(desired.conflicts(key)) == list(fresh.conflicts(key))


def test_a_newcomer_among_many_claimants_has_nobody_planned_again() -> None:
    """FS-18: 2 000 Services want one address."""
    desired = Desired("IPv4", NodeFacts(Place("node-a")))
    for number in range(2000):
        desired.fold.put_service(claimant(number, 1))  # type: ignore[arg-type]
    desired.update()
    planned = 0
    real = module.plan_service

    def counting(*arguments: object, **named: object) -> object:
        nonlocal planned
        planned += 1
        return real(*arguments, **named)  # type: ignore[arg-type]

    module.plan_service = counting  # type: ignore[assignment]
    try:
        desired.fold.put_service(claimant(2000, 2))  # type: ignore[arg-type]
        desired.update()
        after_newcomer = planned
        desired.fold.put_service(claimant(2001, 0))  # type: ignore[arg-type]
        fresh = desired.update()
    finally:
        module.plan_service = real

    assert after_newcomer == 1
    assert planned - after_newcomer == 2
    assert set(fresh) == {ServiceKey("shop", "s2001"), ServiceKey("shop", "s0")}
    (finding,) = desired.conflicts(ServiceKey("shop", "s1999"))
    assert "belongs to shop/s2001" in finding.text
