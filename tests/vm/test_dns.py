# SPDX-License-Identifier: Apache-2.0
"""Names under the shipped units: sockets of the service manager, restarts and kills lose no answer."""

import pytest

from tests.vm.machine import Machine
from tests.vm.names import NAME, STREAM, STREAM_FILE

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def named(bare: Machine) -> Machine:
    """`kepd setup` switches names on; the example has a Service named web."""
    bare.until_prints("systemctl is-active kepd-dns.socket", "active")
    until_answering(bare)
    bare.until("the name is known", lambda: "NOERROR" in bare.kepctl("explain", "dns", NAME).stdout)
    bare.write(STREAM_FILE, STREAM)
    return bare


def until_answering(machine: Machine) -> None:
    machine.until("names are answered", lambda: "answering" in machine.kepctl("get", "dns").stdout)


def test_its_sockets_are_those_of_the_service_manager(named: Machine) -> None:
    """DNS-10, DNS-2: large buffers, and a process with one capability and a user of its own."""
    listening = named.run("ss -Hulnm 'sport = :53'")
    status = named.run("cat /proc/$(systemctl show -P MainPID kepd-dns)/status")

    assert "169.254.20.10:53" in listening
    assert "[fd00::a9fe:140a]:53" in listening
    assert "rb8388608" in listening
    assert "CapBnd:\t0000000000000400" in status
    assert named.run("ps -o user= -p $(systemctl show -P MainPID kepd-dns)").strip() == "kepd-dns"


def test_kills_and_a_restart_lose_no_answer(named: Machine) -> None:
    """DNS-11, DNS-12: three kills, then a restart; what was not read waits in the sockets. A batch that was read is all
    that a kill may take."""
    script = "systemctl kill -s KILL --kill-whom=main kepd-dns"
    killed = named.run(f"python3 {STREAM_FILE} 8000 2000 & for n in 1 2 3; do sleep 1; {script}; done; wait")
    restarted = named.run(f"python3 {STREAM_FILE} 4000 2000 & sleep 1; systemctl restart kepd-dns; wait")
    left = named.run("conntrack -L 2>/dev/null | grep -c 'dport=53 .*169.254.20.10' || true")
    print(f"over three kills {killed.strip()}, over a restart {restarted.strip()}")

    assert int(killed.split()[0]) >= 8000 - 3 * 64
    assert restarted.split() == ["4000", "of", "4000"]
    assert left.strip() == "0"
    assert named.run("systemctl is-active kepd-dns").strip() == "active"


def test_the_daemon_may_end_and_names_stay(named: Machine) -> None:
    """DNS-1: the process needs no daemon."""
    named.run("systemctl stop kepd")
    answered = named.run(f"python3 {STREAM_FILE} 100 100")
    named.run("systemctl start kepd")
    until_answering(named)

    assert answered.split() == ["100", "of", "100"]
