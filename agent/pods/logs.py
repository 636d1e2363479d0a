# SPDX-License-Identifier: Apache-2.0
"""Directories for container logs: the runtime writes logs but makes no directories for them.

Owns: `pods.logDirectory/NAMESPACE_POD_UID/CONTAINER`, made before its first use and removed with the pod (CLG-03).
Never: follows a link or leaves its directory, whatever a sandbox claims to be called.
"""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

from agent.pods.sandbox_config import log_directory_name

__all__ = ["LogDirectories"]

MODE = 0o755


class LogDirectories:
    """Below one directory. All methods raise OSError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self, log_directory: str, container: str = "") -> None:
        """For a pod, or for one of its containers."""
        (Path(log_directory) / container).mkdir(parents=True, exist_ok=True, mode=MODE)

    def take_back(self, log_directory: str) -> None:
        """For a pod that did not come to be. What somebody wrote stays."""
        with suppress(OSError):
            Path(log_directory).rmdir()

    async def remove(self, namespace: str, pod: str, uid: str) -> None:
        """With everything in it."""
        path = self.directory / log_directory_name(namespace, pod, uid)
        if path.parent == self.directory:
            with suppress(FileNotFoundError):
                await asyncio.to_thread(shutil.rmtree, path)
