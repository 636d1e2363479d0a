# SPDX-License-Identifier: Apache-2.0
"""What an archive of a checkpoint says about itself, read as if an enemy had written it.

Only headers and two small members are read; the rest is skipped, and nothing is unpacked. Python's own reader takes
names and attributes of any length into memory, so it is not used. Blocking; called in threads.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

BLOCK_BYTES = 512
MOST_MEMBERS = 100_000
MOST_JSON_BYTES, LOG_BYTES = 1 << 20, 4 << 10
MOST_METADATA_BYTES = 64 << 20
MOST_SHOWN = 256
REGULAR = (b"0", b"\0")
# Names and attributes of the member that follows; members that matter need none.
OF_NEXT = (b"x", b"g", b"L", b"K")
CONFIG, LOG = "config.dump", "dump.log"
VERSION = re.compile(rb"Version: ([0-9A-Za-z.+~-]{1,32})")


class NotAnArchive(Exception):
    """Not one of a checkpoint, or it is broken, or made to harm."""


class ArchiveText(msgspec.Struct, frozen=True):
    """`reference` is the image as the runtime finds it again: by a digest, or by its id alone if it was imported."""

    image: str = ""
    criu: str = ""
    reference: str = ""


class _Config(msgspec.Struct):
    """What containerd and CRI-O write."""

    rootfs_image_name: str = msgspec.field(default="", name="rootfsImageName")
    rootfs_image: str = msgspec.field(default="", name="rootfsImage")
    rootfs_image_ref: str = msgspec.field(default="", name="rootfsImageRef")


def described(file: BinaryIO, size_bytes: int) -> ArchiveText:
    """Raises NotAnArchive."""
    criu = ""
    config = None
    for name, size in _members(file, size_bytes):
        if name == CONFIG:
            config = _config(file, size)
        elif name == LOG:
            found = VERSION.search(file.read(min(size, LOG_BYTES)))
            criu = found[1].decode("ascii") if found is not None else ""
    if config is None:
        raise NotAnArchive(f"it has no {CONFIG}")
    image = config.rootfs_image_name or config.rootfs_image
    return ArchiveText(image[:MOST_SHOWN], criu, config.rootfs_image_ref[:MOST_SHOWN])


def _members(file: BinaryIO, size_bytes: int) -> Iterator[tuple[str, int]]:
    """Regular ones, each while its content is next."""
    place = 0
    for _ in range(MOST_MEMBERS):
        file.seek(place)
        block = file.read(BLOCK_BYTES)
        if not block.strip(b"\0"):
            return
        name, size, kind = _header(block)
        content = place + BLOCK_BYTES
        if content + size > size_bytes:
            raise NotAnArchive("it ends within a member")
        if kind in REGULAR:
            yield name, size
        elif kind in OF_NEXT and size > MOST_METADATA_BYTES:
            raise NotAnArchive(f"attributes of {size} bytes")
        place = content + -(-size // BLOCK_BYTES) * BLOCK_BYTES
    raise NotAnArchive(f"it has more than {MOST_MEMBERS} members")


def _header(block: bytes) -> tuple[str, int, bytes]:
    if len(block) < BLOCK_BYTES or _number(block[148:156]) != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
        raise NotAnArchive("a header is broken")
    prefix = block[345:500].rstrip(b"\0") if block[257:262] == b"ustar" and block[263:265] == b"00" else b""
    given = b"/".join(part for part in (prefix, block[:100].partition(b"\0")[0]) if part).decode("utf-8", "replace")
    name = given.removeprefix("./")
    if given.startswith("/") or ".." in given.split("/"):
        raise NotAnArchive("a member is named to lie elsewhere")
    size = _number(block[124:136])
    if size < 0:
        raise NotAnArchive("a member has no size")
    return name, size, block[156:157]


def _number(field: bytes) -> int:
    """Octal, or of large files binary. Negative if it is neither."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    return int(text, 8) if text and not text.strip(b"01234567") else 0 if not text else -1


def _config(file: BinaryIO, size: int) -> _Config:
    if size > MOST_JSON_BYTES:
        raise NotAnArchive(f"{CONFIG} has {size} bytes; expected at most {MOST_JSON_BYTES}")
    try:
        return msgspec.json.decode(file.read(size), type=_Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotAnArchive(f"{CONFIG} cannot be read: {error}") from error
