# SPDX-License-Identifier: Apache-2.0
"""Where planes keep what outlives the process."""

from typing import Protocol


class RecordFiles(Protocol):
    """Small files that are there whole or not at all, by relative names. Calls raise OSError."""

    async def read_folder(self, folder: str) -> dict[str, bytes]: ...

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None: ...

    async def remove(self, name: str) -> None: ...
