# SPDX-License-Identifier: Apache-2.0
"""`make bench`: run all measurements, print them, write bench/results.md. Names of modules renew those alone."""

import argparse
import importlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "bench" / "results.md"
MODULES = (
    "daemon", "api", "commands", "topology", "services", "services_features", "services_outage", "pods", "pulls",
    "devices", "observe", "node_logs", "proxy", "traces", "dns", "door", "cron_schedules", "policies",
)  # fmt: skip
# Those that need a program of one's own; run by name.
BESIDE = ("kubelet", "kube_proxy", "podman")
# Those that take ten minutes or more; run by name.
LONG = ("takeover", "soak", "soak_machine", "greed")
HEAD = """# Benchmarks

Written by `make bench`. Figures of one run of each part on one machine: compare ratios and stated figures, not
absolutes.

"""


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    if sys.argv[1:2] == ["corpus"]:
        # No figures: it says what becomes of manifests of others.
        return int(importlib.import_module("bench.corpus").main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", default=MODULES)
    hours = "soak: so long, in a virtual machine; 0 = the table of the last such run"
    parser.add_argument("--hours", type=float, help=hours)
    given = parser.parse_args()
    sections = written_sections()
    for word in given.names:
        in_machine = word == "soak" and given.hours is not None
        name = "soak_machine" if in_machine else word
        module = importlib.import_module(f"bench.{name}")
        rows = module.measure(given.hours) if in_machine else module.measure()
        head = module.headline() if in_machine else (module.__doc__ or "").strip().splitlines()[0]
        lines = [f"## {name}", "", head, "", "| what | measured | stated figure |", "|---|---|---|"]
        for what, value, unit, stated in rows:
            print(f"{name:10} {what:62} {shown(value):>8} {unit:14} {stated}", flush=True)
            lines.append(f"| {what} | {shown(value)} {unit} | {stated} |")
        sections[name] = "\n".join(lines) + "\n"
    cores, kernel = os.cpu_count(), platform.release().partition("-")[0]
    machine = f"{cores} cores, Linux {kernel}, Python {platform.python_version()}"
    today = datetime.now(UTC).date().isoformat()
    ordered = [sections[name] for name in (*MODULES, *BESIDE, *LONG) if name in sections]
    PAGE.write_text(f"{HEAD}{today}, {machine}.\n\n" + "\n".join(ordered), "utf-8")
    return 0


def written_sections() -> dict[str, str]:
    """What the page has of parts that are not measured this time."""
    _, *parts = PAGE.read_text("utf-8").split("\n## ")
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


if __name__ == "__main__":
    sys.exit(main())
