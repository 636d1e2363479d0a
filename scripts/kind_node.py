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
from tests.lab.images import STAY, Image, build
from tests.lab.packages import find_programs
from tests.vm.disk import mirror

VARIABLES = {
    "KEPD_KUBEADM": ("kubeadm", "kubeadm"),
    "KEPD_KIND_BASE": ("files/usr/local/bin/entrypoint", "the folder images/base of kind's sources"),
}
SUITE = "bookworm"
PACKAGES = (
    "bash", "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "curl", "dbus",
    "docker-registry", "e2fsprogs", "ethtool", "iproute2", "iptables", "jq", "kmod", "libseccomp2", "mount", "netbase",
    "nftables", "pigz", "procps", "python3", "python3-iptables", "runc", "systemd", "systemd-sysv", "util-linux",
)  # fmt: skip
OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How kepd's image gets its packages from here; the Dockerfile takes the first away again."""
AGNHOST = "agnhost_2.63.0"
NEEDS_BYTES = 4 << 30
INSIDE = Path(__file__).with_name("kind_node.sh")


def named(variable: str) -> Path:
    part, what = VARIABLES[variable]
    path = Path(os.environ.get(variable) or "/nonexistent")
    if not (path.is_file() if path.name == part else (path / part).is_file()):
        raise MissingError(f"{variable}={os.environ.get(variable, '')!r}: expected the path of {what}")
    return path.resolve()


def told(*command: str | Path, **more: object) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise MissingError(f"{' '.join(map(str, command))[:200]}: ended with {done.returncode}")
    return str(done.stdout).strip()


def make(folder: Path, programs: Programs, kubeadm: Path, kind: Path) -> None:
    base, node = folder / "base", folder / "node"
    tree(base, "ca-certificates")
    for path in filter(os.path.isfile, OF_THIS_MACHINE):
        shutil.copy(path, f"{base}{path}")
    tree(node, *PACKAGES)
    shutil.copytree(kind / "files", node, dirs_exist_ok=True)
    for name in ("kubelet", "kubectl"):
        shutil.copy(getattr(programs, name), node / "usr/bin" / name)
    shutil.copy(kubeadm, node / "usr/bin/kubeadm")
    version = told(programs.kubelet, "--version").split()[-1]
    (node / "kind/version").write_text(version)
    add_images(node, programs, told(kubeadm, "config", "images", "list", "--kubernetes-version", version).split())
    told(ROOT / "scripts/in_tree", node, "sh", "-eu", stdin=INSIDE.open())


def tree(place: Path, *packages: str) -> None:
    # Killed, it takes along what it began and mounted.
    apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = (*apart, "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", SUITE)
    told(*command, place, mirror())


def add_images(node: Path, programs: Programs, names: list[str]) -> None:
    """As archives, which each node imports before its kubelet starts."""
    place = node / "kind/images"
    (place / "control").mkdir(parents=True)
    wanted = programs.control_plane()
    containerd = (node / "etc/containerd/config.toml").read_text()
    sandbox = re.findall(r'sandbox_image = "(.+)"', containerd)[0]
    busybox = find_programs().paths["busybox"]
    with tempfile.TemporaryDirectory(dir=place) as layouts:
        for reference in (*names, sandbox):
            part = reference.rpartition("/")[2].partition(":")[0]
            image = Image(name="pause", command=STAY) if reference == sandbox else wanted.get(part)
            if image is not None:
                target = place / ("control" if image.programs else ".") / f"{image.name}.tar"
                build(image, busybox, Path(layouts)).archive(reference, target)
    (archive,) = [one for one in programs.images if AGNHOST in one.name]
    shutil.copy(archive, place / "agnhost.tar")


def main(folder: Path) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        programs = Programs.find(os.environ, "suite", "proxy")
        kubeadm, kind = named("KEPD_KUBEADM"), named("KEPD_KIND_BASE")
        free = shutil.disk_usage(folder).free
        if free < NEEDS_BYTES:
            raise MissingError(f"{folder}: {free >> 20} MiB are free; expected {NEEDS_BYTES >> 20}")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as draft:
            make(Path(draft), programs, kubeadm, kind)
            for name in ("base", "node"):
                told("tar", "-C", f"{draft}/{name}", "-c", "-f", f"{draft}/{name}.tar", ".")
                Path(draft, f"{name}.tar").rename(folder / f"{name}.tar")
    except (MissingError, LabError) as missing:
        print(missing, file=sys.stderr)
        return 2
    # Of an earlier one.
    shutil.rmtree(folder / "images", ignore_errors=True)
    print(f"==> scripts/kind up makes its nodes of {folder}/node.tar")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
