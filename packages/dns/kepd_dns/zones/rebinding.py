# SPDX-License-Identifier: Apache-2.0
"""Answers of other zones that lead to addresses of this cluster."""

from collections.abc import Sequence
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from kepd_dns.wire.answer import FilteredAnswer
from kepd_dns.wire.question import AAAA, A


def names_protected(kept: FilteredAnswer, networks: Sequence[str]) -> bool:
    """Whether a record of an answer has an address within one of them."""
    if not networks:
        return False
    known = _read(tuple(networks))
    for place in kept.ttls[: kept.answers]:
        kind = kept.tail[place - 4] << 8 | kept.tail[place - 3]
        if kind in (A, AAAA):
            address = ip_address(kept.tail[place + 6 : place + (10 if kind == A else 22)])
            if any(address in one for one in known):
                return True
    return False


@cache
def _read(networks: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(one, strict=False) for one in networks)
