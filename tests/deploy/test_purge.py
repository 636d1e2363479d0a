# SPDX-License-Identifier: Apache-2.0
"""A purge of the package, in a mount namespace whose own directories it deletes."""

import subprocess
from pathlib import Path

import pytest

from tests.host.process import ROOT

pytestmark = pytest.mark.node

PURGE = """
set -e
for place in /var/lib /run; do mount -t tmpfs none $place; done
cp -a /etc/alternatives /run/alternatives
mount -t tmpfs none /etc
mv /run/alternatives /etc
mkdir -p /var/lib/kepd/pods/uid/volumes /run/kepd /etc/kepd
{more}
sh {script} purge
ls -d /var/lib/kepd /run/kepd /etc/kepd 2>/dev/null || true
"""


def purged(more: str) -> "subprocess.CompletedProcess[str]":
    script = PURGE.format(more=more, script=ROOT / "deploy/debian/postrm")
    command = ["unshare", "--mount", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def test_a_purge_leaves_nothing() -> None:
    assert purged("").stdout == ""


def test_a_purge_deletes_nothing_of_the_machine_that_is_mounted_below(tmp_path: Path) -> None:
    """FP-1: a bind mount of the same file system looks like any directory to `rm --one-file-system`."""
    (tmp_path / "data").write_text("of the machine")

    done = purged(f"mount --bind {tmp_path} /var/lib/kepd/pods/uid/volumes")

    assert (tmp_path / "data").read_text() == "of the machine"
    assert done.stdout.split() == ["/var/lib/kepd"]
    assert "/var/lib/kepd/pods/uid/volumes" in done.stderr
    assert "kepd cleanup --all" in done.stderr


def test_a_purge_leaves_what_pods_claimed() -> None:
    """Nobody asked for the end of that: the package may come back."""
    kept = "/var/lib/kepd/claims/default/data"
    done = purged(f"mkdir -p {kept}; echo rows > {kept}/table; trap 'cd /var/lib/kepd; find . -type f; ls' EXIT")

    assert done.stdout.split() == ["/var/lib/kepd", "./claims/default/data/table", "claims"]
    assert "/var/lib/kepd/claims stays" in done.stderr
