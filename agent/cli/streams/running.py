# SPDX-License-Identifier: Apache-2.0
"""Runs what has a loop of its own, until an interrupt.

An interrupt cancels the work where it waits. Raised in the midst of a step it would leave a connection half closed, and
what the other end does not read would be waited for. A second interrupt does as everywhere.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_until_interrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Raises KeyboardInterrupt once the work has ended. Only a main thread hears of interrupts."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    usual = signal.getsignal(signal.SIGINT)

    async def interruptible() -> Result:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, usual)
            task.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        return await task

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, usual)
