# SPDX-License-Identifier: Apache-2.0
"""`make bench`: run all measurements, print them, write bench/results.md. Names of modules renew those alone."""

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
LONG = ("takeover", "soak", "greed")
HEAD = """# Benchmarks

Written by `make bench`. Figures of one run of each part on one machine: compare ratios and stated figures, not
absolutes.

"""


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    names = sys.argv[1:] or MODULES
    sections = written_sections()
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        lines = [f"## {name}", "", (module.__doc__ or "").strip().splitlines()[0], ""]
        lines += ["| what | measured | stated figure |", "|---|---|---|"]
        for what, value, unit, stated in module.measure():
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
