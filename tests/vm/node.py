# SPDX-License-Identifier: Apache-2.0
"""How a machine becomes a node: the images it starts with, the Vagrantfile's own scripts, and an API server here that
a port of it leads to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.api_cluster import kubeconfig
from tests.drivers.kube.api_server import ApiServer
from tests.vm.disk import LONGEST_S, Disk
from tests.vm.machine import Machine

PAUSE = "registry.k8s.io/pause:3.10"
API_PORT = 16443


@contextmanager
def fresh_node(disk: Disk, folder: Path) -> Iterator[Machine]:
    """Debian's containerd as its package sets it up, and kepd's package. Nothing was set up or started."""
    with Machine(disk, folder) as machine:
        give_images(machine)
        yield machine


def give_images(machine: Machine) -> None:
    """The pause image also under the name that this containerd asks for by itself."""
    machine.run("for archive in /root/images/*.tar; do ctr -n k8s.io images import $archive; done")
    machine.run(
        'name=$(containerd config dump | sed -n "s/.*sandbox\\(_image\\)\\? = //p" | tr -d "\'\\"" | head -n 1);'
        f"[ $name = {PAUSE} ] || ctr -n k8s.io images tag {PAUSE} $name"
    )


def by_vagrantfile(machine: Machine, *steps: str) -> str:
    """Its own scripts, word for word, and what they print."""
    return machine.run(" && ".join(f"sh /vagrant/deploy/vagrant/{step}" for step in steps), within_s=LONGEST_S)


def give_kubeconfig(machine: Machine, server: ApiServer, folder: Path, name: str) -> None:
    """For a server that the machine finds at its own API_PORT, and the authority that it trusts beside it."""
    assert server.certificates is not None
    authority = f"/etc/kepd/{name}.crt"
    config = json.loads(kubeconfig(folder, server).read_text())
    config["clusters"][0]["cluster"] = {
        "server": f"https://127.0.0.1:{API_PORT}", "certificate-authority": authority
    }  # fmt: skip
    machine.write(authority, server.certificates.ca.read_text())
    machine.write(f"/etc/kepd/{name}.kubeconfig", json.dumps(config), "0600")
