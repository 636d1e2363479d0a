# SPDX-License-Identifier: Apache-2.0
"""Whether an address of the configuration can be reached from this node alone."""

from ipaddress import ip_address


def is_loopback(address: str) -> bool:
    """Of `host:port`; a name that only begins like one of the loopback addresses is none."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
