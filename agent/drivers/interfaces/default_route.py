# SPDX-License-Identifier: Apache-2.0
"""The addresses by which this host reaches others, by sockets that never send.

Never: needs rights, or a library that takes megabytes.
"""

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

# Of networks that only documents have: no other route than the default one leads there.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT = 9
# <linux/in6.h>: instead of one that privacy extensions made for days, an address of the same interface that lasts.
_PREFERENCES, _PREFER_PUBLIC = 72, 2


_ROUTES, _ROUTES6 = Path("/proc/net/route"), Path("/proc/net/ipv6_route")


def default_interfaces() -> tuple[str, ...]:
    """Names of those by which this host reaches others."""
    found = []
    with suppress(OSError):
        lines = [line.split() for line in _ROUTES.read_text().splitlines()[1:]]
        found += [words[0] for words in lines if len(words) > 7 and words[1] == words[7] == "00000000"]
    with suppress(OSError):
        lines = [line.split() for line in _ROUTES6.read_text().splitlines()]
        found += [words[-1] for words in lines if words[:2] == ["0" * 32, "00"] and words[-1] != "lo"]
    return tuple(dict.fromkeys(found))


def default_addresses() -> tuple[bytes, ...]:
    """Packed, of each family that has a default route; of its interface."""
    found = []
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            if family == socket.AF_INET6:
                asking.setsockopt(socket.IPPROTO_IPV6, _PREFERENCES, _PREFER_PUBLIC)
            asking.connect((elsewhere, _DISCARD_PORT))
            address = ip_address(asking.getsockname()[0])
            if not address.is_loopback and not address.is_unspecified:
                found.append(address.packed)
    return tuple(found)
