# SPDX-License-Identifier: Apache-2.0
"""Addresses, networks, URLs, and the formats that names of Kubernetes have."""

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import NAMES, EvaluationFailed, Optional

addresses = SignatureTable()


class Ip(msgspec.Struct, frozen=True):
    address: IPv4Address | IPv6Address


class Cidr(msgspec.Struct, frozen=True):
    address: IPv4Address | IPv6Address
    length: int

    @property
    def network(self) -> Any:
        return ip_network(f"{self.address}/{self.length}", strict=False)


class Url(msgspec.Struct, frozen=True):
    text: str


class Format(msgspec.Struct, frozen=True):
    name: str
    complaint: str
    matches: Callable[[str], bool]


NAMES.update({Ip: "ip", Cidr: "cidr", Url: "url", Format: "format"})


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    is_odd = "%" in text or (found.version == 6 and found.ipv4_mapped is not None)
    return None if is_odd else found


@addresses.says("ip(string) -> ip")
def ip(text: str) -> Ip:
    found = _address(text)
    if found is None:
        raise EvaluationFailed(f"{text[:80]!r} is no IP address")
    return Ip(found)


@addresses.says("isIP(string) -> bool")
def is_ip(text: str) -> bool:
    return _address(text) is not None


@addresses.says("ip.isCanonical(string) -> bool")
def is_canonical(text: str) -> bool:
    return str(ip(text).address) == text


@addresses.says("string(ip) -> string")
def text_of_ip(of: Ip) -> str:
    return str(of.address)


@addresses.says("ip:family() -> int")
def family(of: Ip) -> int:
    return of.address.version


QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "isUnspecified": lambda one: one.is_unspecified,
    "isLoopback": lambda one: one.is_loopback,
    "isLinkLocalMulticast": lambda one: (
        one in ip_network("224.0.0.0/24") if one.version == 4 else (int(one) >> 112) & 0xFF0F == 0xFF02
    ),
    "isLinkLocalUnicast": lambda one: one.is_link_local,
    "isGlobalUnicast": lambda one: (
        not (
            one.is_unspecified
            or one.is_loopback
            or one.is_multicast
            or one.is_link_local
            or str(one) == "255.255.255.255"
        )
    ),
}


def _question(name: str) -> None:
    ask = QUESTIONS[name]

    @addresses.says(f"ip:{name}() -> bool")
    def answer(of: Ip) -> bool:
        return ask(of.address)


for _name in QUESTIONS:
    _question(_name)


def _network(text: str) -> Cidr | None:
    address, slash, length = text.partition("/")
    found = _address(address)
    is_number = bool(re.fullmatch(r"0|[1-9][0-9]{0,2}", length))
    if found is None or not slash or not is_number or int(length) > found.max_prefixlen:
        return None
    return Cidr(found, int(length))


@addresses.says("cidr(string) -> cidr")
def cidr(text: str) -> Cidr:
    found = _network(text)
    if found is None:
        raise EvaluationFailed(f"{text[:80]!r} is no network such as 10.0.0.0/8")
    return found


@addresses.says("isCIDR(string) -> bool")
def is_cidr(text: str) -> bool:
    return _network(text) is not None


@addresses.says("string(cidr) -> string")
def text_of_cidr(of: Cidr) -> str:
    return f"{of.address}/{of.length}"


@addresses.says("cidr:ip() -> ip")
def ip_of(of: Cidr) -> Ip:
    return Ip(of.address)


@addresses.says("cidr:masked() -> cidr")
def masked(of: Cidr) -> Cidr:
    return Cidr(of.network.network_address, of.length)


@addresses.says("cidr:prefixLength() -> int")
def prefix_length(of: Cidr) -> int:
    return of.length


@addresses.says("cidr:containsIP(ip) -> bool", "cidr:containsIP(string) -> bool")
def contains_ip(of: Cidr, one: Ip | str) -> bool:
    address = (ip(one) if isinstance(one, str) else one).address
    return address.version == of.address.version and address in of.network


@addresses.says("cidr:containsCIDR(cidr) -> bool", "cidr:containsCIDR(string) -> bool")
def contains_cidr(of: Cidr, one: Cidr | str) -> bool:
    other = cidr(one) if isinstance(one, str) else one
    is_same = other.address.version == of.address.version
    return is_same and bool(other.network.subnet_of(of.network))


@addresses.says("url(string) -> url")
def url(text: str) -> Url:
    if not is_url(text):
        raise EvaluationFailed(f"{text[:80]!r} is no absolute URL or path")
    return Url(text)


@addresses.says("isURL(string) -> bool")
def is_url(text: str) -> bool:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        return False
    is_whole = bool(found.scheme and (found.netloc or found.path)) or text.startswith("/")
    return is_whole and text.isprintable() and " " not in text


PARTS: dict[str, Callable[[str], str]] = {
    "getScheme": lambda text: urlsplit(text).scheme,
    "getHost": lambda text: urlsplit(text).netloc.rpartition("@")[2],
    "getHostname": lambda text: (urlsplit(text).netloc.rpartition("@")[2] and urlsplit(text).hostname) or "",
    "getPort": lambda text: str(urlsplit(text).port or ""),
    "getEscapedPath": lambda text: urlsplit(text).path,
}


def _part(name: str) -> None:
    take = PARTS[name]

    @addresses.says(f"url:{name}() -> string")
    def part(of: Url) -> str:
        return take(of.text)


for _name in PARTS:
    _part(_name)


@addresses.says("url:getQuery() -> map(string, list(string))")
def query(of: Url) -> dict[str, list[str]]:
    return parse_qs(urlsplit(of.text).query, keep_blank_values=True, max_num_fields=1000)


LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
QUALIFIED = re.compile(rf"({LABEL}(\.{LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"


def _shape(name: str, expression: str, longest: int = 10**6) -> Format:
    compiled = re.compile(expression, re.ASCII)
    complaint = f"must match {expression} and have at most {longest} characters"
    return Format(name, complaint, lambda text: len(text) <= longest and compiled.fullmatch(text) is not None)


def _is_qualified(text: str) -> bool:
    prefix, _, name = text.rpartition("/")
    return len(prefix) <= 253 and len(name) <= 63 and QUALIFIED.fullmatch(text) is not None


FORMATS = {
    one.name: one
    for one in (
        _shape("dns1123Label", LABEL, 63),
        _shape("dns1123Subdomain", rf"{LABEL}(\.{LABEL})*", 253),
        _shape("dns1035Label", "[a-z]([-a-z0-9]*[a-z0-9])?", 63),
        _shape("dns1123LabelPrefix", rf"{LABEL}-?", 63),
        _shape("dns1123SubdomainPrefix", rf"{LABEL}(\.{LABEL})*[-.]?", 253),
        _shape("dns1035LabelPrefix", "[a-z]([-a-z0-9]*[a-z0-9])?-?", 63),
        _shape("labelValue", "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", 63),
        _shape("uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
        _shape("byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
        _shape("date", DATE),
        _shape("datetime", rf"{DATE}[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"),
        Format("qualifiedName", "must be a qualified name", _is_qualified),
        Format("uri", "must be a URL", is_url),
    )
}


def _format(name: str) -> None:
    made = FORMATS[name]

    @addresses.says(f"format.{name}() -> format")
    def the_format() -> Format:
        return made


for _name in FORMATS:
    _format(_name)


@addresses.says("format.named(string) -> optional(format)")
def named(name: str) -> Optional:
    return Optional(True, FORMATS[name]) if name in FORMATS else Optional()


@addresses.says("format:validate(string) -> optional(list(string))")
def validate(of: Format, text: str) -> Optional:
    """What is wrong with it, nothing where all is well."""
    return Optional() if of.matches(text) else Optional(True, [of.complaint])
