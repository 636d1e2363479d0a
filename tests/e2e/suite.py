# SPDX-License-Identifier: Apache-2.0
"""The suite: which of its specs are chosen, and what became of each.

Several processes of it run side by side, each with its own specs, the same on either side; those that must be alone
come afterwards, one after the other.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.control import Control
from tests.e2e.programs import Programs

ALONE = re.compile(r"\[(Serial|Disruptive)\]")

# Of one process: what still runs then counts as interrupted, and the report says so.
LONGEST = "5h"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one spec."""

    status: str
    seconds: float
    message: str = ""


def chosen(programs: Programs, folder: Path, focus: str, skip: str) -> list[str]:
    """The full names of the specs, in order."""
    report = folder / "chosen.json"
    command = [
        programs.suite, "--kubeconfig=/dev/null", "--provider=skeleton", "--ginkgo.dry-run", "--ginkgo.silence-skips",
        f"--ginkgo.focus={focus}", f"--ginkgo.skip={skip}", f"--ginkgo.json-report={report}",
    ]  # fmt: skip
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=300)
    return sorted(name for name, one in outcomes(json.loads(report.read_text())).items() if one.status != "skipped")


def parts(names: Sequence[str], count: int) -> tuple[list[list[str]], list[str]]:
    """So many lists that may run side by side, and one whose specs must be alone."""
    beside = [name for name in names if not ALONE.search(name)]
    return [part for part in (beside[at::count] for at in range(count)) if part], [n for n in names if ALONE.search(n)]


def outcomes(report: Any) -> dict[str, Outcome]:
    """By name, of a report in the suite's own format."""
    found = {}
    for suite in report:
        for one in suite.get("SpecReports") or ():
            if one.get("LeafNodeType") == "It":
                name = " ".join([*(one.get("ContainerHierarchyTexts") or ()), one["LeafNodeText"]])
                message = (one.get("Failure") or {}).get("Message", "")
                found[name] = Outcome(one["State"], one.get("RunTime", 0) / 1e9, message)
    return found


def run(programs: Programs, control: Control, folder: Path, names: Sequence[str], beside: int) -> dict[str, Outcome]:
    """What became of each; a process of the suite that ended without a report leaves its specs out."""
    together, alone = parts(names, beside)
    found: dict[str, Outcome] = {}
    for batch in (together, [alone] if alone else []):
        with ExitStack() as running:
            begun = [_begin(programs, control, folder, part, f"{len(part)}-{at}") for at, part in enumerate(batch)]
            for process, _ in begun:
                running.callback(process.kill)
            for process, report in begun:
                process.wait()
                if report.exists():
                    done = outcomes(json.loads(report.read_text()))
                    found |= {name: one for name, one in done.items() if has_run(one)}
    return found


def has_run(one: Outcome) -> bool:
    """A spec that was not chosen is skipped without a word."""
    return one.status not in ("skipped", "pending") or bool(one.message)


def _begin(
    programs: Programs, control: Control, folder: Path, names: Sequence[str], label: str
) -> tuple["subprocess.Popen[bytes]", Path]:
    report = folder / f"report-{label}.json"
    # The suite puts a title of its own before each name.
    focus = "|".join(f"(?:^|suite ){re.escape(name)}$" for name in names)
    command = control.namespace.command(
        programs.suite, f"--kubeconfig={control.kubeconfig}", "--provider=skeleton", "--num-nodes=3",
        f"--kubectl-path={programs.kubectl}", f"--ginkgo.focus={focus}", f"--ginkgo.json-report={report}",
        f"--ginkgo.timeout={LONGEST}", "--ginkgo.silence-skips", "--disable-log-dump", "--ginkgo.no-color",
    )  # fmt: skip
    with (folder / f"suite-{label}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log), report
