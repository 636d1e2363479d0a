#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules that tests and pages cite, such as STA-06: each is defined once, in a table of docs/rules/.

Fails on an id that is cited and not defined, and on one that is defined twice. The last column of each table names
the tests that cite the rule; `--write` renews it, and without it a stale column fails. `--untested` lists the rules
that no test cites. An id as argument prints its row.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = Path("docs", "rules")
SOURCES = ("agent", "packages", "tests", "bench", "scripts", "systemd", "deploy", "docs")
ENDINGS = {".py", ".md", ".conf", ".service", ".socket", ".yaml", ".proto", ".sh"}
ID = r"(?:[A-Z]{2,3}-[A-Z]?\d{1,3}|Q-[A-Z]{2,})"
# `IMG-S03, S07 and S09`, `TOP-22 to 26`: what follows the first id of a family may leave its prefix out.
CITED = re.compile(rf"(?<![\w-])(?P<first>{ID})(?P<more>(?:(?:, | and | to )[A-Z]\d{{2}}\b| to \d+\b)*)(?![\w-])")
SHORT = re.compile(r"( to |, | and )([A-Z]?\d+)")
SPAN = re.compile(rf"(?<![\w-])(?P<first>{ID}) to (?P<last>{ID})(?![\w-])")
# What looks like a rule and is the name of something else; PQ: the cases of tests/vectors/pull-queue.json.
OTHERS = {"UTF", "SHA", "KEP", "PQ"}
ROW = re.compile(rf"^\| (?P<id>{ID}) \| (?P<text>[^|]+) \| (?P<tests>[^|]+) \|$")
MOST_TESTS = 4


@dataclass(frozen=True, slots=True)
class Citations:
    """Files by the rules that they name, and by those that lie within a range that they name, such as SY-1 to SY-8."""

    named: defaultdict[str, set[Path]] = field(default_factory=lambda: defaultdict(set))
    spanned: defaultdict[str, set[Path]] = field(default_factory=lambda: defaultdict(set))

    def of(self, rule: str) -> set[Path]:
        """The files that cite a rule in either way."""
        return self.named.get(rule, set()) | self.spanned.get(rule, set())


def named(text: str) -> Iterator[str]:
    """The rules that a text names; of a range the first and the last."""
    for found in CITED.finditer(text):
        first = found["first"]
        family = first.split("-")[0]
        if family in OTHERS:
            continue
        yield first
        yield from (f"{family}-{short}" for _, short in SHORT.findall(found["more"]))


def spanned(text: str) -> Iterator[str]:
    """The ids between the ends of each range of a text; whether there are such rules is for the pages to say."""
    for found in SPAN.finditer(text):
        yield from between(found["first"], found["last"])
    for found in CITED.finditer(text):
        last = found["first"]
        for word, short in SHORT.findall(found["more"]):
            earlier, last = last, f"{found['first'].split('-')[0]}-{short}"
            if word == " to ":
                yield from between(earlier, last)


def between(first: str, last: str) -> Iterator[str]:
    """`SY-1`, `SY-4` → `SY-2`, `SY-3`. Ends of different families have nothing between them."""
    digits = re.search(r"\d+$", first)
    end = re.search(r"\d+$", last)
    if not digits or not end or first[: digits.start()] != last[: end.start()]:
        return
    for number in range(int(digits[0]) + 1, int(end[0])):
        yield f"{first[: digits.start()]}{number:0{len(digits[0])}}"


def citations(root: Path) -> Citations:
    """Who cites which rule, below a root."""
    found = Citations()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root)
            if path.suffix not in ENDINGS or "wire" in where.parts or where.is_relative_to(PAGES) or not path.is_file():
                continue
            text = path.read_text("utf-8", "replace")
            for rule in named(text):
                found.named[rule].add(where)
            for rule in spanned(text):
                found.spanned[rule].add(where)
    return found


def column(paths: set[Path]) -> str:
    """The tests among the files, shortened to what says where to look."""
    named = [
        [part for part in path.parts if part not in ("packages", "tests")] for path in paths if "tests" in path.parts
    ]
    tests = sorted("/".join(parts) for parts in named)
    rest = f" and {len(tests) - MOST_TESTS} more" if len(tests) > MOST_TESTS else ""
    return ", ".join(f"`{one}`" for one in tests[:MOST_TESTS]) + rest if tests else "none"


def renewed(page: str, found: Citations) -> str:
    """A page with its last column as it should be."""
    lines = []
    for line in page.split("\n"):
        row = ROW.match(line)
        lines.append(f"| {row['id']} | {row['text']} | {column(found.of(row['id']))} |" if row else line)
    return "\n".join(lines)


def rows(root: Path) -> list[re.Match[str]]:
    """Every row of every page, in order."""
    pages = sorted((root / PAGES).glob("*.md"))
    return [row for page in pages for row in map(ROW.match, page.read_text("utf-8").split("\n")) if row]


def write(root: Path) -> None:
    """Renew the last column of all pages."""
    found = citations(root)
    for page in sorted((root / PAGES).glob("*.md")):
        page.write_text(renewed(page.read_text("utf-8"), found), "utf-8")


def complaints(root: Path) -> Iterator[str]:
    """What is wrong, a sentence each."""
    found = citations(root)
    for page in sorted((root / PAGES).glob("*.md")):
        text = page.read_text("utf-8")
        if renewed(text, found) != text:
            yield f"{page.relative_to(root)}: the column of tests is not what tests cite; run `make docs`"
    defined = [row["id"] for row in rows(root)]
    for rule in sorted(found.named.keys() - set(defined)):
        yield f"{rule} is cited in {min(found.named[rule])} and defined nowhere in {PAGES}; add a row or mend the id"
    for rule in sorted({rule for rule in defined if defined.count(rule) > 1}):
        yield f"{rule} is defined {defined.count(rule)} times in {PAGES}; keep one row"


def main(words: list[str]) -> int:
    """Check, or do what the words ask for."""
    if "--write" in words:
        write(ROOT)
    table = {row["id"]: row for row in rows(ROOT)}
    untested = [rule for rule, row in table.items() if row["tests"] == "none"]
    if "--untested" in words:
        print("\n".join(untested))
        return 0
    asked = [word for word in words if not word.startswith("--")]
    for word in asked:
        print(table[word][0] if word in table else f"{word}: no such rule in {PAGES}")
    if asked:
        return int(any(word not in table for word in asked))
    faults = list(complaints(ROOT))
    print("\n".join(faults) or f"{len(table)} rules, {len(untested)} without a test that names them")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
