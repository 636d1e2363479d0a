# SPDX-License-Identifier: Apache-2.0
"""A driver made with Kubernetes' helper library on a node without an API server: it publishes, prepares and unprepares.

Runs where KEPD_DRA_DRIVER names a program that takes --kubeconfig, --node, --driver, --registry and --data, publishes
devices gpu-0 and gpu-1, answers with CDI ids example.com/gpu=DEVICE, and prints what it is asked.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.daemon import free_port as another_port
from tests.daemon.process import Kepd
from tests.lab import Lab
from tests.node.test_devices import add, claiming, pods_config, stage_of, variables

PROGRAM = os.environ.get("KEPD_DRA_DRIVER", "")
pytestmark = [pytest.mark.node, pytest.mark.timeout(240), pytest.mark.beside("KEPD_DRA_DRIVER")]
DRIVER = "gpu.example.com"
OBJECTS = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: gpus}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: gpu}}
spec: {{spec: {{devices: {{requests: [{{name: one, exactly: {{deviceClassName: gpus}}}}]}}}}}}
"""


class Driver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "k" / "plugins" / DRIVER).mkdir(parents=True, exist_ok=True)
        flags = {
            "kubeconfig": self.folder / "run" / "drivers" / f"{DRIVER}.kubeconfig", "node": "n1", "driver": DRIVER,
            "registry": self.folder / "k" / "plugins_registry", "data": self.folder / "k" / "plugins" / DRIVER,
        }  # fmt: skip
        with self.log.open("ab") as out:
            argv = [PROGRAM, *(f"--{name}={value}" for name, value in flags.items())]
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.said().splitlines() if line.startswith(("prepare ", "unprepare "))]

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture
def driver(short_path: Path) -> Iterator[Driver]:
    made = Driver(short_path)
    yield made
    made.end()


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    devices = {
        "manager": {
            "enabled": True, "registry": str(short_path / "k" / "plugins_registry"), "slices": "",
        },
        "api": {"enabled": True, "address": f"127.0.0.1:{another_port()}", "drivers": [DRIVER]},
        "cdi": {"directories": [str(lab.place.cdi)], "output": str(lab.place.cdi)}, "podResources": "",
    }  # fmt: skip
    lab.place.cdi.mkdir(exist_ok=True)
    edits = [{"name": f"gpu-{number}", "containerEdits": {"env": [f"GPU={number}"]}} for number in range(2)]
    spec = lab.place.cdi / "example.com-gpu.json"
    spec.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": edits}))
    extra = pods_config(lab, short_path) + f"devices: {json.dumps(devices)}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        daemon.start("--planes", "pods,devices").wait_ready()
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", within_s=60)
    spec.unlink()


def test_a_driver_of_the_helper_library_works_without_a_cluster(kepd: Kepd, lab: Lab, driver: Driver) -> None:
    """DVS-4, DVM-30 to DVM-33: kepd and the driver begin anew while a pod has its device."""
    add(kepd, "gpus", OBJECTS)
    driver.start()
    names = ("gpu-0", "gpu-1")
    kepd.wait(lambda: all(name in kepd.ctl("get", "devices").stdout for name in names), "published")
    stage = stage_of(kepd, lab)
    claiming(stage, "gpu", "env > /out/env")
    stage.wait(lambda: stage.lines("app"), "it runs")
    assert variables(stage)["GPU"] == "0"

    kepd.end(9)
    kepd.start("--planes", "pods,devices").wait_ready()
    driver.end()
    driver.start()
    kepd.wait(lambda: driver.said().count("published") == 2, "published again")
    second = stage_of(kepd, lab, "second")
    claiming(second, "gpu", "env > /out/env")
    second.wait(lambda: second.lines("app"), "it runs")
    assert variables(second)["GPU"] == "1"
    for one in (stage, second):
        one.remove()
    for one in (stage, second):
        one.wait_gone()

    assert sorted(driver.calls()) == ["prepare", "prepare", "unprepare", "unprepare"]
    assert "error" not in driver.said()
