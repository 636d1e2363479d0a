# SPDX-License-Identifier: Apache-2.0
"""The package goes: after all other tests, from the machine that they ran on."""

import pytest

from tests.vm.drop_in import PATH
from tests.vm.machine import Machine
from tests.vm.pods import until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

# But where the tests put the project and a repository of its packages, and what the journal says.
NOT_THERE = " -o ".join(f"-path {one}" for one in ("/usr/src", "/vagrant", "/srv/apt", "/var/log"))
LEFT = f"find / -xdev '(' {NOT_THERE} ')' -prune -o -name '*kepd*' -print | sort"
# What a machine that loses its power leaves of a pod that had just got its address, and what kepd has put aside of it.
LOST = (
    "/var/lib/cni/networks/kepd/10.85.0.250 /var/lib/cni/results/kepd-lost-eth0 /var/lib/cni/unreadable/kepd-lost-eth0"
)
# With what the runtime has noted of each.
RUNNING = "ctr -n k8s.io containers list -q | xargs -rn 1 ctr -n k8s.io containers info"


def test_a_package_that_is_purged_leaves_nothing(bare: Machine) -> None:
    """CL-1."""
    until_ready(bare, "web")
    bare.run("kepctl --timeout 120 delete --wait -f /usr/share/doc/kepd/examples/bare-node/web.yaml")
    bare.run("systemctl disable --now kepd.socket kepd; kepd cleanup --all")
    bare.run(f"rm -f {PATH}; mkdir -p /var/lib/cni/unreadable && touch {LOST}")
    bare.run("systemctl enable kepd-guard; apt-get purge -y kepd")
    left = bare.run(LEFT).split()
    running = bare.run(RUNNING)
    rules = bare.run("nft list ruleset; iptables-save -t nat")

    assert running == ""
    assert "kepd" not in rules.lower()
    assert left == []
