# SPDX-License-Identifier: Apache-2.0
"""A network namespace of their own for contracts with the kernel, and its table."""

from collections.abc import AsyncIterator, Iterator

import pytest

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from tests.lab.namespace import Namespace


@pytest.fixture
def node() -> Iterator[Namespace]:
    with Namespace() as made:
        yield made


@pytest.fixture
async def table(node: Namespace) -> AsyncIterator[NftTable]:
    made = NftTable("IPv4", command=node.command("nft"), opens=lambda: node.call(open_socket))
    yield made
    await made.close()
