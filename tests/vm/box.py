# SPDX-License-Identifier: Apache-2.0
"""A box for Vagrant with libvirt, of the packages that every other machine here is made of, for where nobody reaches
Vagrant Cloud or a registry. What is in it is what debian/bookworm64 has; the images that the machines run; and this
machine's way to the archives of Debian and Python. scripts/vagrant starts it.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple, Self

from tests.e2e.programs import MissingError, Programs
from tests.host.process import ROOT
from tests.lab.images import STAY, Image, build
from tests.vm.architecture import ARCHITECTURES
from tests.vm.disk import IMAGES, cache, image_of, run, tree_of
from tests.vm.machine import APPEND
from tests.vm.release import Release

PROVISION, UNIT = (Path(__file__).with_name(name) for name in ("box.sh", "kubelet.service"))
IN_TREE = ROOT / "scripts/in_tree"
SIZE_GB = 8
VAGRANTFILE = f"""
Vagrant.configure("2") do |config|
  config.vm.boot_timeout = 1800
  config.ssh.connect_timeout = 60
  config.vm.provider "libvirt" do |libvirt|
    libvirt.driver = "qemu"
    libvirt.cpu_mode = "maximum"
    libvirt.kernel = File.join(__dir__, "vmlinuz")
    libvirt.initrd = File.join(__dir__, "initrd")
    libvirt.cmd_line = "{ARCHITECTURES["amd64"].append} {APPEND} net.ifnames=0"
    libvirt.disk_driver cache: "unsafe"
    libvirt.graphics_type = "none"
    libvirt.memballoon_enabled = false
    # A serial port that only a box has, this version of the plugin cannot put together with a project that has none.
    console = ENV["KEPD_CONSOLE"]
    ["-chardev", "file,id=box,path=#{{console}}", "-device", "isa-serial,chardev=box"].each {{ |word|
      libvirt.qemuargs value: word
    }} if console
  end
end
"""


def box_of(release: Release, machine: str) -> Path:
    """Made once of the same packages, files and programs."""
    kubernetes = Kubernetes.find() if machine == "kubelet" else None
    parts = [release.key, VAGRANTFILE, PROVISION.read_text(), repr(IMAGES), kubernetes.key if kubernetes else ""]
    box = cache() / f"kepd-vagrant-{machine}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}.box"
    if not box.exists():
        folder = cache() / f"kepd-vagrant-draft-{os.getpid()}"
        try:
            tree = tree_of(release, folder)
            if kubernetes:
                kubernetes.into(tree, folder)
            run([str(PROVISION), str(tree)])
            place = _packed(tree, folder)
            run(["tar", "-C", str(place), "-cf", str(folder / "draft"), *sorted(one.name for one in place.iterdir())])
            for outdated in cache().glob(f"kepd-vagrant-{machine}-*.box"):
                outdated.unlink()
            (folder / "draft").rename(box)
        finally:
            run(["rm", "-rf", "--one-file-system", str(folder)])
    return box


def _packed(tree: Path, folder: Path) -> Path:
    image, kernel, initrd = image_of(tree, folder, f"{SIZE_GB}G")
    place = folder / "box"
    place.mkdir()
    run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(image), str(place / "box.img")])
    image.unlink()
    shutil.move(kernel, place / "vmlinuz")
    shutil.move(initrd, place / "initrd")
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": SIZE_GB}
    (place / "metadata.json").write_text(json.dumps(metadata))
    (place / "Vagrantfile").write_text(VAGRANTFILE)
    return place


class Kubernetes(NamedTuple):
    """What the machine `kubelet` would fetch, by the variables that name its programs."""

    programs: Programs
    kubeadm: str

    @classmethod
    def find(cls) -> Self:
        programs = Programs.find(os.environ, "suite", "proxy", "images")
        kubeadm = shutil.which(os.environ.get("KEPD_KUBEADM", ""))
        if not kubeadm:
            raise MissingError(f"KEPD_KUBEADM={os.environ.get('KEPD_KUBEADM', '')!r}: expected the path of kubeadm")
        return cls(programs, kubeadm)

    @property
    def paths(self) -> dict[str, str]:
        return {"kubelet": self.programs.kubelet, "kubectl": self.programs.kubectl, "kubeadm": self.kubeadm}

    @property
    def key(self) -> str:
        files = (*self.paths.values(), *(one.programs[0] for one in self.programs.control_plane().values()))
        return repr([UNIT.read_text(), *((path, Path(path).stat().st_size) for path in files)])

    def into(self, tree: Path, folder: Path) -> None:
        for name, path in self.paths.items():
            shutil.copy(path, tree / "usr/bin" / name)
        shutil.copy(UNIT, tree / "etc/systemd/system")
        # As their package does; it fails until kubeadm has made its configuration.
        run([str(IN_TREE), str(tree), "systemctl", "-q", "enable", "kubelet"])
        version = run([self.programs.kubelet, "--version"]).split()[-1]
        images = self.programs.control_plane()
        for reference in run([self.kubeadm, "config", "images", "list", "--kubernetes-version", version]).split():
            part = reference.rpartition("/")[2].partition(":")[0]
            # What does not begin with the node, such as its names, is there and does nothing.
            image = images.get(part, Image(name="pause", command=STAY))
            build(image, tree / "bin/busybox", folder / "layouts").archive(reference, tree / f"root/images/{part}.tar")
