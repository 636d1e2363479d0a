# SPDX-License-Identifier: Apache-2.0
"""What a pod has on disks, and in volumes that are memory."""

from collections.abc import Mapping

import msgspec


class VolumeSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and inodes that a volume uses, and what the file system has that it is on. `limit_bytes` is what the
    manifest allows it; 0 is no limit, and 0 inodes are no fixed number of them."""

    name: str
    used_bytes: int = 0
    used_inodes: int = 0
    capacity_bytes: int = 0
    available_bytes: int = 0
    limit_bytes: int = 0
    inodes: int = 0
    inodes_free: int = 0
    is_memory: bool = False


class PodSpace(msgspec.Struct, frozen=True, kw_only=True):
    """`logs` are bytes by container. What could not be measured in time has the last figures, or is missing."""

    namespace: str
    name: str
    uid: str
    logs: Mapping[str, int] = msgspec.field(default_factory=dict)
    volumes: tuple[VolumeSpace, ...] = ()
    is_whole: bool = True
