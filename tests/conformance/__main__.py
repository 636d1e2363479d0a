# SPDX-License-Identifier: Apache-2.0
"""`scripts/conformance`: Kubernetes' own suite on one bare node, by the door alone.

It starts a node with a containerd of its own and runs the specs of tests/conformance/specs, several at a time; the
README there says which are left out and why. KEPD_E2E (e2e.test), KEPD_KUBECTL and KEPD_E2E_IMAGES (a directory of
archives) name what is not part of this project. Ends with 1 where a spec failed, with 2 where a program is missing.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.node import bare_node
from tests.conformance.suite import GROUPS, PASSED, Result, Suite, junit, listed, quick_specs, run_all, specs, table
from tests.host.process import ROOT

REPORT = ROOT / "build"
PROGRAMS = {"KEPD_E2E": "e2e.test of Kubernetes", "KEPD_KUBECTL": "kubectl"}
IMAGES = "KEPD_E2E_IMAGES"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some specs of all groups, in at most four minutes")
    parser.add_argument("--group", choices=GROUPS, action="append", help="of these groups alone")
    parser.add_argument("--focus", default="", help="expression for names of specs")
    parser.add_argument("--list", type=Path, metavar="FILE", help="specs of this file, a name each line")
    parser.add_argument("--beside", type=int, default=6, help="specs at a time (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of all programs")
    asked = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    found = {name: shutil.which(os.environ.get(name, "")) or "" for name in PROGRAMS}
    images = sorted(Path(os.environ.get(IMAGES) or "/nonexistent").glob("*.tar"))
    missing = [f"{name}={os.environ.get(name, '')!r}: expected {PROGRAMS[name]}" for name in found if not found[name]]
    missing += [] if images else [f"{IMAGES}={os.environ.get(IMAGES, '')!r}: expected a directory of archives"]
    if missing:
        print("the suite is not run:", *missing, sep="\n  ", file=sys.stderr)
        return 2
    chosen = listed(asked.list.read_text(), "listed") if asked.list else quick_specs() if asked.quick else specs()
    chosen = [one for one in chosen if not asked.group or one.group in asked.group]
    chosen = [one for one in chosen if re.search(asked.focus, one.name)]
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        with bare_node(folder, images) as node:
            suite = Suite(found["KEPD_E2E"], found["KEPD_KUBECTL"], node, folder / "specs")
            results = run_all(chosen, asked.beside, suite.ask, _tell)
    finally:
        if asked.keep:
            print(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    REPORT.mkdir(exist_ok=True)
    (REPORT / "conformance.txt").write_text(table(results))
    (REPORT / "conformance.xml").write_bytes(junit(results))
    print(table(results))
    return 0 if results and all(one.status == PASSED for one in results) else 1


def _tell(result: Result) -> None:
    print(f"{time.strftime('%H:%M:%S')} {result.status} {result.seconds:.0f}s {result.spec.name}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
