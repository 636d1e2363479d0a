# SPDX-License-Identifier: Apache-2.0
"""`make bench`: run all measurements, print them, write docs/benchmarks.md. Names of modules limit it to those."""

import importlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
MODULES = ("daemon", "api", "topology", "services", "pods", "pulls")
HEAD = """# Benchmarks

Written by `make bench`. Figures of one run on one machine: compare ratios and stated figures, not absolutes.

"""


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    names = sys.argv[1:] or MODULES
    sections = []
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        lines = [f"## {name}", "", (module.__doc__ or "").strip().splitlines()[0], ""]
        lines += ["| what | measured | stated figure |", "|---|---|---|"]
        for what, value, unit, stated in module.measure():
            print(f"{name:10} {what:62} {shown(value):>8} {unit:14} {stated}", flush=True)
            lines.append(f"| {what} | {shown(value)} {unit} | {stated} |")
        sections.append("\n".join(lines) + "\n")
    if not sys.argv[1:]:
        machine = (
            f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
        )
        today = datetime.now(UTC).date().isoformat()
        PAGE.write_text(f"{HEAD}{today}, {machine}.\n\n" + "\n".join(sections), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
