# SPDX-License-Identifier: Apache-2.0
"""Names of the DNS as they travel: labels with their lengths, uncompressed, in lower case where they are compared.

Texts of names are for people: master-file escapes leave nothing that a terminal obeys (DNS-97).
"""

from collections.abc import Iterator

MOST_LABEL, MOST_NAME = 63, 255
ROOT = b"\0"


class Malformed(Exception):
    """A message that cannot be read, or a text that is no name."""


def to_wire(text: str) -> bytes:
    """Of a name as people write it, in lower case; the dot at the end may be missing. Escapes are not read."""
    stripped = text.rstrip(".")
    if not stripped:
        return ROOT
    found = bytearray()
    for label in stripped.encode("utf-8", "surrogateescape").lower().split(b"."):
        if not 0 < len(label) <= MOST_LABEL:
            raise Malformed(f"{text!r} is no name: a label has {len(label)} bytes; expected 1 to {MOST_LABEL}")
        found.append(len(label))
        found += label
    found.append(0)
    if len(found) > MOST_NAME:
        raise Malformed(f"{text[:60]!r}… is no name: {len(found)} bytes; expected at most {MOST_NAME}")
    return bytes(found)


def to_text(name: bytes) -> str:
    """With the dot at its end."""
    return "".join(f"{_escaped(label)}." for label in labels(name)) or "."


def _escaped(label: bytes) -> str:
    letters = []
    for byte in label:
        letter = chr(byte)
        if letter in '.\\"();@$':
            letters.append(f"\\{letter}")
        else:
            letters.append(letter if 0x21 <= byte <= 0x7E else f"\\{byte:03d}")
    return "".join(letters)


def labels(name: bytes) -> tuple[bytes, ...]:
    found = []
    at = 0
    while length := name[at]:
        found.append(name[at + 1 : at + 1 + length])
        at += length + 1
    return tuple(found)


def from_labels(parts: Iterator[bytes] | tuple[bytes, ...]) -> bytes:
    return b"".join(bytes((len(one),)) + one for one in parts) + ROOT


def suffixes(name: bytes) -> Iterator[bytes]:
    """The name, then each name above it, the root at last."""
    at = 0
    while name[at]:
        yield name[at:]
        at += name[at] + 1
    yield ROOT


def is_within(name: bytes, zone: bytes) -> bool:
    """Whether a name is the zone's or below it, by whole labels."""
    return name.endswith(zone) and any(one == zone for one in suffixes(name))
