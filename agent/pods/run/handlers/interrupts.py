# SPDX-License-Identifier: Apache-2.0
"""What takes long for a pod, such as a pull, a hook or a driver, and is given up when the pod has to end."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")
# Less than the plane has for its end.
LONGEST_END_S = 4.0


class LaunchInterrupted(Exception):
    """The pod has to end; what was being waited for does not matter any more."""


async def unbroken(work: Coroutine[Any, Any, Result]) -> Result:
    """Runtimes abandon a call whose caller leaves, with what they had begun. So a kepd that ends waits for this one for
    a while."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task], timeout=LONGEST_END_S)
        finally:
            task.cancel()
        raise


class Interrupts:
    """Of one pod. `is_on` lasts from an interrupt until the pod goes on."""

    def __init__(self) -> None:
        self.is_on = False
        self._scopes: dict[asyncio.Timeout, str] = {}

    def give_up(self) -> None:
        self.is_on = True
        self._end(self._scopes)

    def drop(self, images: Collection[str]) -> None:
        """End the waits for these images, which the manifest no longer names; the pod goes on."""
        self._end([scope for scope, image in self._scopes.items() if image in images])

    @staticmethod
    def _end(scopes: Iterable[asyncio.Timeout]) -> None:
        for scope in scopes:
            # One whose time has come already is still on its way out, and takes no other time.
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    async def wait_for(self, work: Coroutine[Any, Any, Result], image: str = "") -> Result:
        """`image` is what the work fetches. Raises LaunchInterrupted."""
        if self.is_on:
            work.close()
            raise LaunchInterrupted
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes[scope] = image
                return await work
        except TimeoutError:
            if scope.expired():
                raise LaunchInterrupted from None
            raise
        finally:
            self._scopes.pop(scope, None)
