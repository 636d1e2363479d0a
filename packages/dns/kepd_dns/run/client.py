# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the socket of kepd-dns."""

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec

from kepd_dns.handover.status import LARGEST, LENGTH_BYTES, Reply, StatusRequest, framed

WITHIN_S = 2.0


class ProcessUnavailable(Exception):
    """kepd-dns does not answer at its socket."""


class ProcessClient:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, request: StatusRequest) -> Reply:
        """Raises ProcessUnavailable; an error of the request is in the reply."""
        try:
            async with asyncio.timeout(WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                try:
                    writer.write(framed(request))
                    await writer.drain()
                    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                    if size > LARGEST:
                        raise ProcessUnavailable(f"{self._path}: an answer of {size} bytes; expected at most {LARGEST}")
                    return msgspec.json.decode(await reader.readexactly(size), type=Reply)
                finally:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()
        except TimeoutError as error:
            raise ProcessUnavailable(f"kepd-dns does not answer at {self._path} within {WITHIN_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, RecursionError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise ProcessUnavailable(f"kepd-dns cannot be asked at {self._path}: {text}") from error
