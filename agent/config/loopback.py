# SPDX-License-Identifier: Apache-2.0
"""Whether an address of the configuration can be reached from this node alone, or by clients that are known."""

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.config.document import Api


def is_loopback(address: str) -> bool:
    """Of `host:port`; a name that only begins like one of the loopback addresses is none."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_for_few(api: "Api") -> bool:
    """Whether the pages of the HTTP port are for this node, or for clients with a certificate."""
    return is_loopback(api.http_address) or bool(api.http_address and api.http_tls.client_ca_file)
