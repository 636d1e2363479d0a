# SPDX-License-Identifier: Apache-2.0
"""Hints for Services from manifests."""

from agent.topology.hints.mode import MODE_ANNOTATION
from agent.topology.hints.standalone import THRESHOLD_ANNOTATION, HintOptions, HintStatus, fill_hints
from agent.topology.manifest.facts import SelectingService
from tests.topology.builders import nodes, piece

AUTO = SelectingService("default", "web", {MODE_ANNOTATION: "Auto"})
CLUSTER = nodes(a="2", b="2", c="4")


def filled(zones, service=AUTO, cluster=CLUSTER, options=HintOptions(), **more):  # noqa: B008 - frozen
    return fill_hints(service, "IPv4", [piece("s", zones)], cluster, options, **more)


def test_the_threshold_comes_from_the_annotation_then_from_the_options():
    """TOP-52."""
    own = SelectingService("default", "web", {MODE_ANNOTATION: "Auto", THRESHOLD_ANNOTATION: "0.4"})

    assert filled("abbcc", own).status == HintStatus("active")
    assert filled("abbcc", options=HintOptions(overload_threshold=0.4)).status == HintStatus("active")
