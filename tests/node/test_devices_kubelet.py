# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a real kubelet: it registers, its slices are published, and its sockets go with it.

Runs where KEPD_KUBELET names a kubelet program, 1.34 or newer. The API server is that of the tests: the kubelet runs
without one, which is enough for it to register drivers.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import Kepd
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.lab import Lab
from tests.lab.kubelet import Program, groups, kubelet

PROGRAM = os.environ.get("KEPD_KUBELET", "")
pytestmark = [pytest.mark.node, pytest.mark.timeout(180), pytest.mark.beside("KEPD_KUBELET")]
DRIVER = "fake.kepd.dev"


def kubeconfig(folder: Path, server: ApiServer, authority: Path) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": server.url, "certificate-authority": str(authority)}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": "good-token"}}],
            }
        )
    )
    path.chmod(0o600)
    return path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Path]]:
    certificates = make_certificates(tmp_path)
    async with serving(certificates) as running:
        running.objects.put("nodes", {"metadata": {"name": "n1", "uid": "node-uid"}, "spec": {}})
        yield running, certificates.ca


def tail_of(log: Path) -> str:
    return log.read_text()[-3000:]


async def until(condition: Callable[[], Any], what: str, log: Path) -> Any:
    for _ in range(3000):
        if found := condition():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within a minute: {what}; {tail_of(log)}")


async def test_a_kubelet_registers_the_driver_again_after_either_began_anew(
    lab: Lab, short_path: Path, free_port: int, server: tuple[ApiServer, Path]
) -> None:
    """DVD-1, DVD-2, DVD-5."""
    running, authority = server
    registry = short_path / "root" / "plugins_registry"
    devices = {
        "driver": {"enabled": True, "fake": {"count": 2}, "kubeletDirectory": str(short_path / "root")},
        "cdi": {"output": str(short_path / "cdi"), "directories": [str(short_path / "cdi")]},
    }
    config = kubeconfig(short_path, running, authority)
    extra = (
        f"devices: {json.dumps(devices)}\npods: {{enabled: false}}\nservices: {{enabled: false}}\n"
        f"images: {{enabled: false}}\nkubernetes: {{kubeconfig: {config}}}\n"
    )
    program = Program.ask(PROGRAM)

    def answers(daemon: Kepd) -> int:
        lines = [line for line in daemon.log.read_text().splitlines() if f"driver={DRIVER}" in line]
        return sum("event=driver_answered_by_kubelet" in line and "registered=true" in line for line in lines)

    with groups(f"kepd-{free_port}") as root, Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        settings = program.settings(lab, short_path, lab.endpoint, cgroupRoot=root, cgroupsPerQOS=False)
        with kubelet(program, lab, short_path, settings):
            await asyncio.to_thread(daemon.start)
            await until(lambda: daemon.log.exists() and answers(daemon) == 1, "registered", daemon.log)
            found = running.objects.get("resourceslices", "", f"n1-{DRIVER}")
            assert [one["name"] for one in found["spec"]["devices"]] == ["fake-0", "fake-1"]
            assert "; registered" in await asyncio.to_thread(lambda: daemon.ctl("status").stdout)
            await asyncio.to_thread(daemon.end)
            assert not (registry / f"{DRIVER}-reg.sock").exists()
            await asyncio.to_thread(daemon.start)
            await until(lambda: answers(daemon) == 2, "registered again", daemon.log)
        with kubelet(program, lab, short_path, settings):
            await until(lambda: answers(daemon) == 3, "registered with a kubelet that began anew", daemon.log)
