# SPDX-License-Identifier: Apache-2.0
"""Whether a kubelet serves this node: two managers of devices would give them twice."""

import asyncio
import os
import socket
import struct
from pathlib import Path

SOCKETS = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock")
CONNECT_S = 1.0
PEER = struct.Struct("3i")


async def kubelet_beside(directory: Path) -> str:
    """Where one accepts connections; nothing without any. What this process serves there itself is none."""
    for name in SOCKETS:
        path = directory / name
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await asyncio.get_running_loop().sock_connect(one, str(path))
            except OSError:
                continue
            if PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0] == os.getpid():
                continue
            return f"a kubelet serves this node: it accepts on {path}"
    return ""
