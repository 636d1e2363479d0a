# SPDX-License-Identifier: Apache-2.0
"""Where a registry is asked, and which addresses it may send us to.

https everywhere, plain http only from loopback to loopback, and no login inside an address.
"""

import ipaddress
import re
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from agent.drivers.registry.errors import ProbeFailed

HUB, HUB_HOST = "docker.io", "registry-1.docker.io"
PORTS = {"http": 80, "https": 443}
PRINTABLE = re.compile(r"[\x21-\x7e]+")


class Origin(msgspec.Struct, frozen=True):
    """What two addresses must share for one to get the other's credentials."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, by its name or number alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def default_base_url(registry: str) -> str:
    """Without any configuration: loopback in plain, everything else by TLS."""
    if registry == HUB:
        return f"https://{HUB_HOST}"
    scheme = "http" if origin_of(f"http://{registry}").is_loopback else "https"
    return f"{scheme}://{registry}"


def origin_of(url: str) -> Origin:
    """Scheme, host and port. Raises ProbeFailed for what is no http address, or holds a login."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ProbeFailed("an address is malformed, expected https://HOST[:PORT]/PATH") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise ProbeFailed("an address is neither http nor https, or names no host")
    if "@" in parts.netloc:
        raise ProbeFailed("an address holds a login, expected none")
    return Origin(parts.scheme, parts.hostname, PORTS[parts.scheme] if port is None else port)


def followed(url: str, link: str) -> str:
    """The address that an answer from `url` points to. Raises ProbeFailed if nobody should go there."""
    try:
        target = urljoin(url, link)
    except ValueError:
        raise ProbeFailed("the registry points to a malformed address") from None
    origin = origin_of(target)
    if origin.scheme != "https" and not (origin.is_loopback and origin_of(url).is_loopback):
        raise ProbeFailed("the registry points to an address without TLS")
    if PRINTABLE.fullmatch(target) is None:
        raise ProbeFailed("the registry points to a malformed address")
    return target.partition("#")[0]


def with_query(url: str, pairs: list[tuple[str, str]]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(pairs)}" if pairs else url
