# SPDX-License-Identifier: Apache-2.0
"""A newer containerd and runc, of a later release of Debian, for labs: `python -m tests.lab.newer` prints the folder
that KEPD_LAB_BIN names, `python -m tests.lab.newer core` the files of tests that CI runs on it.

Packages come by apt, which checks their signatures, once: the archive of them is kept beside those of virtual machines.
They are unpacked below build/ and not installed. Which versions they are is said on standard error: the newest that the
release has when they are fetched.
"""

import subprocess
import sys
from pathlib import Path

from tests.host.process import ROOT
from tests.lab.errors import LabError
from tests.vm.disk import packages_of
from tests.vm.release import RELEASES, Release

__all__ = ["CORE", "programs_folder"]

# Whatever a runtime decides or answers. The rest stands on other things, or on the same calls.
CORE = {
    "pods": (
        "tests/node/test_pod_life.py", "tests/node/test_pod_kills.py", "tests/node/test_random_kills.py",
        "tests/node/test_slow_kills.py", "tests/node/test_lost_tasks.py", "tests/node/test_pod_volumes.py",
        "tests/node/test_pod_surface.py", "tests/node/test_user_namespace.py",
    ),
    "images": (
        "tests/node/test_image_commands.py", "tests/node/test_image_credentials.py", "tests/node/test_prefetch.py",
        "tests/node/test_size_probe.py", "tests/contract/test_containerd.py",
    ),
    "proxy": ("tests/node/test_cri_pulls.py", "tests/node/test_cri_transparency.py", "tests/contract/test_cri.py"),
    "devices": ("packages/devices/tests/node/test_devices.py", "packages/devices/tests/node/test_cdi_runtime.py"),
}  # fmt: skip

NEWER = Release(
    number="forky",
    suite="forky",
    packages=("containerd", "runc", "patchelf"),
    options=("--variant=extract", *RELEASES["forky"].options),
)
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
SAYS_VERSION = ("containerd", "runc")


def programs_folder() -> Path:
    """Made once for each archive of packages. Raises LabError where there is no way to have them."""
    try:
        archive = packages_of(NEWER)
    except (RuntimeError, AssertionError, OSError) as error:
        raise LabError(
            f"no packages of Debian {NEWER.suite} ({', '.join(NEWER.packages)}): {error}\n"
            "Fetching them needs mmdebstrap and the archive that this machine's apt reads; fetched once, they are kept."
        ) from error
    folder = ROOT / "build" / f"lab-{archive.stem}-{archive.stat().st_mtime_ns}"
    if not (folder / "bin/runc").exists():
        _unpack(archive, folder)
    return folder / "bin"


def _unpack(archive: Path, folder: Path) -> None:
    tree = folder / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    wanted = ("./usr/bin/*", "./usr/sbin/*", "./usr/lib/*-linux-gnu/*.so*")
    _run("tar", "-xf", str(archive), "-C", str(tree), "--no-same-owner", "--wildcards", *wanted)
    (loader,) = (tree / "usr/lib").glob("*-linux-gnu/ld-linux*.so.*")
    libraries = str(loader.parent)
    (folder / "bin").mkdir(exist_ok=True)
    for name in PROGRAMS:
        (folder / "bin" / name).unlink(missing_ok=True)
        (folder / "bin" / name).symlink_to(tree / "usr/bin" / name)
    # runc needs a C library that this machine may not have, and runs itself anew inside containers: it has to find it.
    finds = ("--set-interpreter", str(loader), "--set-rpath", libraries)
    draft, runc = folder / "bin/.runc", str(tree / "usr/sbin/runc")
    _run(str(loader), "--library-path", libraries, str(tree / "usr/bin/patchelf"), *finds, "--output", str(draft), runc)
    draft.rename(folder / "bin/runc")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def main(arguments: list[str]) -> None:
    if arguments == ["core"]:
        print(*(file for files in CORE.values() for file in files))
        return
    if arguments:
        sys.exit("python -m tests.lab.newer [core]")
    try:
        folder = programs_folder()
        versions = [_run(str(folder / name), "--version").splitlines()[0] for name in SAYS_VERSION]
    except LabError as error:
        sys.exit(f"lab: {error}")
    print(f"Debian {NEWER.suite}: {'; '.join(versions)}", file=sys.stderr)
    print(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
