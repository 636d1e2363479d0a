# SPDX-License-Identifier: Apache-2.0
"""Which devices a pod gets; what recorded cases do not show: bounds, reasons, and that nothing else would have done."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kepd_devices.cel.program import Program, program
from kepd_devices.manifest.objects import Allocation, ClaimStatus, DeviceAllocation, Result, Slice
from kepd_devices.plan import wanted
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.reasons import CannotAllocate
from kepd_devices.plan.results import allocations, share_id
from kepd_devices.plan.search import MOST_TRIED, Question, search
from packages.devices.tests.offered import ANY, DRIVER, NODE, claim, device, question, slice_of, wish

BIG = 'device.attributes["gpu.example.com"].size == "big"'
SIZES = ("big", "small")


def names(asked: Question) -> list[list[str]] | None:
    answer = search(asked)
    return [[one.offer.id.device for one in given] for given in answer.given] if answer.given is not None else None


def test_a_request_that_is_choosy_comes_second_and_gets_its_device() -> None:
    """DVA-10: the first request gives way."""
    slices = [slice_of(device("a", size="big"), device("b", size="small"))]

    assert names(question(slices, claim(one=wish(), two=wish(BIG)))) == [["b", "a"]]


def test_the_deepest_point_is_told_with_its_reasons_counted() -> None:
    """DVX-1, DVX-2."""
    slices = [slice_of(device("a", size="big"), device("b", size="small"), device("c", size="big"))]
    has_a = slices[0].spec.driver
    results = [{"driver": has_a, "pool": "here", "device": "a"}]
    status = msgspec.convert({"allocation": {"devices": {"results": results}}}, ClaimStatus)
    held = replace(claim("other", r=wish()), status=status)
    answer = search(question(slices, claim(gpu=wish(BIG, count=2)), existing=(held,)))

    assert answer.given is None
    assert str(answer.stuck) == "1 of 2 for default/c/gpu: 1 in-use default/other, 1 request-selector 0"
    none = search(question(slices, claim(gpu=wish("false")), existing=(held,)))
    assert str(none.stuck) == "0 of 1 for default/c/gpu: 2 request-selector 0, 1 in-use default/other"


def test_a_search_gives_up_by_count_and_says_so() -> None:
    """DVA-16."""
    slices = [slice_of(*(device(f"d{number}", size=str(number)) for number in range(30)))]
    bond = ({"matchAttribute": "gpu.example.com/none"},)
    asked = claim(a=wish(count=15), b=wish("false"), constraints=())
    with pytest.raises(CannotAllocate, match=f"too many combinations: {MOST_TRIED} devices"):
        search(question(slices, asked))
    assert names(question(slices, claim(a=wish(count=15), constraints=bond))) is None


STEPS = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, a + b > 0))"


def test_selectors_have_an_allowance_for_all_devices_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """NP-4: counted, also where a verdict is remembered, so that the answer depends on the question alone."""
    slices = [slice_of(*(device(f"d{number}") for number in range(9)))]
    one = program(STEPS).judge(Offer(slices[0], slices[0].spec.devices[0]).seen(takes_lists=False)).steps  # type: ignore[index]
    monkeypatch.setattr(wanted, "MOST_STEPS", 5 * one)

    assert names(question(slices, claim(gpu=wish(STEPS, count=5)))) is not None
    for _ in range(2):
        with pytest.raises(CannotAllocate, match=f"claim default/c: .* take more than {5 * one} steps"):
            search(question(slices, claim(gpu=wish(STEPS, count=6))))


def test_a_verdict_is_remembered_while_the_device_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """NP-4: a pod that waits asks again and again."""
    asked: list[str] = []

    def counted(text: str) -> Program:
        asked.append(text)
        return program(text)

    monkeypatch.setattr(wanted, "program", counted)
    expression = "device.driver != 'remembered'"
    slices = [slice_of(device("a"), device("b"))]
    for _ in range(3):
        assert names(question(slices, claim(gpu=wish(expression, count=2)))) == [["a", "b"]]
    assert asked == [expression] * 2
    renewed = [slice_of(device("a"), device("b"))]

    assert names(question(renewed, claim(gpu=wish(expression, count=2)))) == [["a", "b"]]
    assert asked == [expression] * 4


def test_an_error_names_the_device_and_what_to_ask_first() -> None:
    """DVA-22."""
    slices = [slice_of(device("a"), device("b", size="big"))]
    with pytest.raises(CannotAllocate) as refused:
        search(question(slices, claim(gpu=wish(BIG))))

    told = str(refused.value)
    assert "claim default/c: selector 0 fails for device gpu.example.com/here/a: no such key: size" in told
    assert '"size" in device.attributes' in told


def test_devices_that_somebody_has_to_bind_are_not_given() -> None:
    """DVA-34."""
    bound = {**device("a"), "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    answer = search(question([slice_of(bound)], claim(gpu=wish())))

    assert str(answer.stuck) == "0 of 1 for default/c/gpu: 1 binding"


def counted(slots: int, *sets: str, **devices: tuple[int, str]) -> list[Slice]:
    """Devices that consume so many slots of a set, and have a size; the sets are in a slice of their own."""
    listed = [
        {**device(name, size=size), "consumesCounters": [{"counterSet": "s", "counters": {"n": {"value": str(many)}}}]}
        for name, (many, size) in devices.items()
    ]
    given = [{"name": one, "counters": {"n": {"value": str(slots)}}} for one in sets]
    pool = {"name": "here", "generation": 1, "resourceSliceCount": 2}
    both = slice_of(pool="p", sharedCounters=given), slice_of(*listed)
    return [
        replace(one, spec=replace(one.spec, pool=msgspec.convert(pool, type(one.spec.pool)), devices=devices_))
        for one, devices_ in zip(both, (None, both[1].spec.devices), strict=True)
    ]


def test_counters_of_a_device_that_gives_way_are_free_again() -> None:
    """DVA-102: a partition that takes all gives way to one that leaves room."""
    slices = counted(2, "s", whole=(2, "big"), half=(1, "small"), other=(1, "last"))
    last = 'device.attributes["gpu.example.com"].size == "last"'

    assert names(question(slices, claim(one=wish(), two=wish(last)))) == [["half", "other"]]


def test_a_counter_set_that_stands_twice_spoils_its_pool() -> None:
    """DVA-33."""
    slices = counted(2, "s", "s", a=(1, "big"))
    with pytest.raises(CannotAllocate, match="is invalid: counter set s stands twice"):
        search(question(slices, claim(one=wish())))


def test_a_share_has_the_same_id_whenever_it_is_asked_for() -> None:
    """DVA-90: a kepd that was killed gives no second share."""
    shared = {**device("a", capacity={"memory": {"value": "10Gi"}}), "allowMultipleAllocations": True}
    asked = question([slice_of(shared)], claim(gpu=wish(capacity={"requests": {"memory": "4Gi"}})))
    first, second = (allocations(search(asked), "here") for _ in range(2))

    assert first == second
    assert first[0]["devices"]["results"][0]["shareID"] == share_id(asked.claims[0], "gpu", 0)
    assert share_id(asked.claims[0], "gpu", 1) != share_id(asked.claims[0], "gpu", 0)


@given(
    sizes=st.lists(st.sampled_from(SIZES), max_size=5),
    wanted=st.lists(st.tuples(st.sampled_from((None, *SIZES)), st.integers(1, 2)), min_size=1, max_size=3),
    must_match=st.booleans(),
)
def test_if_anything_fits_something_is_found_and_it_fits(
    sizes: list[str], wanted: list[tuple[str | None, int]], must_match: bool
) -> None:
    """DVA-10, DVA-40: compared with trying everything."""
    expression = 'device.attributes["gpu.example.com"].size == "{}"'
    requests = {
        f"r{number}": wish(*((expression.format(size),) if size else ()), count=count)
        for number, (size, count) in enumerate(wanted)
    }
    bond = ({"matchAttribute": "gpu.example.com/size"},) if must_match else ()
    devices = [device(f"d{number}", size=size) for number, size in enumerate(sizes)]
    flat = [size for size, count in wanted for _ in range(count)]

    def fits(order: tuple[int, ...]) -> bool:
        taken = [sizes[one] for one in order]
        is_alike = not must_match or len(set(taken)) == 1
        return is_alike and all(size in (None, have) for size, have in zip(flat, taken, strict=True))

    found = names(question([slice_of(*devices)] if devices else [], claim(constraints=bond, **requests)))
    possible = [order for order in permutations(range(len(sizes)), len(flat)) if fits(order)]
    assert (found is not None) == bool(possible)
    if found is not None:
        assert tuple(int(one[1:]) for one in found[0]) in possible


def test_a_class_that_is_not_there_is_an_error_of_the_claim() -> None:
    asked = Question(node=NODE, slices=(), classes={}, claims=(claim(gpu=wish()),))
    with pytest.raises(CannotAllocate, match="claim default/c, request gpu: DeviceClass any is not there"):
        search(asked)
    assert names(question([], claim())) == [[]]
    assert set(ANY) == {"any"}


def test_a_combination_that_ends_too_soon_tells_of_the_devices_before_its_last() -> None:
    """DVX-2."""
    held = Result(request="r", driver=DRIVER, pool="here", device="a")
    allocation = Allocation(devices=DeviceAllocation(results=(held,)))
    other = msgspec.structs.replace(claim("other"), status=ClaimStatus(allocation=allocation))
    answer = search(question([slice_of(device("a"), device("b"))], claim(r=wish(count=2)), existing=(other,)))

    assert str(answer.stuck) == "1 of 2 for default/c/r: 1 in-use default/other"


def test_a_pod_may_have_as_many_devices_as_claims_can_ask_for() -> None:
    """64 claims of 32 devices: more than calls can lie in each other."""
    slices = [slice_of(*(device(f"d{pool}-{n}") for n in range(128)), pool=f"p{pool:02}") for pool in range(16)]
    found = names(question(slices, *(claim(f"c{number}", a=wish(count=32)) for number in range(64))))

    assert found is not None
    assert len({one for given in found for one in given}) == 2048
