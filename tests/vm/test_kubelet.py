# SPDX-License-Identifier: Apache-2.0
"""The machine `kubelet` of the Vagrantfile: its own scripts, but for the packages, with programs that variables name.

The kubelet and kubectl are put into the machine; etcd, API server, controllers and scheduler run here, in a network
namespace, for they would take minutes to begin in an emulated machine. A socket leads from there to here.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.control import ADDRESS, PORT, Control, kubeconfig
from tests.e2e.programs import VARIABLES, Programs
from tests.lab.namespace import Namespace
from tests.vm.disk import Disk
from tests.vm.machine import Machine
from tests.vm.node import by_vagrantfile, fresh_node

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400), pytest.mark.beside("KEPD_SCHEDULER")]
HERE = Path(__file__).parent
SCRIPTS = "/vagrant/deploy/vagrant"
RELAY = """
import asyncio, sys
path, host, port = sys.argv[1:]
async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def serve(reader, writer):
    there = await asyncio.open_connection(host, int(port))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
async def main():
    async with await asyncio.start_unix_server(serve, path) as server:
        await server.serve_forever()
asyncio.run(main())
"""
HOLDS = ("the node is ready", "a pod runs through the proxy", "the node is ready after a restart of the proxy")


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    found = {part: shutil.which(os.environ.get(name, "")) or "" for part, (name, _) in VARIABLES.items()}
    with Namespace() as place:
        place.run("ip", "addr", "add", f"{ADDRESS['IPv4']}/32", "dev", "lo")
        with Control(Programs(**found, images=()), tmp_path_factory.mktemp("control") / "c", place) as control:
            yield control


@pytest.fixture(scope="module")
def machine(disk: Disk, control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With all that the Vagrantfile's scripts for this machine find there when they begin."""
    with fresh_node(disk, tmp_path_factory.mktemp("kubelet")) as machine:
        for path in (control.programs.kubelet, control.programs.kubectl):
            machine.send(Path(path), f"/usr/bin/{Path(path).name}")
        machine.send(HERE / "kubeadm", "/usr/bin/kubeadm")
        machine.write("/etc/systemd/system/kubelet.service", (HERE / "kubelet.service").read_text())
        machine.write("/root/cluster.conf", credentials(control), "0600")
        by_vagrantfile(machine, "cgroups.sh")
        with relay(control) as socket:
            machine.lead_back(PORT, socket)
            yield machine


@contextmanager
def relay(control: Control) -> Iterator[Path]:
    """A socket of this machine that leads to the API server, which is in a network of its own."""
    socket = control.folder / "s"
    command = control.namespace.command(sys.executable, "-c", RELAY, str(socket), ADDRESS["IPv4"], str(PORT))
    with subprocess.Popen(command) as child:
        try:
            yield socket
        finally:
            child.terminate()


def credentials(control: Control) -> str:
    known = json.loads(control.kubeconfig.read_text())
    made = kubeconfig(known["users"][0]["user"]["token"], control.folder / "ca.crt")
    authority = base64.b64encode((control.folder / "ca.crt").read_bytes()).decode()
    made["clusters"][0]["cluster"] = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority-data": authority}
    return json.dumps(made)


def test_what_the_vagrantfile_promises_of_a_kubelet_holds(machine: Machine) -> None:
    """Its own scripts, word for word: a kubelet reaches containerd through kepd."""
    machine.run(f"KUBERNETES=v1.36 sh {SCRIPTS}/kubelet.sh")
    said = machine.run(f"sh {SCRIPTS}/check.sh kubelet", within_s=1200.0)

    assert [line for line in said.splitlines() if line.startswith("==>")] == [f"==> kubelet: {one}" for one in HOLDS]
