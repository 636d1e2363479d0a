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

from tests.vm.architecture import ARCHITECTURES
from tests.vm.disk import IMAGES, cache, image_of, run, tree_of
from tests.vm.machine import APPEND
from tests.vm.release import Release

PROVISION = Path(__file__).with_name("box.sh")
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


def box_of(release: Release) -> Path:
    """Made once of the same packages, files and images."""
    made_of = (release.key, VAGRANTFILE, PROVISION.read_text(), repr(IMAGES))
    box = cache() / f"{release.suite}-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]}.box"
    if not box.exists():
        folder = cache() / f"box-{os.getpid()}"
        try:
            _make(release, folder)
            run(["tar", "-C", str(folder / "box"), "-cf", str(folder / "draft"), *sorted(os.listdir(folder / "box"))])
            (folder / "draft").rename(box)
        finally:
            run(["rm", "-rf", "--one-file-system", str(folder)])
    return box


def _make(release: Release, folder: Path) -> None:
    tree = tree_of(release, folder)
    run([str(PROVISION), str(tree)])
    image, kernel, initrd = image_of(tree, folder, f"{SIZE_GB}G")
    place = folder / "box"
    place.mkdir()
    run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(image), str(place / "box.img")])
    image.unlink()
    shutil.move(kernel, place / "vmlinuz")
    shutil.move(initrd, place / "initrd")
    (place / "metadata.json").write_text(
        json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": SIZE_GB})
    )
    (place / "Vagrantfile").write_text(VAGRANTFILE)
