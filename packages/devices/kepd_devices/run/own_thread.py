# SPDX-License-Identifier: Apache-2.0
"""Work on what strangers wrote that cannot be broken off: in a thread of its own, for which nothing waits at the end of
the process, and which takes no place in the pool that all planes share."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def in_own_thread(work: Callable[[], Result]) -> Result:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(found: Result | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        found, failure = None, None
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - it goes on where the work is awaited
            failure = error
        # The loop may have ended meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=run, name="kepd-own", daemon=True).start()
    return await answer
