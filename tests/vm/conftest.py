# SPDX-License-Identifier: Apache-2.0
"""One machine for all tests of a process: first as a newcomer has it, with the package and nothing set up, then as the
Vagrantfile sets it up. They share it, so each leaves it as it was. Two processes share the files, each with a machine:
one emulated machine keeps little more than one processor busy."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.vm.architecture import chosen as chosen_architecture
from tests.vm.disk import Disk, make
from tests.vm.drop_in import GUARD, SETTINGS, settle
from tests.vm.extent import IS_WHOLE
from tests.vm.machine import Machine
from tests.vm.node import by_vagrantfile, fresh_node
from tests.vm.pods import until_ready
from tests.vm.release import Release, chosen

HERE = Path(__file__).parent
# By file: one that wants a machine without anything, one that reads a whole journal, the longest; then one that takes
# kepd off the machine, and one that begins there with another.
ORDER = {"test_first_hour.py": -3, "test_bare.py": -2, "test_ends.py": -1, "test_uninstall.py": 1, "test_upgrade.py": 2}
# Half an hour of its own, so it is part of `make vm-test` and not of CI.
LONG = ("test_features.py", "test_upgrade.py")
collect_ignore = [] if IS_WHOLE else [str(HERE / name) for name in LONG]
# Commits: one whose state a machine may have, and the last of the version before this one.
EARLIER = {"older": ("KEPD_VM_OLDER", "6ead959"), "previous": ("KEPD_VM_PREVIOUS", "0966a1e2")}
# One of several that share the tests has a name.
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "")
NEEDED = (chosen_architecture().qemu, "qemu-img", "mmdebstrap", "mkfs.ext4", "ssh", "ssh-keygen")


@pytest.fixture(scope="session")
def release() -> Release:
    return chosen()


@pytest.fixture(scope="session")
def disk(release: Release, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing and os.environ.get("KEPD_NO_VM") == "1":
        pytest.skip(f"KEPD_NO_VM=1, and this machine has no {', '.join(missing)}")
    assert not missing, f"missing: {', '.join(missing)}; scripts/prepare installs them, KEPD_NO_VM=1 does without"
    is_upgraded = any(item.path.name == "test_upgrade.py" for item in request.session.items)
    earlier = {name: os.environ.get(variable) or commit for name, (variable, commit) in EARLIER.items()}
    # Machines write above it, so one is enough for all processes: the first makes it, the others wait.
    place = tmp_path_factory.getbasetemp()
    place = (place.parent if PROCESS else place) / "disk"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = place / "made.json"
        if not note.exists():
            made = make(release, place / "made", earlier if is_upgraded else {})
            note.write_text(json.dumps({name: str(path) for name, path in asdict(made).items()}))
        return Disk(**{name: Path(path) for name, path in json.loads(note.read_text()).items()})


@pytest.fixture(scope="session")
def fresh(disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with fresh_node(disk, tmp_path_factory.mktemp(f"{PROCESS}bare")) as machine:
        yield machine


@pytest.fixture(scope="session")
def grouped(fresh: Machine) -> Machine:
    """The same with containers in the groups of systemd, by the Vagrantfile's own script."""
    by_vagrantfile(fresh, "cgroups.sh")
    return fresh


@pytest.fixture(scope="session")
def bare(grouped: Machine) -> Machine:
    """A node with pods and Services from files, by the Vagrantfile's own script, to which the README led already."""
    by_vagrantfile(grouped, "bare.sh")
    return grouped


@pytest.fixture(scope="session")
def tuned(bare: Machine) -> Machine:
    """The same with all that an administrator sets for the tests of the next files: kepd starts once for it."""
    settle(bare, GUARD, *SETTINGS)
    bare.run("systemctl daemon-reload && systemctl enable kepd-guard && systemctl restart kepd")
    until_ready(bare, "web")
    return bare


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share a machine, so their order is fixed, file by file as written. One test may hang kepd or cut its power,
    and leave that in the journal that another reads."""
    ours = [item for item in items if item.path.parent == HERE]
    ours.sort(key=lambda item: (ORDER.get(item.path.name, 0), item.location[0], item.location[1] or 0, _turn(item)))
    items[:] = [item for item in items if item.path.parent != HERE] + ours


def _turn(item: pytest.Item) -> tuple[int, ...]:
    """Of one of several cases of a test, as they are listed there."""
    return (
        tuple(item.callspec.indices.values()) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
