# SPDX-License-Identifier: Apache-2.0
"""The package goes: after all other tests, from the machine that they ran on."""

import pytest

from tests.vm.machine import Machine
from tests.vm.pods import remove, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

# But where the tests put the project, and what the journal says.
LEFT = "find / -xdev '(' -path /usr/src -o -path /vagrant -o -path /var/log ')' -prune -o -name '*kepd*' -print | sort"


def test_a_package_that_is_purged_leaves_nothing(bare: Machine) -> None:
    """CL-1."""
    until_ready(bare, "web")
    remove(bare, "web")
    bare.run("systemctl disable --now kepd.socket kepd; kepd cleanup --all")
    bare.run("apt-get purge -y kepd")
    left = bare.run(LEFT).split()
    running = bare.run("ctr -n k8s.io containers list -q")
    rules = bare.run("nft list ruleset; iptables-save -t nat")

    assert running == ""
    assert "kepd" not in rules.lower()
    assert left == []
