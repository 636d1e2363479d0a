# SPDX-License-Identifier: Apache-2.0
import msgspec

from kepd_devices.manifest.objects import Allocation, Claim, ClaimStatus
from kepd_devices.plan.search import Question
from kepd_devices.view.explained import Explanation, existing_in, explain
from packages.devices.tests.offered import claim, device, question, slice_of, wish

TAINT = [{"key": "broken", "value": "yes", "effect": "NoSchedule"}]


def reasons(found: Explanation, place: int = 0) -> dict[str, str]:
    return {one.device.device: str(one.reason) for one in found.claims[0].requests[place].verdicts}


def held(*devices: str, name: str = "other") -> Claim:
    results = [{"request": "r", "driver": "gpu.example.com", "pool": "here", "device": one} for one in devices]
    allocation = msgspec.convert({"devices": {"results": results}}, Allocation)
    return msgspec.structs.replace(claim(name), status=ClaimStatus(allocation=allocation))


def test_each_device_has_one_reason() -> None:
    """DVX-1."""
    devices = [device("a", n=1), device("b", n=2), {**device("c", n=2), "taints": TAINT}, device("d", n=2)]
    asked = claim(r=wish("device.attributes['gpu.example.com'].n == 2"))
    found = explain(question([slice_of(*devices)], asked, existing=(held("b"),)))

    assert reasons(found) == {
        "a": "request-selector 0", "b": "in-use default/other", "c": "taint broken=yes:NoSchedule", "d": "chosen",
    }  # fmt: skip
    assert (found.outcome, found.end) == ("allocated", "1 of 1 devices, after 4 were tried")


def test_a_device_that_fits_as_well_is_not_needed() -> None:
    """DVX-1."""
    found = explain(question([slice_of(device("a"), device("b"))], claim(r=wish())))

    assert reasons(found) == {"a": "chosen", "b": "not-needed"}


def test_a_failure_tells_where_the_search_ended_and_what_would_have_to_change() -> None:
    """DVX-2."""
    found = explain(question([slice_of(device("a"), device("b"))], claim(r=wish()), existing=(held("a", "b"),)))

    assert found.outcome == "waits"
    assert found.end == "0 of 1 for default/c/r: 2 in-use default/other"
    assert found.changes == ("for 2 devices, the pods of default/other would have to end",)


def test_slices_that_do_not_count_tell_why() -> None:
    """DVX-1."""
    slices = [
        msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name=name))
        for name, one in (
            ("1", slice_of(device("old"), pool="p")),
            ("2", _generation(slice_of(device("new"), pool="p"), 2)),
            ("3", slice_of(device("far"), pool="q", nodeName="there")),
            ("4", _count(slice_of(device("half"), pool="r"), 2)),
            ("5", slice_of(device("twin"), device("twin"), pool="s")),
        )
    ]
    found = explain(question(slices, claim(r=wish())))

    assert reasons(found) == {
        "old": "old-generation", "new": "chosen", "far": "other-node", "half": "pool-incomplete 1/2",
        "twin": "pool-invalid device twin stands twice",
    }  # fmt: skip


def _generation(one, number):
    pool = msgspec.structs.replace(one.spec.pool, generation=number)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, pool=pool))


def _count(one, number):
    pool = msgspec.structs.replace(one.spec.pool, resource_slice_count=number)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, pool=pool))


def test_an_expression_that_fails_is_told_at_its_device() -> None:
    """DVX-1."""
    asked = claim(r=wish("device.attributes['gpu.example.com'].n == 2"))
    found = explain(question([slice_of(device("a"), device("b", n=2))], asked))

    assert found.outcome == "error"
    assert reasons(found)["a"].startswith("selector-error claim default/c: selector 0 fails for device")
    assert "no such key: n" in found.end


def test_a_constraint_keeps_devices_away() -> None:
    """DVX-1."""
    devices = [device("a", numa=0), device("b", numa=1), device("c", numa=0)]
    asked = claim(constraints=({"matchAttribute": "gpu.example.com/numa"},), one=wish(), two=wish())
    found = explain(question([slice_of(*devices)], asked))

    assert reasons(found, 1) == {
        "a": "in-use a claim of this pod", "b": "constraint 0 gpu.example.com/numa wants 0, has 1", "c": "chosen",
    }  # fmt: skip


def test_explaining_says_the_same_again_and_changes_nothing() -> None:
    """DVX-3."""

    def ask() -> Question:
        return question([slice_of(device("a"), device("b"))], claim(r=wish(count=3)), existing=(held("a"),))

    asked = ask()
    first, again = explain(asked), explain(asked)

    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert asked == ask()


def test_a_claim_holds_its_devices_against_others_alone() -> None:
    mine, other = held("a", name="c"), held("b")

    assert existing_in((mine, other, claim("free")), (mine,)) == (other,)
