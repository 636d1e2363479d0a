# SPDX-License-Identifier: Apache-2.0
"""A machine for people: `scripts/vm up|ssh|down`, and `scripts/vm test` for its tests. State is in build/vm. `packages`
alone fetches what a disk is made of, which is kept for later, and `box` makes of it what Vagrant starts from. `suite`
runs the tree's own tests in the machine that is up, for `--arch arm64 up` makes one that has what they need."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.e2e.programs import MissingError
from tests.host.process import ROOT
from tests.vm.box import box_of
from tests.vm.disk import Disk, make, packages_of
from tests.vm.machine import SSH, Machine
from tests.vm.node import by_vagrantfile, give_images
from tests.vm.release import chosen
from tests.vm.suite import suite

PLACE = ROOT / "build/vm"
STATE = PLACE / "state.json"
END_S = 300
# An emulated machine keeps little more than one processor busy, so two share the files.
ALL = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "tests/vm")


class Kept(msgspec.Struct):
    """A machine that runs in the background."""

    pid: int
    port: int
    key: str

    @property
    def is_on(self) -> bool:
        with suppress(OSError):
            return b"qemu" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return False

    def command(self) -> list[str]:
        return ["ssh", *SSH, "-i", self.key, "-p", str(self.port), "root@127.0.0.1"]


def kept() -> Kept | None:
    found = msgspec.json.decode(STATE.read_bytes(), type=Kept) if STATE.exists() else None
    return found if found is not None and found.is_on else None


def up() -> None:
    if kept() is not None:
        print("the machine is up; scripts/vm ssh leads in")
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    release, began_s = chosen(), time.monotonic()
    print(f"making a disk of Debian {release.number}: some minutes the first time", flush=True)
    disk: Disk = make(release, PLACE / "disk")
    (PLACE / "run").mkdir()
    machine = Machine(disk, PLACE / "run")
    print(f"made in {time.monotonic() - began_s:.0f} s; starting it", flush=True)
    machine.start()
    print(f"up after {time.monotonic() - began_s:.0f} s", flush=True)
    STATE.write_bytes(msgspec.json.encode(Kept(machine.pid, machine.port, str(disk.key))))
    give_images(machine)
    print(by_vagrantfile(machine, "cgroups.sh", "bare.sh", "check.sh bare"), end="")


def ssh(arguments: list[str]) -> None:
    machine = kept() or sys.exit("no machine is up; scripts/vm up makes one")
    os.execvp("ssh", [*machine.command(), *arguments])


def down() -> None:
    machine = kept()
    if machine is not None:
        subprocess.run([*machine.command(), "systemctl poweroff"], check=False, timeout=END_S)
        deadline_s = time.monotonic() + END_S
        while machine.is_on and time.monotonic() < deadline_s:
            time.sleep(0.5)
        if machine.is_on:
            os.kill(machine.pid, signal.SIGKILL)
    shutil.rmtree(PLACE, ignore_errors=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--arch", name, *rest]:
            os.environ["KEPD_VM_ARCH"] = name
            main(rest)
        case ["up"]:
            up()
        case ["ssh", *rest]:
            ssh(rest)
        case ["test", *rest]:
            os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-m", "vm", *(rest or ALL)])
        case ["suite", *rest]:
            machine = kept() or sys.exit("no machine is up; scripts/vm --arch arm64 up makes one")
            sys.exit(suite(machine.command(), rest))
        case ["down"]:
            down()
        case ["packages"]:
            print(packages_of(chosen()))
        case ["box", "bare" | "kubelet" as machine]:
            try:
                print(box_of(chosen(), machine))
            except MissingError as missing:
                sys.exit(str(missing))
        case _:
            sys.exit(
                "scripts/vm [--arch amd64|arm64] up | ssh [COMMAND] | test [PYTEST ARGUMENTS] | suite [TESTS] | down | "
                "packages | box bare|kubelet; KEPD_VM_RELEASE=12|13|forky"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
