# SPDX-License-Identifier: Apache-2.0
"""A sign that rules changed, for the price of a question; to read them all takes a tenth of a second."""

import ctypes
import socket
from collections.abc import Sequence
from contextlib import closing

from agent.drivers.netlink.attributes import attributes
from agent.drivers.netlink.connection import NetlinkConnection, open_socket
from agent.model.services.iptables_rules import Variant
from agent.model.services.nft_table import Family

_LIBC = ctypes.CDLL(None, use_errno=True)
# Of both families: takes the name of a table, gives how many rules it has and where its built-in chains begin.
_GET_INFO, _INFO_BYTES, _GET_GENERATION, _WITHIN_S = 64, 84, 10 << 8 | 16, 1.0


def sign_of(family: Family, variant: Variant, tables: Sequence[str]) -> bytes:
    """nft counts commits. A legacy table has no count: a rule in place of another one of its size leaves no sign."""
    if variant == "nft":
        with closing(NetlinkConnection(open_socket())) as connection:
            block, begin, end = connection.ask(_GET_GENERATION, "", b"", _WITHIN_S)
            return b"".join(block[at:stop] for kind, at, stop in attributes(block, begin, end) if kind == 1)
    net, level = (socket.AF_INET, socket.SOL_IP) if family == "IPv4" else (socket.AF_INET6, socket.IPPROTO_IPV6)
    with socket.socket(net, socket.SOCK_RAW, socket.IPPROTO_RAW) as asking:
        infos = [ctypes.create_string_buffer(one.encode(), _INFO_BYTES) for one in tables]
        size = ctypes.c_uint(_INFO_BYTES)
        if any(_LIBC.getsockopt(asking.fileno(), level, _GET_INFO, one, ctypes.byref(size)) for one in infos):
            raise OSError("the kernel describes no table")
        return b"".join(one.raw for one in infos)
