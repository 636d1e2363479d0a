# SPDX-License-Identifier: Apache-2.0
"""The Debian package, really built. What it does on a machine is tests/vm's."""

import subprocess
from pathlib import Path

import pytest

from tests.host.process import ROOT

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

HAS = (
    "./usr/bin/kepd", "./usr/bin/kepctl", "./usr/lib/systemd/system/kepd.service",
    "./usr/lib/systemd/system/cri-containerd-.scope.d/kepd.conf", "./usr/lib/sysusers.d/kepd.conf",
    "./usr/lib/tmpfiles.d/kepd.conf", "./usr/lib/sysctl.d/60-kepd.conf", "./usr/share/man/man1/kepctl.1.gz",
    "./usr/share/man/man8/kepd.8.gz", "./usr/share/bash-completion/completions/kepctl",
    "./usr/share/doc/kepd/examples/bare-node/setup.sh", "./etc/kepd/config.yaml",
)  # fmt: skip


def build(folder: Path) -> Path:
    command = ["env", f"DIST={folder}", str(ROOT / "scripts/package"), "deb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(done.stdout.strip())


def test_a_package_is_the_same_each_time_and_as_debian_wants_it(tmp_path: Path) -> None:
    first, second = build(tmp_path / "one"), build(tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()

    listed = subprocess.run(["dpkg-deb", "-c", str(first)], capture_output=True, text=True, check=True, timeout=60)
    names = {line.split()[5] for line in listed.stdout.splitlines()}
    assert [name for name in HAS if name not in names] == []

    command = ["lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", str(first)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert said.returncode == 0, said.stdout
