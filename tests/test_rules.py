# SPDX-License-Identifier: Apache-2.0
"""The check of rule ids, in trees of its own; their ids are made here, so that none of them counts as cited."""

from pathlib import Path

import pytest

from scripts.rules import citations, complaints, named, spanned, write

FAMILY = "ZZ"
FIRST, SECOND, THIRD = (f"{FAMILY}-S0{number}" for number in (1, 2, 3))


def tree(root: Path, *, page: str, test: str) -> Path:
    (root / "docs" / "rules").mkdir(parents=True)
    (root / "docs" / "rules" / "page.md").write_text(page)
    (root / "tests").mkdir()
    (root / "tests" / "test_one.py").write_text(test)
    return root


def row(rule: str, tests: str = "`test_one.py`") -> str:
    return f"| {rule} | kepd does it. | {tests} |\n"


def test_a_page_with_a_row_for_each_cited_rule_is_right(tmp_path: Path) -> None:
    root = tree(tmp_path, page=row(FIRST) + row(SECOND), test=f"{FIRST}, S02: both")

    assert list(complaints(root)) == []


def test_an_id_without_a_row_is_reported_with_the_file_that_cites_it(tmp_path: Path) -> None:
    root = tree(tmp_path, page=row(FIRST), test=f"{FIRST} and {THIRD}")

    assert list(complaints(root)) == [
        f"{THIRD} is cited in tests/test_one.py and defined nowhere in docs/rules; add a row or mend the id"
    ]


def test_a_row_that_stands_twice_is_reported_and_one_without_a_test_is_none(tmp_path: Path) -> None:
    root = tree(tmp_path, page=row(FIRST) + row(FIRST) + row(SECOND, "none"), test=FIRST)

    assert list(complaints(root)) == [
        f"{FIRST} is defined 2 times in docs/rules; keep one row",
    ]


def test_a_stale_column_is_reported_and_renewed(tmp_path: Path) -> None:
    root = tree(tmp_path, page=row(FIRST, "none"), test=FIRST)

    assert [one.split(":")[0] for one in complaints(root)] == ["docs/rules/page.md"]
    write(root)
    assert list(complaints(root)) == []
    assert (root / "docs" / "rules" / "page.md").read_text() == row(FIRST)


def test_what_lies_within_a_cited_range_counts_as_cited_and_needs_no_row(tmp_path: Path) -> None:
    """Ranges have gaps; only their ends must exist."""
    root = tree(tmp_path, page=row(FIRST) + row(THIRD) + row(f"{FAMILY}-S05"), test=f"{FIRST} to {FAMILY}-S05")

    assert list(complaints(root)) == []
    assert citations(root).of(THIRD) == {Path("tests/test_one.py")}


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f"{FIRST}, S02 and S03: all", ["S01", "S02", "S03"]),
        (f"{FIRST} to S03, S05", ["S01", "S03", "S05"]),
        (f"{FAMILY}-22 to 26; {FAMILY}-7, 10 pods", ["22", "26", "7"]),
        (f"({FAMILY}-P1)", ["P1"]),
        (f"UTF-8, SHA-1, KEP-127, {FAMILY}-1234, X{FAMILY}A-1, {FAMILY}-1-a, {FIRST}x", []),
    ],
)
def test_shortened_lists_are_understood_and_other_names_are_not_rules(text: str, rules: list[str]) -> None:
    assert list(named(text)) == [f"{FAMILY}-{rule}" for rule in rules]


def test_a_shortened_range_has_rules_between_its_ends() -> None:
    assert list(spanned(f"{FAMILY}-S08 to S11, S20")) == [f"{FAMILY}-S09", f"{FAMILY}-S10"]
    assert list(spanned(f"{FAMILY}-9 to {FAMILY}-12")) == [f"{FAMILY}-10", f"{FAMILY}-11"]
