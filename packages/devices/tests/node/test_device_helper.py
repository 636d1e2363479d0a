# SPDX-License-Identifier: Apache-2.0
"""A driver made with Kubernetes' helper library on a node without an API server: it publishes, prepares and unprepares.

Runs where KEPD_DRA_DRIVER names a program that takes --kubeconfig, --node, --driver, --registry, --data and --health,
publishes devices gpu-0 and gpu-1, answers with CDI ids example.com/gpu=DEVICE, prints what it is asked, and tells again
and again what the file of --health has: a line NAME STATUS MESSAGE for each device.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.daemon import free_port as another_port
from packages.devices.tests.node.test_devices import add, claiming, pods_config, stage_of, variables
from tests.host.process import Kepd
from tests.lab import Lab
from tests.node.pods import Stage
from tests.node.test_pod_life import events

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
        self.health = folder / "health"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "k" / "plugins" / DRIVER).mkdir(parents=True, exist_ok=True)
        flags = {
            "kubeconfig": self.folder / "run" / "drivers" / f"{DRIVER}.kubeconfig", "node": "n1", "driver": DRIVER,
            "registry": self.folder / "k" / "plugins_registry", "data": self.folder / "k" / "plugins" / DRIVER,
            "health": self.health,
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


def health_of(stage: Stage) -> str:
    status = json.loads(stage.kepd.ctl("get", "pod", f"{stage.name}-n1", "-o", "json").stdout)["status"]
    (devices,) = status["containerStatuses"][0]["allocatedResourcesStatus"]
    return str(devices["resources"][0]["health"])


def test_the_health_that_such_a_driver_tells_is_shown(kepd: Kepd, lab: Lab, driver: Driver) -> None:
    """DVX-4, DVX-6: also after the driver began anew; a device that is unhealthy goes to no other pod."""
    add(kepd, "gpus", OBJECTS)
    driver.health.write_text("gpu-0 HEALTHY well\ngpu-1 UNHEALTHY fell off the bus\n")
    driver.start()
    kepd.wait(lambda: "unhealthy" in kepd.ctl("get", "devices").stdout, "told")
    wide = kepd.ctl("get", "devices", "-o", "wide").stdout
    stage, second = stage_of(kepd, lab), stage_of(kepd, lab, "second")
    claiming(stage, "gpu")
    stage.wait(lambda: stage.lines("app"), "it runs")
    claiming(second, "gpu")
    second.wait(lambda: "1 unhealthy" in dict(events(second)).get("ClaimUnallocatable", ""), "it waits")
    first = health_of(stage)
    driver.health.write_text("gpu-0 UNHEALTHY too hot\ngpu-1 HEALTHY well\n")
    second.wait(lambda: second.lines("app"), "it has the device that is well again")
    told = kepd.ctl("get", "events").stdout
    driver.end()
    driver.start()
    kepd.wait(lambda: driver.said().count("health") == 2, "asked again")
    driver.health.write_text("gpu-0 HEALTHY well\n")
    kepd.wait(lambda: health_of(stage) == "Healthy", "well")

    assert (first, variables(second)["GPU"]) == ("Healthy", "1")
    assert "fell off the bus" in wide
    assert "gpu-0, which claim" in told
    assert "is unhealthy: too hot" in told
    for one in (stage, second):
        one.remove()
    for one in (stage, second):
        one.wait_gone()
