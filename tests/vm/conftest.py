# SPDX-License-Identifier: Apache-2.0
"""One machine for all tests of a run: first as a newcomer has it, with the package and nothing set up, then as the
Vagrantfile sets it up. They share it, so each leaves it as it was."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.disk import Disk, make
from tests.vm.machine import QEMU, Machine
from tests.vm.release import Release, chosen

HERE = Path(__file__).parent
FIRST, LAST = "test_first_hour.py", "test_uninstall.py"
PAUSE = "registry.k8s.io/pause:3.10"
NEEDED = (QEMU, "qemu-img", "mmdebstrap", "mkfs.ext4", "ssh", "ssh-keygen")


@pytest.fixture(scope="session")
def release() -> Release:
    return chosen()


@pytest.fixture(scope="session")
def disk(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing and os.environ.get("KEPD_NO_VM") == "1":
        pytest.skip(f"KEPD_NO_VM=1, and this machine has no {', '.join(missing)}")
    assert not missing, f"missing: {', '.join(missing)}; scripts/prepare installs them, KEPD_NO_VM=1 does without"
    return make(release, tmp_path_factory.mktemp("disk") / "made")


@pytest.fixture(scope="session")
def fresh(disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Debian's containerd as its package sets it up, and kepd's package. Nothing was set up or started."""
    with Machine(disk, tmp_path_factory.mktemp("bare")) as machine:
        give_images(machine)
        yield machine


@pytest.fixture(scope="session")
def bare(fresh: Machine) -> Machine:
    """A node with pods and Services from files, by the Vagrantfile's own scripts."""
    for script in ("cgroups", "bare"):
        fresh.run(f"sh /vagrant/deploy/vagrant/{script}.sh")
    return fresh


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share a machine, so their order is fixed, file by file as written. One test may hang kepd or cut its power,
    and leave that in the journal that another reads. What wants a machine without any of it comes first, and what takes
    kepd off it last."""
    ours = [item for item in items if item.path.parent == HERE]
    ours.sort(
        key=lambda item: (item.path.name == LAST, item.path.name != FIRST, item.location[0], item.location[1] or 0)
    )
    items[:] = [item for item in items if item.path.parent != HERE] + ours


def give_images(machine: Machine) -> None:
    """The pause image also under the name that this containerd asks for by itself."""
    machine.run("for archive in /root/images/*.tar; do ctr -n k8s.io images import $archive; done")
    machine.run(
        'name=$(containerd config dump | sed -n "s/.*sandbox\\(_image\\)\\? = //p" | tr -d "\'\\"" | head -n 1);'
        f"[ $name = {PAUSE} ] || ctr -n k8s.io images tag {PAUSE} $name"
    )
