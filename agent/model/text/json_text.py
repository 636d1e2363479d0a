# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON of files and of other programs: whatever its bytes are, it fails only with the decoder's own error."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode_json(content: bytes | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, which is a ValueError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("its values lie too deep in each other") from error
