# SPDX-License-Identifier: Apache-2.0
"""Explanations of hints: the rule, the numbers, what to change."""

import msgspec
import pytest

from agent.model.nodes.node import ZONE_LABEL
from agent.topology.explain.documents import NotThereError, explain_hints
from agent.topology.hints.mode import MODE_ANNOTATION
from agent.topology.hints.standalone import HintOptions
from agent.topology.manifest.objects import Document, read_manifests
from tests.topology.builders import node_manifest, service_manifest, slice_manifest

AUTO = {MODE_ANNOTATION: "Auto"}
TWO_TWO_FOUR = (node_manifest("n1", "a", "2"), node_manifest("n2", "b", "2"), node_manifest("n3", "c", "4"))


def explained(*contents, options=HintOptions(), name="default/web"):  # noqa: B008 - frozen
    manifests = read_manifests(Document(f"f.yaml:{number}", content) for number, content in enumerate(contents))
    return explain_hints(manifests, name, options)


def family(*contents, **more):
    return explained(*contents, **more).families[0]


def advice(explanation):
    return "\n".join(one.text for one in explanation.advice)


def test_four_endpoints_are_active():
    """Reference 2/2/4 with 1/1/2."""
    whole = explained(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("abcc"))

    assert whole.exit_code == 0
    assert whole.choice.why == f"{MODE_ANNOTATION}=Auto"
    assert whole.families[0].cause == "the minimums of 3 zones need 4 endpoints, 4 are ready"
    assert [(zone.final, zone.load, zone.uses_hints) for zone in whole.families[0].zones] == [
        (1, 1.0, True),
        (1, 1.0, True),
        (2, 1.0, True),
    ]
    assert whole.families[0].advice == ()


def test_five_endpoints_are_refused_with_numbers_and_the_nearest_that_activate():
    """Reference 2/2/4 with 1/2/2, TOP-91."""
    whole = explained(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("abbcc"))
    one = whole.families[0]

    assert whole.exit_code == 1
    assert (one.status.state, one.reason) == ("refused", "overload")
    assert one.cause == "minimums need 7 endpoints, 5 are ready (3 zones, 20 % limit)"
    assert [(zone.milli_cpu, zone.share, zone.want, zone.least, zone.have) for zone in one.zones] == [
        (2000, 0.25, 1.25, 2, 1),
        (2000, 0.25, 1.25, 2, 2),
        (4000, 0.5, 2.5, 3, 2),
    ]
    assert (one.nearest_lower, one.nearest_higher) == (4, 7)
    assert "run 4 or 7 ready endpoints; hints activate at 4, 7, 8, 9 and from 11 on" in advice(one)
    assert "PreferSameZone" in advice(one)
    assert not any(zone.uses_hints for zone in one.zones)


def test_ten_endpoints_over_equal_zones_show_their_load():
    """Reference 8/8/8 with 3/3/4: a and b carry 11 % more than an even share, which is not marked."""
    nodes = [node_manifest(f"n{zone}", zone, "8") for zone in "abc"]
    one = family(*nodes, service_manifest(annotations=AUTO), slice_manifest("aaabbbcccc"))

    assert [round(zone.load, 3) for zone in one.zones] == [1.111, 1.111, 0.833]
    assert not any(zone.is_overloaded for zone in one.zones)
    assert [(zone.give, zone.receive, zone.most) for zone in one.zones] == [(0, 0, 4)] * 3


def test_a_zone_left_without_a_hint_is_told_to_go_everywhere():
    """TOP-27, TOP-44, TOP-90."""
    nodes = [node_manifest("n1", "a", "97"), node_manifest("n2", "b", "3")]
    one = family(*nodes, service_manifest(annotations=AUTO), slice_manifest("a" * 14))

    assert [(zone.final, zone.uses_hints, zone.load) for zone in one.zones][1] == (0, False, None)
    assert one.document.overloaded_after is True


def test_an_overloaded_zone_is_marked():
    """TOP-90: more than 20 %."""
    nodes = [node_manifest("n1", "a", "4"), node_manifest("n2", "b", "4")]
    slices = slice_manifest("aaaab")
    for endpoint in slices["endpoints"]:
        endpoint["hints"] = {"forZones": [{"name": endpoint["zone"]}]}
    one = family(*nodes, service_manifest(annotations=AUTO), slices)

    assert [zone.is_overloaded for zone in one.zones] == [False, True]


def test_too_few_endpoints_show_the_number_of_zones():
    """TOP-91."""
    one = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("ab"))

    assert one.reason == "too-few-endpoints"
    assert "2 endpoints are ready and there are 3 zones" in one.cause
    assert "run 4 ready endpoints" in advice(one)


@pytest.mark.parametrize(
    ("nodes", "cause", "help_"),
    [
        (
            (*TWO_TWO_FOUR, node_manifest("n4", "", "2")),
            "n4: label topology.kubernetes.io/zone is missing or empty",
            f"label node n4: {ZONE_LABEL}=",
        ),
        ((*TWO_TWO_FOUR, node_manifest("n4", "a", "0")), "n4: status.allocatable.cpu is 0", "above zero"),
        (TWO_TWO_FOUR[:1], "there are 1 (a)", "at least two zones"),
        ((), "there are 0 (none)", "at least two zones"),
    ],
)
def test_insufficient_node_information_names_the_nodes(nodes, cause, help_):
    """TOP-54: kubernetes/kubernetes#103888, #119990."""
    one = family(*nodes, service_manifest(annotations=AUTO), slice_manifest("abbcc"))

    assert one.reason == "node-info"
    assert cause in one.cause
    assert help_ in advice(one)
    assert one.activating is None


def test_nodes_that_are_left_out_are_listed_with_the_cause():
    """TOP-90."""
    down = node_manifest("down", "c")
    down["status"]["conditions"][0]["status"] = "False"
    boss = node_manifest("boss", "b")
    boss["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    one = family(TWO_TWO_FOUR[0], down, boss, service_manifest(annotations=AUTO), slice_manifest("ab"))

    assert [(left.name, left.cause) for left in one.left_out] == [("down", "not-ready"), ("boss", "role-label")]
    assert "node down does not count" in advice(one)
    assert "node boss does not count" in advice(one)


def test_endpoints_without_a_zone_and_unready_ones_are_listed():
    """TOP-90, TOP-18."""
    slices = slice_manifest(["a", "b", None, "c"])
    slices["endpoints"][3]["conditions"]["ready"] = False
    nodes = (node_manifest("n1", "a", "1"), node_manifest("n2", "b", "2"))
    one = family(*nodes, service_manifest(annotations=AUTO), slices)

    assert one.reason == "endpoint-without-zone"
    assert one.without_zone == ("10.0.0.3",)
    assert one.unready == ("10.0.0.4",)
    assert "give endpoint 10.0.0.3 a zone" in advice(one)


def test_a_service_that_asks_for_nothing_is_told_how_to_ask():
    """TOP-92: mode none is exit code 1."""
    whole = explained(*TWO_TWO_FOUR, service_manifest(), slice_manifest("abcc"))

    assert whole.exit_code == 1
    assert whole.families[0].cause.startswith("the Service does not ask for hints")
    assert MODE_ANNOTATION in advice(whole.families[0])
    assert "PreferSameZone" in advice(whole.families[0])
    assert whole.families[0].document is None


@pytest.mark.parametrize(("zones", "code"), [("abbcc", 0), (["a", None], 1), ("", 1)])
def test_traffic_distribution_is_explained_without_capacity(zones, code):
    """TOP-34."""
    whole = explained(service_manifest(trafficDistribution="PreferSameZone"), slice_manifest(zones))

    assert whole.exit_code == code
    assert "PreferSameZone" in whole.families[0].cause


def test_each_family_has_its_own_verdict_and_one_refusal_decides_the_exit_code():
    """TOP-4, TOP-92."""
    whole = explained(
        *TWO_TWO_FOUR,
        service_manifest(annotations=AUTO),
        slice_manifest("abcc"),
        slice_manifest("abbcc", "web-2", family="IPv6"),
    )

    assert [(one.family, one.is_active) for one in whole.families] == [("IPv4", True), ("IPv6", False)]
    assert whole.exit_code == 1


def test_slices_of_one_family_are_taken_together():
    """TOP-11: n counts over all slices."""
    one = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("ab"), slice_manifest("cc", "web-2"))

    assert one.ready_count == 4
    assert one.is_active


def test_hints_that_are_written_down_are_said_to_be_used_as_written():
    """TOP-49: the document shows what a sync would make of them."""
    slices = slice_manifest("aabb")
    for endpoint, zone in zip(slices["endpoints"], "aabb", strict=True):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    one = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slices)

    assert (one.status.state, one.is_active) == ("manifest", True)
    assert one.document.rewritten == ("web-1",)
    assert one.document.received == {"c": 2}
    assert [zone.final for zone in one.zones] == [2, 2, 0]
    assert "remove the hints" in advice(one)


def test_written_hints_that_miss_an_endpoint_are_not_active():
    """TOP-42."""
    slices = slice_manifest("abcc")
    slices["endpoints"][0]["hints"] = {"forZones": [{"name": "a"}]}
    one = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slices)

    assert not one.is_active
    assert "switches them off everywhere" in one.cause


def test_mode_off_is_said_to_be_the_reason():
    """TOP-49."""
    one = family(
        *TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("abcc"), options=HintOptions(mode="off")
    )

    assert "services.hints.mode is off" in one.cause
    assert "compute" in advice(one)


def test_a_service_without_slices_is_not_active():
    """TOP-92."""
    whole = explained(*TWO_TWO_FOUR, service_manifest(annotations=AUTO))

    assert (whole.families, whole.exit_code) == ((), 1)


def test_what_was_filled_in_is_told():
    """TOP-48."""
    slices = slice_manifest([None, "b", "c", "c"])
    slices["endpoints"][0] |= {"nodeName": "n1", "conditions": {}}
    one = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slices)

    assert one.is_active
    assert "zone a taken from node n1" in one.notes[0].text


def test_json_has_the_fields_of_the_assign_vectors():
    """TOP-92: scripts read them."""
    active = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("abcc"))
    refused = family(*TWO_TWO_FOUR, service_manifest(annotations=AUTO), slice_manifest("abbcc"))
    document = msgspec.json.decode(msgspec.json.encode(active.document))

    assert set(document) == {
        "active", "reason", "event", "readyEndpoints", "milliCPU", "ratios", "minTotal", "zones", "planned", "kept",
        "rewritten", "hints", "perZone", "donated", "received", "overloadedAfter",
    }  # fmt: skip
    assert document["zones"]["c"] == {"min": 2, "max": 2, "desired": 2.0}
    assert "overloadedAfter" not in msgspec.json.decode(msgspec.json.encode(refused.document))


def test_the_namespace_may_be_left_out():
    """kubectl's habit."""
    assert explained(service_manifest(), name="web").service == "default/web"


def test_a_service_that_is_not_there_is_told_with_those_that_are():
    """Exit code 2 needs a line that helps."""
    with pytest.raises(
        NotThereError, match=r'no Service default/wbe; did you mean "default/web"\? \(there are: default/web\)'
    ):
        explained(service_manifest(), name="default/wbe")
