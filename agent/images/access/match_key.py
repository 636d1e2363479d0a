# SPDX-License-Identifier: Apache-2.0
"""Matches images with the registries that a credential or a provider is for: host labels, port and path.

A pattern that is no address matches nothing.
Source of behaviour: kubernetes `pkg/credentialprovider/keyring.go` and Go `net/url`.
"""

import re
from urllib.parse import unquote

import msgspec

SCHEMES = ("https://", "http://")
API_PATHS = ("/v1/", "/v2/")
# What Go's parser lets stand in a host; the rest of ASCII it refuses.
HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=<>\"\u0080-\U0010ffff-]*")
BRACKETED = re.compile(r"\[(?P<ip>[0-9A-Fa-f:.]+)\]")
PORT = re.compile(r"(?::(?P<port>[0-9]*))?")
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class KeyInvalid(ValueError):
    """The text is not an address. The message does not repeat it, because it may contain a secret."""


class MatchKey(msgspec.Struct, frozen=True):
    labels: tuple[str, ...]
    port: str
    path: str

    def covers(self, target: "MatchKey") -> bool:
        """Whether a pattern covers an image: the same port and number of labels, and the path as a plain prefix."""
        return (
            self.port == target.port
            and len(self.labels) == len(target.labels)
            and target.path.startswith(self.path)
            and all(map(_label_matches, self.labels, target.labels))
        )


def parse_key(text: str) -> MatchKey:
    """An address without scheme. Raises KeyInvalid."""
    host, port, path = _split(text)
    return MatchKey(tuple(host.split(".")), port, path)


def is_match(pattern: str, image: str) -> bool:
    """Whether an image name without tag falls under a pattern."""
    try:
        return parse_key(pattern).covers(parse_key(image))
    except KeyInvalid:
        return False


def key_of_entry(written: str) -> str:
    """The pattern behind a key as Docker writes it: no scheme, no API version, no lone slash. Raises KeyInvalid."""
    text = written
    for scheme in SCHEMES:
        if text.startswith(scheme):
            text = text.removeprefix(scheme)
            break
    authority = re.split(r"[/?#]", text, maxsplit=1)[0].rpartition("@")[2]
    _host, _port, path = _split(text)
    if path.startswith(API_PATHS):
        path = path[3:]
    return authority + ("" if path == "/" else path)


def _split(text: str) -> tuple[str, str, str]:
    if any(sign < " " or sign == "\x7f" for sign in text):
        raise KeyInvalid("holds control characters")
    rest = text.partition("#")[0].partition("?")[0]
    authority, slash, tail = rest.partition("/")
    authority = authority.rpartition("@")[2]
    bracketed = BRACKETED.match(authority)
    if authority.startswith("["):
        if bracketed is None:
            raise KeyInvalid("has an opening bracket that no IPv6 address follows")
        host, after = bracketed[0], authority[bracketed.end() :]
    else:
        host, colon, port_text = authority.partition(":")
        after = colon + port_text
        if not HOST.fullmatch(host):
            raise KeyInvalid("has an invalid character in its host")
    port = PORT.fullmatch(after)
    if port is None:
        raise KeyInvalid("has a port that is not a number")
    if BAD_ESCAPE.search(tail):
        raise KeyInvalid("has a broken % escape")
    if port["port"] is not None and bracketed is not None:
        host = bracketed["ip"]
    return host, port["port"] or "", unquote(slash + tail)


def _label_matches(pattern: str, label: str) -> bool:
    if pattern.startswith("["):
        return False  # to Go's glob this is a set of single signs, which no host label equals
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == label
    # Piece by piece, each as early as it can be: a regular expression of many stars would try all their lengths.
    *middle, last = rest
    at, end = len(first), len(label) - len(last)
    if at > end or not label.startswith(first) or not label.endswith(last):
        return False
    for piece in middle:
        found = label.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
