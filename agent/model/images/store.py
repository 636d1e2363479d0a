# SPDX-License-Identifier: Apache-2.0
"""What a runtime keeps of images: blobs whole and on their way, names, news about both, and the file system below."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from agent.model.pods.wall_clock import stamp

# Of leases, and from 2.0 on of names too, containerd ignores what is past its time; it does not remove all of it.
EXPIRE_LABEL = "containerd.io/gc.expire"


def expiring(at_s: float) -> dict[str, str]:
    """The labels of what is held until a moment, in wall time."""
    return {EXPIRE_LABEL: stamp(at_s)}


def is_expired(labels: Mapping[str, str], now_s: float) -> bool:
    try:
        return datetime.fromisoformat(labels.get(EXPIRE_LABEL, "")).timestamp() < now_s
    except ValueError:
        return False


class BlobInfo(msgspec.Struct, frozen=True):
    digest: str
    size_bytes: int
    created_at_s: float
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class ImageRecord(msgspec.Struct, frozen=True):
    name: str
    digest: str
    media_type: str
    size_bytes: int
    created_at_s: float
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class StoreEventKind(StrEnum):
    """`unpacking` and `unpacked` name a snapshot, the others an image."""

    UNPACKING = "unpacking"
    UNPACKED = "unpacked"
    NAMED = "named"
    UNNAMED = "unnamed"


class StoreEvent(msgspec.Struct, frozen=True):
    kind: StoreEventKind
    name: str


class Filesystem(msgspec.Struct, frozen=True, kw_only=True):
    """Where images lie. Without a capacity it could not be measured, and its other figures say nothing."""

    capacity_bytes: int = 0
    available_bytes: int = 0
    inodes: int = 0
    free_inodes: int = 0
    device_number: int = 0
    is_read_only: bool = False

    @property
    def is_measured(self) -> bool:
        return self.capacity_bytes > 0

    @property
    def used_percent(self) -> int:
        """As the kubelet counts: what is not available is used."""
        return _used_percent(self.capacity_bytes, self.available_bytes)

    @property
    def used_inodes_percent(self) -> int:
        """The same for inodes; file systems without a fixed number of them never run out."""
        return _used_percent(self.inodes, self.free_inodes)


def _used_percent(capacity: int, available: int) -> int:
    return 100 - available * 100 // capacity if capacity > 0 else 0


class StoreRoots(msgspec.Struct, frozen=True, kw_only=True):
    """Where a runtime keeps what it downloaded, and what each of its snapshotters unpacked; empty where it does not
    say."""

    content: str = ""
    snapshotters: Mapping[str, str] = msgspec.field(default_factory=dict)


class Ingest(msgspec.Struct, frozen=True):
    """`ref` is containerd's name for the write, such as `layer-sha256:…`; `total_bytes` is 0 while unknown."""

    ref: str
    offset_bytes: int
    total_bytes: int
    updated_at_s: float = 0.0
    """When its last byte came, wall time; 0 = not told."""
