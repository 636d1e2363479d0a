# SPDX-License-Identifier: Apache-2.0
"""`scripts/kind node-image`: a node for kind of Debian's packages, kind's own files and Kubernetes' programs.

A tar for `podman import`, and a second one for the base of kepd's image: nothing is asked of a registry. Programs come
from variables, as for scripts/e2e. What kindnet would do is left to scripts/kind_alone.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.programs import MissingError, Programs
from tests.host.process import ROOT
from tests.lab.errors import LabError
from tests.lab.images import Image, build
from tests.lab.packages import find_programs
from tests.vm.disk import mirror

PACKAGES = (
    "bash", "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "curl", "dbus",
    "docker-registry", "e2fsprogs", "ethtool", "iproute2", "iptables", "jq", "kmod", "libseccomp2", "mount", "netbase",
    "nftables", "pigz", "procps", "python3", "python3-iptables", "runc", "systemd", "systemd-sysv", "util-linux",
)  # fmt: skip
# How kepd's image gets its packages from here; the Dockerfile takes the first away again.
OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def named(variable: str, part: str, what: str) -> Path:
    path = Path(os.environ.get(variable) or "/nonexistent")
    if not (path / part).is_file():
        raise MissingError(f"{variable}={os.environ.get(variable, '')!r}: expected {what}")
    return path.resolve()


def told(*command: str | Path, **more: object) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise MissingError(f"{' '.join(map(str, command))[:200]}: ended with {done.returncode}")
    return str(done.stdout).strip()


def make(folder: Path, programs: Programs, kubeadm: Path, kind: Path) -> None:
    (agnhost,) = [one for one in programs.images if "agnhost_2.63.0" in one.name] or [None]
    if agnhost is None:
        raise MissingError(
            f"KEPD_E2E_IMAGES={os.environ['KEPD_E2E_IMAGES']!r}: expected one of agnhost 2.63.0 there too"
        )
    base, node = folder / "base", folder / "node"
    tree(base, "ca-certificates")
    for path in filter(os.path.isfile, OF_THIS_MACHINE):
        shutil.copy(path, f"{base}{path}")
    tree(node, *PACKAGES)
    shutil.copytree(kind / "files", node, dirs_exist_ok=True)
    for name, path in (("kubelet", programs.kubelet), ("kubectl", programs.kubectl), ("kubeadm", str(kubeadm))):
        shutil.copy(path, node / "usr/bin" / name)
    version = told(programs.kubelet, "--version").split()[-1]
    (node / "kind/version").write_text(version)
    add_images(node, programs, told(kubeadm, "config", "images", "list", "--kubernetes-version", version).split())
    shutil.copy(agnhost, node / "kind/images/agnhost.tar")
    told(ROOT / "scripts/in_tree", node, "sh", "-eu", stdin=(ROOT / "scripts/kind_node.sh").open())


def tree(place: Path, *packages: str) -> None:
    # Killed, it takes along what it began and mounted.
    apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    options = ("--quiet", "--variant=minbase", f"--include={','.join(packages)}")
    told(*apart, "mmdebstrap", *options, "bookworm", place, mirror())


def add_images(node: Path, programs: Programs, names: list[str]) -> None:
    """As archives, which each node imports before its kubelet starts."""
    place, busybox = node / "kind/images", find_programs().paths["busybox"]
    (place / "control").mkdir(parents=True)
    (sandbox,) = re.findall(r'sandbox_image = "(.+)"', (node / "etc/containerd/config.toml").read_text())
    with tempfile.TemporaryDirectory(dir=place) as layouts:
        build(Image(name="pause"), busybox, Path(layouts)).archive(sandbox, place / "pause.tar")
        for part, image in programs.control_plane().items():
            (reference,) = [one for one in names if f"/{part}:" in one]
            build(image, busybox, Path(layouts)).archive(reference, place / f"control/{part}.tar")


def main(folder: Path) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        programs = Programs.find(os.environ, "suite", "proxy")
        kubeadm = named("KEPD_KUBEADM", "", "the path of kubeadm")
        kind = named("KEPD_KIND_BASE", "files/usr/local/bin/entrypoint", "the folder images/base of kind's sources")
        if (free := shutil.disk_usage(folder).free >> 20) < 4096:
            raise MissingError(f"{folder}: {free} MiB are free; expected 4096")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as draft:
            make(Path(draft), programs, kubeadm, kind)
            for name in ("base", "node"):
                told("tar", "-C", f"{draft}/{name}", "-c", "-f", f"{draft}/{name}.tar", ".")
                Path(draft, f"{name}.tar").rename(folder / f"{name}.tar")
    except (MissingError, LabError) as missing:
        print(missing, file=sys.stderr)
        return 2
    shutil.rmtree(folder / "images", ignore_errors=True)
    print(f"==> scripts/kind up makes its nodes of {folder}/node.tar")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
