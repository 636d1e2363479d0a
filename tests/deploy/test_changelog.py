# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md from the files of changelog.d."""

from pathlib import Path

import pytest

from scripts.changelog import fragments, numbers, section


def test_what_has_to_be_changed_comes_first(tmp_path: Path) -> None:
    for name, text in {
        "1.fix.md": "A fault\nis gone.\n",
        "b.breaking.md": "A key.\n",
        "2.fix.md": "Another.\n",
    }.items():
        (tmp_path / name).write_text(text)

    assert section("0.2.0", "2026-11-23", fragments(tmp_path)) == (
        "## 0.2.0 (2026-11-23)\n\n### What you have to change\n\n- A key.\n\n"
        "### Mended\n\n- A fault is gone.\n- Another.\n"
    )


def test_a_kind_that_is_unknown_and_nothing_to_say_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing to release"):
        fragments(tmp_path)
    (tmp_path / "1.fixed.md").write_text("x")
    with pytest.raises(SystemExit, match="kind 'fixed' is unknown"):
        fragments(tmp_path)


def test_versions_are_compared_by_their_numbers() -> None:
    assert numbers("0.10.0") > numbers("0.9.9")
    with pytest.raises(SystemExit, match="expected: three numbers"):
        numbers("0.2")
