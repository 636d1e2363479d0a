# SPDX-License-Identifier: Apache-2.0
"""Services in the kernel: first programming, single changes, memory, restarts, and what a connection costs.

Measures: a kepd of its own against the test API server, and the planner with the kernel alone at growing sizes, in a
network namespace of its own. `python -m bench.services_inside N` is the half that runs in there.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bench import services_connects, services_iptables
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
SIZES = (1000, 5000, 10000, 20000)
STATED = 10000


def inside(*arguments: str) -> list[Row]:
    return inside_of("bench.services_inside", *arguments)


def inside_of(module: str, *arguments: str) -> list[Row]:
    root = Path(__file__).resolve().parent.parent
    with Namespace() as space:
        os.chdir(root)
        printed = space.run(sys.executable, "-m", module, *arguments, within_s=900.0)
    return [tuple(row) for row in json.loads(printed.splitlines()[-1])]


def measure() -> list[Row]:
    rows: list[Row] = []
    for size in SIZES:
        rows += inside("plan", str(size))
    for size in (STATED,):
        rows += inside("daemon", str(size))
    rows += inside("tenants", "0")
    for size in (10, STATED):
        rows += services_connects.measure(size)
    return rows


def main() -> None:
    """`python -m bench.services --backend iptables [N]` or `… --outage [N]`: minutes, so not a part of `make bench`."""
    if sys.argv[1:2] == ["--outage"]:
        show(inside("outage", sys.argv[2] if sys.argv[2:] else str(STATED)))
        return
    if sys.argv[1:2] != ["--backend"] or sys.argv[2:3] not in (["iptables"], ["nftables"]):
        raise SystemExit(main.__doc__)
    size = int(sys.argv[3]) if sys.argv[3:] else services_iptables.SIZE
    show(services_iptables.measure(size) if sys.argv[2] == "iptables" else measure())


def show(rows: Iterable[Row]) -> None:
    for what, value, unit, stated in rows:
        print(f"{what:80} {value:10.3f} {unit:8} {stated}", flush=True)


if __name__ == "__main__":
    main()
