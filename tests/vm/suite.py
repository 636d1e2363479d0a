# SPDX-License-Identifier: Apache-2.0
"""The tree's own tests, then pods by `scripts/run --once`, in a machine of a processor that no developer sits at.
It tells how long each took."""

import shlex
import subprocess
import time
from collections.abc import Sequence

# What meets the kernel, a layout in memory or another program. The rest is Python alone, and the same everywhere.
PARTS = (
    "tests/contract", "tests/drivers", "tests/proto", "tests/kit", "tests/model", "tests/images", "packages/dns/tests",
)  # fmt: skip
CHOICE = "not node and not kube and not image and not alone"
# Each test has twenty times as long as on a processor of its own. What ran out of time runs once more by itself.
PYTEST = f".venv/bin/python -m pytest -q -o timeout=1200 -m {shlex.quote(CHOICE)}"


def steps(tests: Sequence[str]) -> dict[str, str]:
    """Lines of the shell by what they do. kepd, which runs there with its pods, leaves the processor to them."""
    listed = shlex.join(tests or PARTS)
    run = f"{PYTEST} -n 2 --dist loadfile {listed} || {PYTEST} --last-failed {listed}"
    return {
        "kepd ends": "systemctl stop kepd.socket kepd",
        f"tests: {listed}": f"cd /usr/src/kepd && {{ {run}; }}",
        "scripts/run --once": "cd /usr/src/kepd && scripts/run --once",
    }


def suite(login: Sequence[str], tests: Sequence[str]) -> int:
    """What a step prints is seen at once. The exit code says whether all went well."""
    report, failed = [], 0
    for what, script in steps(tests).items():
        print(f"==> {what}", flush=True)
        began_s = time.monotonic()
        code = subprocess.run([*login, script], check=False, stdin=subprocess.DEVNULL).returncode
        report.append(f"  {what}: {time.monotonic() - began_s:.0f} s{' FAILED' if code else ''}")
        failed |= code
    print("\n".join(report))
    return int(bool(failed))
