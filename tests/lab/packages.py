# SPDX-License-Identifier: Apache-2.0
"""The programs a lab needs and the Debian packages that have them.

Owns: the search for each program, the version of containerd, and one message that names all that is missing.
Never: installs anything; scripts/ does that, a developer may.
KEPD_LAB_BIN names directories (separated by colons) that are searched first, for instance those of a newer containerd.
"""

import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError

__all__ = ["DEBIAN_PACKAGES", "Programs", "find_programs"]

DEBIAN_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "docker-registry": "docker-registry",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
CNI_PACKAGE = "containernetworking-plugins"
CNI_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin")
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PROGRAM_HEADER_INTERPRETER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Full paths of what the lab runs."""

    paths: dict[str, Path]
    cni_directory: Path
    containerd_version: tuple[int, int]

    def __getitem__(self, program: str) -> str:
        return str(self.paths[program])

    def environment(self) -> dict[str, str]:
        """What the lab's processes see: nothing of the caller's, so no proxy or notify socket leaks in."""
        own = dict.fromkeys(str(self.paths[name].parent) for name in ("containerd-shim-runc-v2", "containerd", "runc"))
        return {"PATH": ":".join([*own, *SYSTEM_DIRECTORIES]), "HOME": "/root", "LANG": "C.UTF-8"}


def find_programs() -> Programs:
    """Look for all of it at once, so that one run tells everything that is to be installed."""
    if os.geteuid() != 0:
        raise LabError(f"a lab needs root for namespaces, mounts and cgroups; running as uid {os.geteuid()}, use sudo")
    search = os.pathsep.join(
        filter(None, (os.environ.get("KEPD_LAB_BIN"), os.environ.get("PATH"), *SYSTEM_DIRECTORIES))
    )
    found = {name: shutil.which(name, path=search) for name in DEBIAN_PACKAGES}
    missing = {name: DEBIAN_PACKAGES[name] for name, path in found.items() if path is None}
    cni_directory = next((Path(d) for d in CNI_DIRECTORIES if all(Path(d, p).exists() for p in CNI_PLUGINS)), None)
    if cni_directory is None:
        missing["CNI plugins " + ", ".join(CNI_PLUGINS)] = CNI_PACKAGE
    if missing or cni_directory is None:
        raise LabError(
            f"not found: {', '.join(missing)} (searched {search} and {', '.join(CNI_DIRECTORIES)}); "
            f"on Debian: apt-get install {' '.join(sorted(set(missing.values())))}"
        )
    paths = {name: Path(path) for name, path in found.items() if path is not None}
    if not _is_static(paths["busybox"]):
        raise LabError(
            f"{paths['busybox']}: needs shared libraries, so it would not start in an image that holds nothing else; "
            f"on Debian: apt-get install {DEBIAN_PACKAGES['busybox']}"
        )
    return Programs(paths=paths, cni_directory=cni_directory, containerd_version=_version(paths["containerd"]))


def _version(containerd: Path) -> tuple[int, int]:
    text = subprocess.run([containerd, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    match = re.search(r"\sv?(\d+)\.(\d+)[.~+\s-]", text)
    if match is None:
        raise LabError(
            f"{containerd} --version: no version number in {text.strip()!r}; expected one like 1.6.20 or 2.1.9"
        )
    return int(match[1]), int(match[2])


def _is_static(program: Path) -> bool:
    """An ELF file without an interpreter header is complete in itself."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            return False
        (table,) = struct.unpack_from("<Q", head, 32)
        entry_size, entries = struct.unpack_from("<HH", head, 54)
        file.seek(table)
        headers = file.read(entry_size * entries)
    kinds = {struct.unpack_from("<I", headers, i * entry_size)[0] for i in range(entries)}
    return PROGRAM_HEADER_INTERPRETER not in kinds
