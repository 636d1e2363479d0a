# SPDX-License-Identifier: Apache-2.0
"""The network that packet tests run in: it works without any rule, and two of them do not disturb each other."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.network import PORT, Network
from tests.lab.sctp import SctpEars, send_init

pytestmark = pytest.mark.node

WITHIN_S = 20.0


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_everybody_reaches_every_server_with_an_address_of_its_own(family: str, protocol: str) -> None:
    with Network(pods=2, far_pods=1) as network:
        pairs = [(one, other) for one in network.places.values() for other in network.places.values()]
        for one, other in pairs:
            if other.name == "client":
                continue
            reply = one.caller.connect(other.address(family), PORT, protocol, wait_s=WITHIN_S)

            assert (one.name, reply.server, reply.client) == (one.name, other.name, one.address(family))


def test_two_networks_are_two_worlds() -> None:
    with Network(pods=1, far_pods=0) as one, Network(pods=2, far_pods=0) as other:
        address = other["pod2"].v4

        assert other["pod1"].caller.connect(address, PORT, wait_s=WITHIN_S).server == "pod2"
        assert one["pod1"].caller.connect(address, PORT, wait_s=0.3).outcome != "answered"


def test_a_closed_port_is_refused_and_a_removed_server_too() -> None:
    with Network(pods=2, far_pods=0) as network:
        caller, address = network["pod1"].caller, network["pod2"].v6
        closed = caller.connect(address, 81, wait_s=WITHIN_S).outcome
        network.servers.remove("pod2")
        removed = caller.connect(address, PORT, wait_s=WITHIN_S).outcome

    assert (closed, removed) == ("refused", "refused")


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_a_packet_of_sctp_arrives(family: str) -> None:
    with Network(pods=2, far_pods=0) as network:
        pod1, pod2 = network["pod1"], network["pod2"]
        with SctpEars.of(pod1, pod2) as ears:
            send_init(pod1, pod2.address(family), 4711)
            heard = ears.heard(4711, WITHIN_S)

    assert [(one.place, one.source, one.port) for one in heard] == [("pod2", pod1.address(family), 4711)]


def held_namespaces() -> list[str]:
    """Namespaces that this process keeps by a descriptor."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return sorted(target for target in found if target.startswith("net:"))


def test_nothing_is_left_behind() -> None:
    """No link on the machine, no namespace: so the server's process has ended, too."""
    before = held_namespaces()
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    with Network(pods=1, far_pods=1) as network:
        held = held_namespaces()
        process = network.servers.pid

    assert len(held) > len(before)
    assert held_namespaces() == before
    assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == links
    assert not Path(f"/proc/{process}").exists()
