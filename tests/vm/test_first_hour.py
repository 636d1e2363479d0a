# SPDX-License-Identifier: Apache-2.0
"""The way of somebody who has just installed the package, on a machine where nothing else was done: by the words of the
tutorial, then by those of the README (CL-16, DOC-01)."""

import re
import time

import pytest

from tests.deploy.documents import Block, blocks
from tests.host.process import ROOT
from tests.vm.machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

# The README says it; an emulated machine has it too.
MOST_COMMANDS, MOST_S = 4, 300.0
WITHIN_S = 180.0
HERE = "/root/tutorial"
# Of what an administrator or another package owns; what /run, /proc and the like show ends with the machine.
CHANGED = "find /etc /usr /opt /root /home /boot -xdev -newer /var/tmp/begun ! -type d | sort"
OURS = re.compile(r"/etc/(kepd/.*|cni/net\.d/10-kepd\.conflist|systemd/system/[a-z.-]*/?kepd[a-z./-]*)")
SET_UP = "/etc/kepd/config.d/00-node.yaml /etc/cni/net.d/10-kepd.conflist /etc/systemd/system/kepd.service.d"


def readme_commands() -> list[str]:
    """Of the block after the one that installs the package."""
    found = [one for one in blocks(ROOT / "README.md") if one.mark == "machine"]
    assert len(found) == 1, found
    lines = (line.partition("  #")[0].strip() for line in found[0].text.splitlines())
    return [line for line in lines if line]


def test_the_tutorial_leads_to_where_it_says_word_for_word(fresh: Machine) -> None:
    fresh.run(f"mkdir {HERE}")
    for block in blocks(ROOT / "docs/tutorial.md"):
        if block.is_run_in_a_machine:
            follow(fresh, block)
    fresh.run(f"rm -r {HERE}")

    assert "kepd" not in fresh.run("nft list ruleset")
    assert fresh.run("ctr -n k8s.io containers list -q") == ""


def test_the_package_leads_to_a_service_that_answers_by_a_few_commands(grouped: Machine) -> None:
    """With the one that installs the package four at most, of which none touches a file of another program. The node
    stays as they leave it, for who comes next."""
    commands = readme_commands()
    grouped.run(f"rm -rf {SET_UP}; sysctl -q -w net.ipv4.ip_forward=0; ip link delete cni0; touch /var/tmp/begun")
    begun_s = time.monotonic()
    said = [grouped.run(command) for command in commands]
    needed_s = time.monotonic() - begun_s
    changed = grouped.run(CHANGED).split()

    assert len(commands) + 1 <= MOST_COMMANDS
    assert said[-1].split() == ["web-kepd-vm"] * 2, said
    assert [path for path in changed if not OURS.fullmatch(path)] == []
    assert needed_s < MOST_S


def follow(machine: Machine, block: Block) -> None:
    """As somebody does who waits, and looks again."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        done = machine.attempt(f"cd {HERE} && sh -eu", given=block.text)
        is_shown = done.returncode == 0 and block.shows in done.stdout + done.stderr
        if is_shown or not block.shows or time.monotonic() > deadline_s:
            break
    assert is_shown, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
