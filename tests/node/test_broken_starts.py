# SPDX-License-Identifier: Apache-2.0
"""Pods that run once, on a real runtime, and a kepd that ends while it starts them: each runs."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.host.shown_pods import LIST_PODS
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROUNDS, PODS = 3, 6
SCRIPT = "echo ran >> /out/$HOSTNAME"


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port) as daemon:
        yield daemon


def put(kepd: Kepd, name: str, image: str, out: Path) -> None:
    made = {
        "name": "app", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", SCRIPT],
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
    }  # fmt: skip
    spec = {
        "restartPolicy": "Never",
        "containers": [made],
        "volumes": [{"name": "out", "hostPath": {"path": str(out)}}],
    }
    hidden = kepd.manifests / f".{name}"
    hidden.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
    hidden.rename(kepd.manifests / f"{name}.yaml")


def shown(kepd: Kepd, names: list[str]) -> dict[str, str]:
    """Phases of these pods; none while nobody answers."""
    if kepd.ctl(*LIST_PODS).returncode != 0:
        return {}
    return {one["name"]: one["phase"] for one in kepd.pods() if one["name"].removesuffix("-n1") in names}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_each_runs_once_though_kepd_ends_while_it_starts_them(
    kepd: Kepd, lab: Lab, tmp_path: Path, how: signal.Signals
) -> None:
    """NP-9."""
    image = lab.push(Image(name="node/once"))
    for number in range(ROUNDS):
        names = [f"once-{number}-{one}" for one in range(PODS)]
        for name in names:
            put(kepd, name, image, tmp_path)

        def made(names: list[str] = names) -> int:
            listed = lab.cri.call("ListContainers", pb.ListContainersRequest()).containers
            return sum(one.labels["io.kubernetes.pod.name"].removesuffix("-n1") in names for one in listed)

        kepd.wait(lambda number=number: made() > number, "some are being started", 60.0)  # type: ignore[misc]
        assert kepd.process is not None
        kepd.process.send_signal(how)
        kepd.process.wait()
        kepd.start("--planes", "pods")
        kepd.wait(
            lambda names=names: set(shown(kepd, names).values()) == {"Succeeded"} and len(shown(kepd, names)) == PODS,  # type: ignore[misc]
            "all have run",
            60.0,
        )

    # A kill cuts the call that starts a container off, and the runtime then ends what may have begun.
    most = 2 if how is signal.SIGKILL else 1
    assert {path.read_text() for path in tmp_path.iterdir()} <= {"ran\n" * times for times in range(1, most + 1)}
    assert len(list(tmp_path.iterdir())) == ROUNDS * PODS
