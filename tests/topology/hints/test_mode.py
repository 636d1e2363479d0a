# SPDX-License-Identifier: Apache-2.0
"""Which of two annotations and one field decides."""

from agent.topology.hints.mode import LEGACY_ANNOTATION, MODE_ANNOTATION, mode_findings


def test_the_api_servers_complaints_are_told_as_findings():
    """TOP-3: a warning in manifests, not an error."""
    both = mode_findings("f", {LEGACY_ANNOTATION: "auto", MODE_ANNOTATION: "Auto"}, "PreferSameZon")

    assert [one.path for one in both] == [f"metadata.annotations[{LEGACY_ANNOTATION}]", "spec.trafficDistribution"]
    assert "wins" in both[0].text
    assert 'did you mean "PreferSameZone"' in both[1].text
    assert mode_findings("f", {MODE_ANNOTATION: "Auto"}, "PreferSameZone") == ()
    assert "deprecated" in mode_findings("f", {}, "PreferClose")[0].text
    assert "deprecated" in mode_findings("f", {LEGACY_ANNOTATION: "Auto"}, None)[0].text
