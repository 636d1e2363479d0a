# SPDX-License-Identifier: Apache-2.0
"""The configuration of the kubelet on this node, from its files, or what it answers under /configz."""

import asyncio
import urllib.request
from pathlib import Path

OVERLAY = "instance-config.yaml"
LIMIT_S = 3.0
MOST_BYTES = 1 << 20


class KubeletConfiguration:
    """`place` is a path, or a URL of http or https."""

    def __init__(self, place: str) -> None:
        self.place = place

    async def read(self) -> tuple[bytes, bytes]:
        """The configuration and what is laid over it. Raises OSError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[bytes, bytes]:
        if self.place.startswith(("http://", "https://")):
            with urllib.request.urlopen(self.place, timeout=LIMIT_S) as answer:  # noqa: S310  # checked above
                return answer.read(MOST_BYTES), b""
        path = Path(self.place)
        overlay = path.with_name(OVERLAY)
        return path.read_bytes(), overlay.read_bytes() if overlay.is_file() else b""
