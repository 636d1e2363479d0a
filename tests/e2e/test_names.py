# SPDX-License-Identifier: Apache-2.0
"""The cluster's small name server."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.names import AAAA, CNAME, NO_NAME, A, Api, answer, encode, resolve

SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("web", "shop"): {"clusterIPs": ["10.96.0.7", "fd00:96::7"]},
    ("db", "shop"): {"clusterIPs": ["None"]},
    ("other", "shop"): {"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"},
    ("loop", "shop"): {"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local"},
}


class Known(Api):
    def __init__(self) -> None:
        """No server."""

    def service(self, name: str, namespace: str) -> dict[str, Any] | None:
        return SPECS.get((name, namespace))

    def endpoints(self, name: str, namespace: str) -> Iterator[tuple[str, str]]:
        yield from (("10.1.0.1", "db-0"), ("10.1.0.2", "db-1"))


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("web.shop.svc.cluster.local", A, [bytes([10, 96, 0, 7])]),
        ("web.shop.svc.cluster.local", AAAA, [bytes.fromhex("fd0000960000000000000000" + "00000007")]),
        ("db.shop.svc.cluster.local", A, [bytes([10, 1, 0, 1]), bytes([10, 1, 0, 2])]),
        ("db-1.db.shop.svc.cluster.local", A, [bytes([10, 1, 0, 2])]),
        ("other.shop.svc.cluster.local", A, [encode("web.shop.svc.cluster.local"), bytes([10, 96, 0, 7])]),
    ],
)
def test_names_of_services_lead_to_addresses(name: str, kind: int, data: list[bytes]) -> None:
    code, records = resolve(Known(), name, kind)

    assert (code, [one for *_, one in records]) == (0, data)


@pytest.mark.parametrize(
    "name", ["none.shop.svc.cluster.local", "web.shop", "svc.cluster.local", "x.svc.cluster.local"]
)
def test_other_names_are_not_there(name: str) -> None:
    assert resolve(Known(), name, A) == (NO_NAME, [])


def test_a_loop_ends() -> None:
    _, records = resolve(Known(), "loop.shop.svc.cluster.local", A)

    assert {kind for _, kind, _ in records} == {CNAME}


def test_an_answer_repeats_its_question() -> None:
    asked = encode("web.shop.svc.cluster.local") + struct.pack("!HH", A, 1)
    said = answer(Known(), struct.pack("!HHHHHH", 77, 0x0100, 1, 0, 0, 0) + asked)

    assert struct.unpack_from("!HHHH", said) == (77, 0x8580, 1, 1)
    assert asked in said
    assert said.endswith(bytes([10, 96, 0, 7]))
