# SPDX-License-Identifier: Apache-2.0
"""The page that tells the three reference cases, checked number by number."""

import re
from pathlib import Path

import pytest
import yaml

from agent.topology.explain.documents import explain_hints
from agent.topology.hints.zones import activating_counts
from agent.topology.manifest.objects import Document, read_manifests
from tests.topology.builders import capacity

PAGE = (Path(__file__).parents[3] / "docs" / "topology.md").read_text(encoding="utf-8")
DOCUMENTS = [
    document for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for document in yaml.safe_load_all(block)
]


def explained(slice_name, cpu=None):
    chosen = [one for one in DOCUMENTS if one["kind"] != "EndpointSlice" or one["metadata"]["name"] == slice_name]
    if cpu is not None:
        chosen = [
            one | {"status": one["status"] | {"allocatable": {"cpu": cpu}}} if one["kind"] == "Node" else one
            for one in chosen
        ]
    manifests = read_manifests(Document(f"docs {number}", one) for number, one in enumerate(chosen))

    assert (manifests.errors, manifests.notes) == ((), ())
    return explain_hints(manifests, "default/web")


def rows_of(heading):
    """The numbers of the table below a heading, as they are printed."""
    section = PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


FORMATS = {
    "Zone": lambda zone: zone.zone,
    "Milli-CPU": lambda zone: str(zone.milli_cpu),
    "Share": lambda zone: f"{zone.share * 100:.3g} %",
    "Want": lambda zone: f"{zone.want:.2f}",
    "Least": lambda zone: str(zone.least),
    "Most": lambda zone: str(zone.most),
    "Have": lambda zone: str(zone.have),
    "Final": lambda zone: str(zone.final),
    "Load": lambda zone: f"{zone.load:.2f}",
}


@pytest.mark.parametrize(
    ("heading", "slice_name", "cpu", "code"),
    [("Four", "web-4", None, 0), ("Five", "web-5", None, 1), ("Ten", "web-10", "8", 0)],
)
def test_the_tables_of_the_story_are_what_the_command_computes(heading, slice_name, cpu, code):
    """A page that lies is worse than none."""
    explanation = explained(slice_name, cpu)
    printed = rows_of(heading)

    assert explanation.exit_code == code
    assert printed == [{name: FORMATS[name](zone) for name in printed[0]} for zone in explanation.families[0].zones]


def test_the_replica_counts_of_the_story_are_right():
    """TOP-95 and the reference case."""
    mixed = activating_counts(capacity(a="2", b="2", c="4"))
    equal = activating_counts(capacity(a="8", b="8", c="8"))

    assert f"Hints are active at {mixed}." in PAGE
    assert set(range(1, equal.always_from)) - set(equal.listed) == {1, 2, 4, 5, 8, 11}
    assert "4 or 7 ready endpoints" in PAGE
