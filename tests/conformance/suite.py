# SPDX-License-Identifier: Apache-2.0
"""The suite against one node: each spec in a process of its own, several at a time."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.conformance.node import BareNode
from tests.e2e.suite import has_run, outcomes

FOLDER = Path(__file__).parent / "specs"
GROUPS = ("node", "storage", "apps", "network", "policies")
PASSED = "passed"
LIMIT_S, AFTER_S = 420, 60
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Spec:
    group: str
    name: str


@dataclass(frozen=True, slots=True)
class Result:
    spec: Spec
    status: str
    seconds: float
    message: str = ""


def listed(text: str, group: str) -> list[Spec]:
    """Of a file: a name each line; a line that begins with # says why those below it are last, or are quick."""
    return [Spec(group, line) for line in text.splitlines() if line and not line.startswith("#")]


def specs() -> list[Spec]:
    return [one for group in GROUPS for one in listed((FOLDER / f"{group}.txt").read_text(), group)]


def quick_specs() -> list[Spec]:
    """Some of all groups."""
    names = {one.name for one in listed((FOLDER / "quick.txt").read_text(), "")}
    return [one for one in specs() if one.name in names]


def run_all(
    chosen: Sequence[Spec], beside: int, ask: Callable[[Spec, int], Result], tell: Callable[[Result], None]
) -> list[Result]:
    """In the order of their ends."""
    waiting, done, lock = list(enumerate(chosen)), list[Result](), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, spec = waiting.pop(0)
            result = ask(spec, number)
            with lock:
                done.append(result)
                tell(result)

    threads = [threading.Thread(target=work) for _ in range(beside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


class Suite:
    """`program` is e2e.test; `folder` gets a log and a report of each spec."""

    def __init__(self, program: str, kubectl: str, node: BareNode, folder: Path) -> None:
        self._program, self._kubectl, self._node, self._folder = program, kubectl, node, folder
        folder.mkdir(exist_ok=True)

    def ask(self, spec: Spec, number: int) -> Result:
        report, log = self._folder / f"{number}.json", self._folder / f"{number}.log"
        argv = [
            self._program, f"--kubeconfig={self._node.kubeconfig}", "--provider=skeleton", "--num-nodes=1",
            f"--kubectl-path={self._kubectl}", f"--ginkgo.focus=(?:^|suite ){re.escape(spec.name)}$",
            f"--ginkgo.json-report={report}", f"--ginkgo.timeout={LIMIT_S}s", "--ginkgo.grace-period=15s",
            "--ginkgo.silence-skips", "--disable-log-dump", "--ginkgo.no-color", "--dns-domain=cluster.local",
            "--kube-api-content-type=application/json",
        ]  # fmt: skip
        began_s = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(self._node.command(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            try:
                process.wait(LIMIT_S + AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return result_of(spec, report, log, time.monotonic() - began_s)


def result_of(spec: Spec, report: Path, log: Path, seconds: float) -> Result:
    """A suite that failed before its spec began has none."""
    found = outcomes(json.loads(report.read_text())) if report.exists() else {}
    if (one := found.get(spec.name)) is not None and has_run(one):
        return Result(spec, one.status, one.seconds, " ".join(one.message.split()))
    tail = log.read_bytes()[-SHOWN:].decode("utf-8", "replace") if log.exists() else ""
    return Result(spec, "not run", seconds, " ".join(tail.split()))


def table(results: Iterable[Result]) -> str:
    """By group, with what failed below."""
    found = list(results)
    lines = [f"{'group':<10} {'passed':>6} {'of':>4}"]
    for group in dict.fromkeys(one.spec.group for one in found):
        own = [one for one in found if one.spec.group == group]
        lines.append(f"{group:<10} {sum(one.status == PASSED for one in own):>6} {len(own):>4}")
    lines.append(f"{'all':<10} {sum(one.status == PASSED for one in found):>6} {len(found):>4}")
    for one in found:
        if one.status != PASSED:
            lines += ["", f"{one.status} after {one.seconds:.0f} s: {one.spec.name}", f"  {one.message[:SHOWN]}"]
    return "\n".join(lines) + "\n"


def junit(results: Sequence[Result]) -> bytes:
    failed = sum(one.status != PASSED for one in results)
    root = ET.Element("testsuite", name="conformance", tests=str(len(results)), failures=str(failed))
    for one in results:
        case = ET.SubElement(root, "testcase", classname=one.spec.group, name=one.spec.name, time=f"{one.seconds:.1f}")
        if one.status != PASSED:
            ET.SubElement(case, "failure", message=_clean(one.message[:SHOWN]), type=one.status)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    """XML has no control characters."""
    return "".join(each if each.isprintable() else " " for each in text)
