# SPDX-License-Identifier: Apache-2.0
"""The corpus of claims, classes and slices that must be refused, each with the line that says why. DVV-10."""

from pathlib import Path

import pytest

from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import read_device_objects
from packages.devices.tests.written import CLAIM, CLASS, SLICE, TEMPLATE, changed

GOOD = {"claim": CLAIM, "template": TEMPLATE, "class": CLASS, "slice": SLICE}
READER = Reader("here")


def lines() -> list[tuple[str, str, str, str]]:
    found = []
    for line in (Path(__file__).parent / "bad_objects.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            change, _, complaint = line.partition(" => ")
            what, _, value = change.partition(" = ")
            kind, _, path = what.partition(": ")
            found.append((kind, path.strip(), value.strip(), complaint.strip()))
    return found


CASES = lines()


@pytest.mark.parametrize("kind", GOOD)
def test_the_good_ones_are_good(kind: str) -> None:
    found = read_device_objects({"/m/a.yaml": GOOD[kind].encode()}, READER)

    assert found.findings == ()
    assert len(found.places) == 1


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"), CASES, ids=[f"{kind}:{path}={value}"[:70] for kind, path, value, _ in CASES]
)
def test_a_bad_object_is_refused_with_its_line(kind: str, path: str, value: str, complaint: str) -> None:
    """DVV-10."""
    found = read_device_objects({"/m/a.yaml": changed(GOOD[kind], path, value).encode()}, READER)
    told = [str(one) for one in found.findings]

    assert found.places == {}
    assert any(complaint in line for line in told), told
    assert all(line.startswith("/m/a.yaml:") and "\n" not in line for line in told)


def test_all_faults_of_an_object_are_told_at_once_with_their_lines() -> None:
    """DVV-10."""
    text = CLAIM.replace("count: 2", "count: 0").replace("name: gpu\n", "name: G\n").replace("{name: gpus", "{name: G")
    found = read_device_objects({"/m/a.yaml": text.encode()}, READER)

    assert [str(one).split(": ")[:2] for one in found.findings] == [
        ["/m/a.yaml:4", "metadata.name"],
        ["/m/a.yaml:8", "spec.devices.requests[0].name"],
        ["/m/a.yaml:11", "spec.devices.requests[0].exactly.count"],
    ]


def test_a_bad_class_hurts_no_other_object() -> None:
    """DVV-12."""
    files = {f"/m/{place}.yaml": changed(GOOD[kind], path, value).encode() for place, (kind, path, value, _) in
             enumerate(CASES)}  # fmt: skip
    found = read_device_objects({**files, "/m/good.yaml": (CLAIM + "---" + CLASS).encode()}, READER)

    assert set(found.places.values()) == {"/m/good.yaml:2", "/m/good.yaml:14"}
