# SPDX-License-Identifier: Apache-2.0
"""Which of two annotations and one field decides."""

import pytest

from agent.topology.hints.mode import LEGACY_ANNOTATION, MODE_ANNOTATION, choose_mode, mode_findings


@pytest.mark.parametrize(
    ("annotations", "field", "mode"),
    [
        ({}, None, "none"),
        ({MODE_ANNOTATION: "Auto"}, None, "topology"),
        ({MODE_ANNOTATION: "auto"}, None, "topology"),
        ({LEGACY_ANNOTATION: "auto"}, None, "topology"),
        ({MODE_ANNOTATION: "AUTO"}, None, "none"),
        ({MODE_ANNOTATION: "PreferZone"}, None, "none"),
        ({MODE_ANNOTATION: "ProportionalZoneCPU"}, None, "none"),
        ({MODE_ANNOTATION: ""}, "PreferSameZone", "distribution"),
        ({LEGACY_ANNOTATION: "disabled", MODE_ANNOTATION: "Auto"}, None, "none"),
        ({LEGACY_ANNOTATION: "", MODE_ANNOTATION: "Auto"}, "PreferClose", "distribution"),
        ({LEGACY_ANNOTATION: "Auto", MODE_ANNOTATION: "Disabled"}, "PreferClose", "topology"),
        ({}, "PreferClose", "distribution"),
        ({}, "PreferSameNode", "distribution"),
        ({}, "preferclose", "none"),
        ({}, "", "none"),
    ],
)
def test_the_legacy_annotation_hides_the_new_one_and_either_beats_the_field(annotations, field, mode):
    """TOP-1, TOP-2: values are case-sensitive."""
    assert choose_mode(annotations, field).mode == mode


@pytest.mark.parametrize(
    ("annotations", "field", "words"),
    [
        ({}, None, ("neither",)),
        ({MODE_ANNOTATION: "Auto"}, None, (f"{MODE_ANNOTATION}=Auto",)),
        ({MODE_ANNOTATION: "Disabled"}, "PreferFar", ("'Disabled' is neither Auto nor auto", "'PreferFar' is none of")),
        ({LEGACY_ANNOTATION: "off"}, "PreferClose", ("PreferClose", "'off' is neither")),
    ],
)
def test_the_reason_names_what_was_read_and_what_was_passed_over(annotations, field, words):
    """TOP-90: mode and why."""
    why = choose_mode(annotations, field).why

    assert [word for word in words if word not in why] == []


def test_the_api_servers_complaints_are_told_as_findings():
    """TOP-3: a warning in manifests, not an error."""
    both = mode_findings("f", {LEGACY_ANNOTATION: "auto", MODE_ANNOTATION: "Auto"}, "PreferSameZon")

    assert [one.path for one in both] == [f"metadata.annotations[{LEGACY_ANNOTATION}]", "spec.trafficDistribution"]
    assert "wins" in both[0].text
    assert 'did you mean "PreferSameZone"' in both[1].text
    assert mode_findings("f", {MODE_ANNOTATION: "Auto"}, "PreferSameZone") == ()
    assert "deprecated" in mode_findings("f", {}, "PreferClose")[0].text
    assert "deprecated" in mode_findings("f", {LEGACY_ANNOTATION: "Auto"}, None)[0].text
