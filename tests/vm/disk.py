# SPDX-License-Identifier: Apache-2.0
"""The disk of a machine: Debian's packages, then the Vagrantfile's own scripts, all run here and not in the machine.

Installing is quick on this machine's processor and takes minutes on an emulated one. What is kept between runs is the
archive of the packages alone, never an installed tree: KEPD_VM_CACHE names where, else it is the user's cache.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.host.process import ROOT
from tests.lab.images import STAY, Image, build
from tests.vm.release import Release

PROVISION = Path(__file__).with_name("provision.sh")
IMAGES = {
    "registry.k8s.io/pause:3.10": Image(name="pause", command=STAY),
    "docker.io/library/busybox:1.37": Image(name="busybox"),
}
"""By the names that manifests and containerd's configuration use; they are made here, no registry is asked."""
SIZE = "6G"
LONGEST_S = 3600.0
"""Packages of another processor took more than half of it on a busy machine."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system in a file that is never written to, what starts it, and the key that opens the machine."""

    image: Path
    kernel: Path
    initrd: Path
    key: Path


def cache() -> Path:
    configured = os.environ.get("KEPD_VM_CACHE") or os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    folder = Path(configured)
    folder = folder if "KEPD_VM_CACHE" in os.environ else folder / "kepd-vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def packages_of(release: Release) -> Path:
    """An archive with the packages of a release, made once."""
    archive = cache() / f"{release.key}.tar"
    if missing := release.architecture.missing():
        raise SystemExit(missing)
    if not archive.exists():
        draft = archive.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(release.packages)}"]
        run([*command, *release.options, release.suite, str(draft), mirror()])
        draft.rename(archive)
    return archive


def mirror() -> str:
    """The archive that this machine takes its own packages from; other releases lie beside its own."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    found = [one for one in listed if one.rstrip("/").endswith("/debian")]
    assert found, f"apt-get knows no archive of Debian: {listed}; its sources name one as …/debian"
    return found[0]


def make(release: Release, folder: Path, earlier: Mapping[str, str] | None = None) -> Disk:
    """A disk of its own in `folder`. `earlier`: commits of this project whose trees are below /usr/src by these names;
    what provision.sh makes of them is beside them."""
    tree = tree_of(release, folder)
    _copy_project(tree / "vagrant")
    for name, commit in (earlier or {}).items():
        _copy_commit(commit, tree / "usr/src" / name)
    key = folder / "key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "throw-away", "-f", str(key)])
    run([str(PROVISION), str(tree), f"{key}.pub"])
    return Disk(*image_of(tree, folder, SIZE), key=key)


def tree_of(release: Release, folder: Path) -> Path:
    """Its packages, with the images that manifests name."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    run(["tar", "-xf", str(packages_of(release)), "-C", str(tree), "--numeric-owner"])
    _add_images(tree, folder, release.architecture.name)
    return tree


def image_of(tree: Path, folder: Path, size: str) -> tuple[Path, Path, Path]:
    """The file system that a tree becomes, its kernel and its initrd; the tree is gone."""
    kernel, initrd = (_newest(tree / "boot", pattern, folder) for pattern in ("vmlinuz-*", "initrd.img-*"))
    image = folder / "base.raw"
    with image.open("wb") as file:
        file.truncate(0)
    run(["truncate", "-s", size, str(image)])
    run(["mkfs.ext4", "-q", "-F", "-L", "root", "-d", str(tree), str(image)])
    run(["rm", "-rf", "--one-file-system", str(tree)])
    return image, kernel, initrd


def _copy_project(place: Path) -> None:
    """What Vagrant would share: the files under version control, as they stand."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, listed)):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def _copy_commit(commit: str, place: Path) -> None:
    place.mkdir(parents=True)
    archive = place / "tree.tar"
    run(["git", "-C", str(ROOT), "archive", "--format=tar", f"--output={archive}", commit])
    run(["tar", "-xf", str(archive), "-C", str(place)])
    archive.unlink()


def _add_images(tree: Path, folder: Path, architecture: str) -> None:
    """Of the machine's own busybox, which may be of another processor."""
    place = tree / "root/images"
    place.mkdir(parents=True)
    layouts = folder / "layouts"
    layouts.mkdir()
    for number, (reference, image) in enumerate(IMAGES.items()):
        build(image, tree / "bin/busybox", layouts, architecture).archive(reference, place / f"{number}.tar")


def _newest(place: Path, pattern: str, folder: Path) -> Path:
    found = max(place.glob(pattern), key=lambda path: path.stat().st_mtime)
    return Path(shutil.copy2(found, folder / found.name))


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout
