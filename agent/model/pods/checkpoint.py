# SPDX-License-Identifier: Apache-2.0
"""An archive with a checkpoint of a container, as it is listed, and what became of the call that makes one."""

import msgspec


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is ready, writing or broken; image and CRIU's version are what the archive says, and it may be silent."""

    name: str
    state: str
    size_bytes: int
    made_at_s: float
    image: str = ""
    criu: str = ""


class MadeCheckpoint(msgspec.Struct, frozen=True):
    """`took_s`: how long the runtime took, for the longest part of which the container stood still."""

    path: str
    took_s: float
