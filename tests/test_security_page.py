# SPDX-License-Identifier: Apache-2.0
"""Every promise of SECURITY.md names tests that there are."""

import re

from tests.host.process import ROOT


def test_each_promise_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][1:]
    named = {row: re.findall(r"`([a-z_/]+(?:\.py)?)`", row.rsplit("|", 2)[1]) for row in rows}

    assert len(rows) > 8
    assert [row for row, names in named.items() if not names] == []
    assert [name for names in named.values() for name in names if not (ROOT / "tests" / name).exists()] == []
