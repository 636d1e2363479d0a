# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake flows and for the kernel's: whatever the services plane may rely on holds for both."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import msgspec
import pytest

from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.netlink.connection import open_socket
from agent.model.services.flow import Flow, FlowsUnavailable, FlowTarget
from agent.model.services.nft_table import Family
from tests.fakes.conntrack import FakeConntrack
from tests.lab.namespace import Namespace

SERVICE_PORT, ENDPOINT_PORT, PLAIN_PORT = 5353, 5454, 5555
RULES = """
table {ip} t {{
  chain out {{
    type nat hook output priority -100
    udp dport {service} dnat to {loopback}:{endpoint}
  }}
}}
"""


@dataclass
class Subject:
    """Flows under test; `send` lets one begin from a port of its own to a port of loopback."""

    flows: Any
    family: Family
    send: Callable[[int, int], None]

    @property
    def loopback(self) -> bytes:
        return ip_address("127.0.0.1" if self.family == "IPv4" else "::1").packed


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.node)])
async def subject(request: pytest.FixtureRequest, family: Family) -> AsyncIterator[Subject]:
    loopback = "127.0.0.1" if family == "IPv4" else "::1"
    if request.param == "fake":
        fake = FakeConntrack()
        address = ip_address(loopback).packed

        def begin(source: int, port: int) -> None:
            answers = ENDPOINT_PORT if port == SERVICE_PORT else port
            fake.begin(Flow(family, "UDP", address, source, address, port, address, answers))

        yield Subject(fake, family, begin)
        return
    with Namespace() as node:
        ip, shown = ("ip", loopback) if family == "IPv4" else ("ip6", f"[{loopback}]")
        rules = RULES.format(ip=ip, loopback=shown, service=SERVICE_PORT, endpoint=ENDPOINT_PORT)
        node.run("nft", "-f", "-", text=rules)
        kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6

        def send(source: int, port: int) -> None:
            with socket.socket(kind, socket.SOCK_DGRAM) as out:
                out.bind((loopback, source))
                out.sendto(b"x", (loopback, port))

        driver = Conntrack(opens=lambda: node.call(open_socket))
        yield Subject(driver, family, lambda source, port: node.call(lambda: send(source, port)))
        await driver.close()


async def test_a_flow_is_told_with_both_its_sides(subject: Subject) -> None:
    """CT-3: who answers is the endpoint, while the destination is the Service."""
    subject.send(4001, SERVICE_PORT)
    (flow,) = await subject.flows.flows(subject.family)
    address = subject.loopback

    assert msgspec.structs.replace(flow, identity=0) == Flow(
        subject.family, "UDP", address, 4001, address, SERVICE_PORT, address, ENDPOINT_PORT
    )
    assert flow.identity != 0
    assert f":4001 to {'[::1]' if subject.family == 'IPv6' else '127.0.0.1'}:5353, answered by" in str(flow)


async def test_only_what_is_asked_for_is_told(subject: Subject) -> None:
    """CT-1, CT-11."""
    subject.send(4001, PLAIN_PORT)
    other: Family = "IPv6" if subject.family == "IPv4" else "IPv4"

    assert list(await subject.flows.flows(other)) == []
    assert list(await subject.flows.flows(subject.family, ("SCTP", "TCP"))) == []
    assert len(await subject.flows.flows(subject.family, ("SCTP", "UDP"))) == 1


@pytest.mark.parametrize("targets", [1, 100])
async def test_flows_are_left_out_that_those_answer_who_should(subject: Subject, targets: int) -> None:
    """FS-16, CT-P1: the kernel is asked for each target, or where there are many, for everything."""
    for source, port in ((4001, SERVICE_PORT), (4002, PLAIN_PORT), (4003, SERVICE_PORT)):
        subject.send(source, port)
    here = subject.loopback
    others = {FlowTarget(here, "UDP", 6000 + number): () for number in range(targets - 1)}
    to = FlowTarget(here, "UDP", SERVICE_PORT)

    async def found(*answerers: bytes) -> set[int]:
        told = await subject.flows.flows(subject.family, ("UDP",), {**others, to: answerers})
        return {flow.source_port for flow in told}

    assert await found() == await found(here + PLAIN_PORT.to_bytes(2, "big")) == {4001, 4003}
    assert await found(here + ENDPOINT_PORT.to_bytes(2, "big")) == set()


async def test_exactly_the_given_flows_go(subject: Subject) -> None:
    """CT-7: one that is gone already is fine."""
    for source in (4001, 4002, 4003):
        subject.send(source, SERVICE_PORT)
    flows = await subject.flows.flows(subject.family)
    doomed = [flow for flow in flows if flow.source_port != 4002]
    counts = [await subject.flows.delete(doomed), await subject.flows.delete(doomed), await subject.flows.delete([])]

    assert counts == [2, 0, 0]
    assert [flow.source_port for flow in await subject.flows.flows(subject.family)] == [4002]


@pytest.mark.node
async def test_thousands_of_flows_do_not_hold_up_the_loop() -> None:
    """STY-34, CT-P1: the thread works, the loop goes on."""
    with Namespace() as node:
        node.run("nft", "-f", "-", text=RULES.format(ip="ip", loopback="127.0.0.1", service=1, endpoint=2))
        driver = Conntrack(opens=lambda: node.call(open_socket))

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                for number in range(5000):
                    out.sendto(b"x", (f"127.0.{number >> 8}.{number & 255}", PLAIN_PORT))

        await asyncio.get_running_loop().run_in_executor(None, lambda: node.call(send))
        flows = await driver.flows("IPv4")
        deleted = await driver.delete(flows)
        left = await driver.flows("IPv4")
        await driver.close()

    assert (len(flows), deleted, list(left)) == (5000, 5000, [])


@pytest.mark.node
async def test_a_missing_right_is_told() -> None:
    """The socket belongs to somebody without CAP_NET_ADMIN."""
    driver = Conntrack(opens=_closed)
    with pytest.raises(FlowsUnavailable, match="CAP_NET_ADMIN"):
        await driver.flows("IPv4")
    await driver.close()


def _closed() -> socket.socket:
    raise PermissionError(1, "Operation not permitted")
