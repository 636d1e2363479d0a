# SPDX-License-Identifier: Apache-2.0
"""What a feed tells: a change of one object."""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

Item = TypeVar("Item")


class ChangeKind(StrEnum):
    """What happened to an object. A bookmark has none: everything up to its version has been told."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    BOOKMARK = "bookmark"


class FeedChange(msgspec.Struct, Generic[Item], frozen=True):
    kind: ChangeKind
    item: Item | None
    version: int
