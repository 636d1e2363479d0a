# SPDX-License-Identifier: Apache-2.0
"""Points in time as protobuf has them."""

from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["timestamp"]


def timestamp(wall_s: float | None) -> Timestamp | None:
    """Seconds since 1970; nothing and zero are no point in time."""
    if not wall_s:
        return None
    stamp = Timestamp()
    stamp.FromNanoseconds(int(wall_s * 1e9))
    return stamp
