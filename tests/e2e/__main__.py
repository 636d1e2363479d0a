# SPDX-License-Identifier: Apache-2.0
"""`scripts/e2e`: Kubernetes' own suite on three nodes, once without kepd and once with it, compared spec by spec.

Programs of Kubernetes come from variables; without them it says which are missing. Ends with 1 where a spec has another
status with kepd than without.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.cluster import cluster
from tests.e2e.comparison import Run, different, told
from tests.e2e.nodes import Side
from tests.e2e.programs import MissingError, Programs
from tests.e2e.rehearsal.stage import play
from tests.e2e.suite import chosen, run
from tests.e2e.zones import check
from tests.host.process import ROOT

FOCUS, SKIP = r"\[Conformance\]", r"\[Serial\]|\[Disruptive\]|\[Slow\]|\] DNS should"
REPORT, RECORD = ROOT / "build/e2e.txt", ROOT / "build/rehearsal.json"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/e2e", description=__doc__)
    parser.add_argument("--focus", default=FOCUS, help="expression for names of specs (default: %(default)s)")
    parser.add_argument("--skip", default=SKIP, help="specs to leave out (default: %(default)s)")
    parser.add_argument("--backend", choices=("nftables", "iptables"), default="nftables")
    parser.add_argument("--beside", type=int, default=4, help="specs at a time (default: %(default)s)")
    parser.add_argument(
        "--zones", type=Path, metavar="ARCHIVE", help="scripts/kind test instead, with this image of kepd"
    )
    parser.add_argument(
        "--rehearse", type=int, metavar="N", help="N random changes instead, as kepctl what-if foretells them"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random changes (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of all programs")
    asked = parser.parse_args(arguments)
    # Also in the background of a script: what was started ends, and its mounts and groups go.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    unused = ("suite", "proxy", "kubelet", "images") if asked.rehearse else ("suite", "proxy") if asked.zones else ()
    try:
        programs = Programs.find(os.environ, *unused)
    except MissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    with ExitStack() as stack:
        made = tempfile.mkdtemp(prefix="e2e-") if asked.keep else ""
        folder = Path(made or stack.enter_context(tempfile.TemporaryDirectory(prefix="e2e-")))
        if asked.rehearse:
            RECORD.parent.mkdir(exist_ok=True)
            return play(programs, folder, asked.rehearse, asked.seed, RECORD)
        if asked.zones:
            return check(programs, folder, asked.zones.resolve())
        names = chosen(programs, folder, asked.focus, asked.skip)
        print(f"{len(names)} specs; logs are in {folder}", flush=True)
        before, after = (
            _one_side(Side(proxy, asked.backend), programs, folder, names, asked.beside)
            for proxy in ("kube-proxy", "kepd")
        )
        text = told(names, before, after)
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(text + "\n")
        print(text)
        return 1 if different(names, before, after) else 0


def _one_side(side: Side, programs: Programs, folder: Path, names: Sequence[str], beside: int) -> Run:
    place = folder / side.proxy
    with cluster(side, programs, place) as (control, nodes):
        outcomes = run(programs, control, place, names, beside)
        control.check()
        cost: dict[str, tuple[float, float]] = {}
        for node in nodes:
            for name, (cpu_s, mib) in node.cost().items():
                spent = cost.get(name, (0.0, 0.0))
                cost[name] = (spent[0] + cpu_s, spent[1] + mib)
    return Run(side.name, outcomes, cost)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
