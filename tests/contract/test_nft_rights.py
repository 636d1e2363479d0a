# SPDX-License-Identifier: Apache-2.0
"""A kernel that does not let us: no right, or a table that belongs to somebody else. One line each, and it can heal."""

import ctypes
import platform
import socket
from contextlib import closing

import pytest

from agent.drivers.netlink.attributes import ACK, CREATE, REQUEST, message, number, text
from agent.drivers.netlink.connection import NetlinkConnection, open_socket
from agent.drivers.nft.driver import NftTable
from agent.drivers.nft.messages import Message
from agent.model.services.nft_error import NotPermitted
from agent.model.services.nft_table import Batch, TableSettings
from agent.services.nftables.structure import replacement_text, structure_damage
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

WITHIN_S = 40.0
SETTINGS = TableSettings(family="IPv4")
MEMBER = Batch(adds={"cluster_ips": [(bytes(4), None)]})
SET_USERS = {"x86_64": 117, "aarch64": 147}
NOBODY = 65_534


def owned_table(opened: socket.socket) -> NetlinkConnection:
    """A table of our name that only the holder of this socket may change."""
    owner_flag = 2
    holder = NetlinkConnection(opened)
    payload = text(1, "kepd") + number(2, owner_flag)
    first = holder.take_sequence(3)
    batch = message(0x10, REQUEST, first, "", b"", 10)
    batch += message(Message.NEW_TABLE, REQUEST | CREATE | ACK, first + 1, "IPv4", payload)
    batch += message(0x11, REQUEST, first + 2, "", b"", 10)

    assert holder.transact(batch, first, first + 1, WITHIN_S) is None
    return holder


async def test_a_table_of_another_owner_is_told_and_left_alone(node: Namespace, table: NftTable) -> None:
    """NF-1: until the owner ends; then its table is gone, and ours can be loaded."""
    with closing(owned_table(node.call(open_socket))) as holder:
        for attempt in (table.check(), table.load(replacement_text(SETTINGS)), table.apply(MEMBER)):
            with pytest.raises(NotPermitted, match=f"belongs to the process with netlink port {holder.port_id}"):
                await attempt
    await table.load(replacement_text(SETTINGS))
    state = await table.read()

    assert state is not None
    assert structure_damage(SETTINGS, state) == ""


def become_nobody() -> None:
    """The bare system call changes the user of the calling thread alone, and takes its capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SET_USERS[platform.machine()], NOBODY, NOBODY, NOBODY):
        raise OSError(ctypes.get_errno(), "setresuid")


@pytest.mark.skipif(platform.machine() not in SET_USERS, reason="the number of the system call is not known here")
async def test_a_missing_capability_is_told(node: Namespace) -> None:
    def opens() -> socket.socket:
        """In the driver's own thread, which ends with the driver."""
        opened = node.call(open_socket)
        become_nobody()
        return opened

    table = NftTable("IPv4", command=node.command("nft"), opens=opens)
    failures = []
    for attempt in (table.check(), table.read(), table.apply(MEMBER)):
        try:
            await attempt
        except NotPermitted as error:
            failures.append(str(error))
    await table.close()

    assert failures == ["kepd may not change table kepd of IPv4: it needs CAP_NET_ADMIN"] * 3
