# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON of files and of other programs: whatever its bytes are, it fails only with the decoder's own error."""

from typing import Protocol, TypeVar

import msgspec


class Record(Protocol):
    """What is kept on the disk, for a later kepd too."""

    @property
    def format(self) -> int: ...


T = TypeVar("T")
R = TypeVar("R", bound=Record)


def decode_json(content: bytes | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, which is a ValueError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("its values lie too deep in each other") from error


def decode_record(content: bytes, kind: type[R], known: int) -> R:
    """`known` is the format that can be read. Raises ValueError."""
    record = decode_json(content, kind)
    if record.format != known:
        raise ValueError(f"format {record.format} is not {known}")
    return record
