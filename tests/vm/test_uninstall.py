# SPDX-License-Identifier: Apache-2.0
"""The package goes, on a machine of its own."""

from pathlib import Path

import pytest

from tests.vm.conftest import give_images
from tests.vm.disk import Disk
from tests.vm.machine import Machine
from tests.vm.pods import remove, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

# But where the tests put the project, and what the journal says.
LEFT = "find / -xdev '(' -path /usr/src -o -path /vagrant -o -path /var/log ')' -prune -o -name '*kepd*' -print | sort"


def test_a_package_that_is_purged_leaves_nothing(disk: Disk, tmp_path: Path) -> None:
    """CL-1."""
    with Machine(disk, tmp_path) as machine:
        give_images(machine)
        machine.run("sh /vagrant/deploy/vagrant/bare.sh")
        until_ready(machine, "web")
        remove(machine, "web")
        machine.run("systemctl disable --now kepd.socket kepd; kepd cleanup --all")
        machine.run("apt-get purge -y kepd")
        left = machine.run(LEFT).split()
        running = machine.run("ctr -n k8s.io containers list -q")
        rules = machine.run("nft list ruleset; iptables-save -t nat")

    assert running == ""
    assert "kepd" not in rules.lower()
    assert left == []
