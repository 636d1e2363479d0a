# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md from the files of changelog.d."""

from pathlib import Path

import pytest

from scripts.changelog import fragments, numbers, section
from scripts.surface import RECORD, ROOT, gone, surface


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


def test_what_others_hold_on_to_goes_only_with_a_change_that_says_breaking() -> None:
    """What a key, a command or a metric was called in the last release, the next one has or says that it has not."""
    recorded = RECORD.read_text().splitlines()
    breaking = list((ROOT / "changelog.d").glob("*.breaking.md"))

    assert gone(recorded, surface()) == [] or breaking, "add changelog.d/NAME.breaking.md, which says what to change"


def test_a_part_that_has_gone_is_named() -> None:
    now = surface()

    assert gone(["# kepd 0.9.0", *now, "key images.gone", "rpc kepd.v1.Gone"], now) == [
        "key images.gone", "rpc kepd.v1.Gone",
    ]  # fmt: skip
