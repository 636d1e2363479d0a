# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from collections import Counter

import pytest

from tests.host.process import ROOT
from tests.lab import LabError, newer
from tests.lab.newer import CORE

LEAST = 80
LEAST_OF_AN_AREA = 8


def test_the_core_for_newer_runtimes_has_enough_of_each_area() -> None:
    files = [file for area in CORE.values() for file in area]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "node and not alone", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    counts = Counter(line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line)

    assert [file for file in files if not counts[file]] == []
    assert counts.total() >= LEAST
    assert {area for area, own in CORE.items() if sum(map(counts.__getitem__, own)) >= LEAST_OF_AN_AREA} == {
        "pods", "images", "proxy", "devices",
    }  # fmt: skip


def test_where_no_packages_can_be_had_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(_release: object) -> None:
        raise RuntimeError("E: Failed to fetch http://nowhere.example/debian")

    monkeypatch.setattr(newer, "packages_of", unreached)

    with pytest.raises(
        LabError, match=r"no packages of Debian forky \(containerd, runc, patchelf\): E: Failed to fetch"
    ):
        newer.programs_folder()
