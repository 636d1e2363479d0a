# SPDX-License-Identifier: Apache-2.0
"""The processors that machines are made for. KEPD_VM_ARCH or `scripts/vm --arch` names one; without it, amd64."""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

HANDLERS = Path("/proc/sys/fs/binfmt_misc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """By Debian's name. `machine` is the kernel's and QEMU's name of it, `append` what its kernel alone is told."""

    name: str
    machine: str
    board: str
    processor: str
    append: str

    @property
    def qemu(self) -> str:
        return f"qemu-system-{self.machine}"

    @property
    def emulation(self) -> tuple[str, ...]:
        return "-machine", self.board, "-accel", "tcg,thread=multi", "-cpu", self.processor

    @property
    def is_ours(self) -> bool:
        return platform.machine() == self.machine

    def missing(self) -> str:
        """What this machine lacks to install its packages in a tree, and where it comes from."""
        if self.is_ours:
            return ""
        if not (HANDLERS / f"qemu-{self.machine}").exists():
            return (
                f"this machine runs no programs of {self.name}: {HANDLERS} has no qemu-{self.machine}; apt-get install "
                "qemu-user-static binfmt-support arch-test, and see that binfmt_misc is mounted there"
            )
        return (
            "" if shutil.which("arch-test") else "mmdebstrap asks arch-test what runs here; apt-get install arch-test"
        )


ARCHITECTURES = {
    one.name: one
    for one in (
        # cmpxchg16b of the emulation is not what newer kernels expect; a fifth level of page tables makes each miss
        # dearer. A clock that is a device costs an emulated machine much of its time.
        Architecture(
            name="amd64", machine="x86_64", board="q35", processor="max,-cx16,-la57,+invtsc",
            append="console=ttyS0 tsc=reliable no5lvl",
        ),
        # An emulation takes long for the cipher of signed pointers, and for vectors of any length, which libc prefers.
        Architecture(
            name="arm64", machine="aarch64", board="virt,gic-version=3", processor="max,pauth-impdef=on,sve=off",
            append="console=ttyAMA0",
        ),
    )
}  # fmt: skip


def chosen() -> Architecture:
    name = os.environ.get("KEPD_VM_ARCH", "amd64")
    if name not in ARCHITECTURES:
        raise SystemExit(f"KEPD_VM_ARCH is {name!r}; expected: one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
