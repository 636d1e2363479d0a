# SPDX-License-Identifier: Apache-2.0
"""What makes a machine one of another processor; none is started here."""

import json
import os
import platform
import shutil
from pathlib import Path

import pytest

from tests.lab.images import Image, build
from tests.vm import architecture
from tests.vm.architecture import ARCHITECTURES, chosen
from tests.vm.disk import Disk, packages_of
from tests.vm.machine import command_of
from tests.vm.release import PACKAGES, RELEASES, Release, for_processor
from tests.vm.suite import steps

ARM, AMD = ARCHITECTURES["arm64"], ARCHITECTURES["amd64"]
DISK = Disk(image=Path("i"), kernel=Path("k"), initrd=Path("r"), key=Path("y"))


@pytest.fixture(autouse=True)
def amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is one, has KVM, and runs no program of another."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(architecture, "HANDLERS", Path("/nowhere"))


def test_another_processor_is_emulated_although_there_is_kvm() -> None:
    command = command_of(ARM, DISK)

    assert command[:7] == [
        "qemu-system-aarch64", "-machine", "virt,gic-version=3", "-accel", "tcg,thread=multi", "-cpu", ARM.processor,
    ]  # fmt: skip
    assert command[command.index("-kernel") + 1 :][:3] == ["k", "-initrd", "r"]
    assert "console=ttyAMA0" in command[-1].split()
    assert not {"no5lvl", "tsc=reliable", "console=ttyS0"} & {*command[-1].split()}


def test_its_packages_are_debians_for_it_and_those_of_tests() -> None:
    release = for_processor(RELEASES["12"], ARM)

    assert [one for one in release.packages if "amd64" in one] == []
    assert {"linux-image-cloud-arm64", "docker-registry"} <= {*release.packages}
    assert release.options == ("--architectures=arm64",)
    assert release.key != RELEASES["12"].key
    assert for_processor(RELEASES["12"], AMD) == Release(number="12", suite="bookworm", packages=PACKAGES)


def test_its_images_say_what_runs_them(tmp_path: Path) -> None:
    made = build(Image(name="pause"), Path(__file__), tmp_path, "arm64")
    configs = [
        json.loads(one.read_bytes())
        for one in (made.layout / "blobs/sha256").iterdir()
        if b"rootfs" in one.read_bytes()
    ]

    assert [one["architecture"] for one in configs] == ["arm64"]


def test_a_machine_that_runs_no_program_of_it_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPD_VM_CACHE", str(tmp_path))

    with pytest.raises(SystemExit, match="no programs of arm64: /nowhere has no qemu-aarch64; apt-get install qemu-us"):
        packages_of(for_processor(RELEASES["12"], ARM))

    (tmp_path / "qemu-aarch64").touch()
    monkeypatch.setattr(architecture, "HANDLERS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="mmdebstrap asks arch-test what runs here; apt-get install arch-test"):
        packages_of(for_processor(RELEASES["12"], ARM))


def test_a_processor_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEPD_VM_ARCH", raising=False)
    assert chosen() is AMD
    monkeypatch.setenv("KEPD_VM_ARCH", "arm64")
    assert chosen() is ARM
    monkeypatch.setenv("KEPD_VM_ARCH", "aarch64")
    with pytest.raises(SystemExit, match="KEPD_VM_ARCH is 'aarch64'; expected: one of amd64, arm64"):
        chosen()


def test_tests_that_ran_out_of_time_run_once_more_and_no_path_is_a_line_of_the_shell() -> None:
    script = steps(["tests/a b.py"])["tests: 'tests/a b.py'"]

    assert script.count("'tests/a b.py'") == 2
    assert "|| .venv/bin/python -m pytest" in script
    assert "--last-failed" in script
