#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a tree the tree of a release: `scripts/changelog.py VERSION DATE`.

Sets the version where the tree names it, puts the files of changelog.d on top of CHANGELOG.md, and removes them. A tree
that has the version, its part of CHANGELOG.md and no file there is one already. Needs nothing but Python.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TITLES = {"breaking": "What you have to change", "feature": "New", "fix": "Mended", "doc": "Documents"}
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
VERSION_LINE = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
NAMED_IN = ("deploy/base/kustomization.yaml", "deploy/components/dns/kustomization.yaml", "deploy/README.md")


def numbers(text: str) -> tuple[int, ...]:
    """Of a version, to compare by."""
    found = VERSION.fullmatch(text)
    if found is None:
        raise SystemExit(f"version {text!r} is none; expected: three numbers, such as 0.2.0")
    return tuple(map(int, found.groups()))


def fragments(folder: Path) -> dict[str, list[str]]:
    """Texts by kind, each kind in the order of the files' names."""
    found: dict[str, list[str]] = {kind: [] for kind in TITLES}
    for path in sorted(folder.glob("*.md")):
        kind = path.stem.rpartition(".")[2]
        if kind not in found:
            raise SystemExit(f"{path}: kind {kind!r} is unknown; expected NAME.KIND.md with {', '.join(TITLES)}")
        found[kind].append(" ".join(path.read_text().split()))
    if not any(found.values()):
        raise SystemExit(f"{folder} has no file: there is nothing to release")
    return found


def section(version: str, date: str, found: dict[str, list[str]]) -> str:
    """What CHANGELOG.md says of one version."""
    parts = [f"## {version} ({date})\n"]
    for kind, title in TITLES.items():
        if found[kind]:
            parts.append(f"### {title}\n\n" + "\n".join(f"- {text}" for text in found[kind]) + "\n")
    return "\n".join(parts)


def main(version: str, date: str) -> int:
    """Change the tree."""
    source = ROOT / "agent/__init__.py"
    text = source.read_text()
    known = VERSION_LINE.search(text)
    if known is None:
        raise SystemExit(f"{source} names no __version__")
    history = ROOT / "CHANGELOG.md"
    waiting = list((ROOT / "changelog.d").glob("*.md"))
    if version == known[1] and not waiting and f"\n## {version} (" in history.read_text():
        return 0
    if numbers(version) <= numbers(known[1]):
        raise SystemExit(f"version {version} does not follow {known[1]}, which the tree has")
    written = section(version, date, fragments(ROOT / "changelog.d"))
    before = history.read_text().partition("\n")[2].lstrip("\n") if history.exists() else ""
    history.write_text(f"# Changes\n\n{written}" + (f"\n{before}" if before else ""))
    source.write_text(VERSION_LINE.sub(f'__version__ = "{version}"', text))
    for name in NAMED_IN:
        place = ROOT / name
        place.write_text(place.read_text().replace(f"newTag: {known[1]}", f"newTag: {version}"))
    for path in waiting:
        path.unlink()
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("scripts/changelog.py VERSION DATE")
    sys.exit(main(*sys.argv[1:]))
