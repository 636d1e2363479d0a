# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a Service, asked directly: neither kepctl nor the API takes part."""

import struct
from ipaddress import ip_address

from agent.drivers.netlink.attributes import nested, text
from agent.drivers.netlink.connection import NetlinkConnection, open_socket
from agent.drivers.nft.elements import deletions
from agent.drivers.nft.messages import Message
from agent.model.services.nft_table import MAPS, TABLE


class Programmed:
    """Of the network namespace that its maker is in."""

    def __init__(self) -> None:
        self._asking = NetlinkConnection(open_socket())

    def endpoint(self, ip: str, port: int = 80) -> bytes:
        """What the first endpoint of a Service is made of; empty: there is none."""
        key = ip_address(ip).packed + b"\x06\0\0\0" + struct.pack(">HH", port, 0) + bytes(4)
        (element,) = deletions(MAPS["eps"], "IPv4", [key])
        whose = text(1, TABLE) + text(2, "eps") + nested(3, element)
        try:
            block, begin, end = self._asking.ask(Message.GET_ELEMENTS, "IPv4", whose, 10.0)
        except OSError:
            return b""
        return bytes(block[begin:end])

    def close(self) -> None:
        self._asking.close()
