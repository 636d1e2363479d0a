# SPDX-License-Identifier: Apache-2.0
"""The control plane that random changes are played on: without nodes of its own, and with a scheduler that tries anew
soon and says in which order it decides."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.control import ADDRESS, Control
from tests.e2e.programs import Programs
from tests.host.process import ROOT
from tests.lab.namespace import Namespace

# Nobody renews these nodes' leases, and no cloud has them.
LEFT_OUT = ("node-lifecycle-controller", "taint-eviction-controller", "cloud-node-lifecycle-controller")


def play(programs: Programs, folder: Path, count: int, seed: int, record: Path) -> int:
    """1 where Kubernetes did something else than was foretold."""
    with ExitStack() as stack:
        inside = stack.enter_context(Namespace())
        for address, width in ((ADDRESS["IPv4"], 32), (ADDRESS["IPv6"], 128)):
            inside.run("ip", "address", "add", f"{address}/{width}", "dev", "lo")
        control = Control(programs, folder / "control", inside)
        stack.callback(control.__exit__)
        control.start_server()
        control.start_controllers(controllers=",".join(("*", *(f"-{one}" for one in LEFT_OUT))))
        settings = folder / "scheduler.json"
        settings.write_text(json.dumps(_settings(control.kubeconfig)))
        control.start_scheduler(config=settings, v=3)
        argv = (sys.executable, "-m", "tests.e2e.rehearsal.played", str(control.kubeconfig), str(count), str(seed))
        return subprocess.run(control.namespace.command(*argv, str(record)), cwd=ROOT, check=False).returncode


def _settings(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(kubeconfig)},
        "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1,
    }  # fmt: skip
