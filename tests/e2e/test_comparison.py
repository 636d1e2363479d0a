# SPDX-License-Identifier: Apache-2.0
"""What the comparison says, and what it asks for."""

from pathlib import Path

import pytest

from tests.e2e.comparison import Run, different, told
from tests.e2e.programs import IMAGES, VARIABLES, MissingError, Programs
from tests.e2e.suite import Outcome, outcomes, parts

REPORT = [
    {
        "SpecReports": [
            {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
            {
                "LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "start",
                "State": "failed", "RunTime": 2_500_000_000, "Failure": {"Message": "no \x1b[31mpod"},
            },
            {"LeafNodeType": "It", "ContainerHierarchyTexts": None, "LeafNodeText": "end", "State": "skipped"},
        ]
    }
]  # fmt: skip


def test_a_report_is_read_by_full_names() -> None:
    found = outcomes(REPORT)

    assert found["[sig-node] Pods start"] == Outcome("failed", 2.5, "no \x1b[31mpod")
    assert found["end"].status == "skipped"
    assert len(found) == 2


def test_specs_that_must_be_alone_come_last_and_each_runs_once() -> None:
    names = ["a", "b [Serial]", "c", "d", "e [Disruptive]", "f"]

    together, alone = parts(names, 3)

    assert together == [["a", "f"], ["c"], ["d"]]
    assert alone == ["b [Serial]", "e [Disruptive]"]
    assert parts([], 3) == ([], [])


def test_each_difference_is_told_with_its_reason() -> None:
    before = Run("without", {"a": Outcome("passed", 1), "b": Outcome("passed", 2)}, {"kube-proxy": (1.5, 30.0)})
    after = Run("with", {"a": Outcome("failed", 9, "no \x1b[31m\npod")}, {"kepd": (1.0, 40.0)})

    text = told(["a", "b", "c"], before, after)

    assert [name for name, *_ in different(["a", "b", "c"], before, after)] == ["a", "b", "c"]
    assert "0 of 3 have the same status" in text
    assert "    with: failed no [31m pod" in text
    assert "    with: not run" in text
    assert "kube-proxy        1.5 s of processor      30.0 MiB" in text


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        Programs.find({})
    assert [line.partition("=")[0] for line in str(caught.value).splitlines()] == [
        *(variable for variable, _ in VARIABLES.values()), IMAGES[0],
    ]  # fmt: skip
    (tmp_path / "agnhost.tar").touch()
    given = {variable: "/bin/true" for variable, _ in VARIABLES.values()} | {IMAGES[0]: str(tmp_path)}
    assert Programs.find(given).images == (tmp_path / "agnhost.tar",)
