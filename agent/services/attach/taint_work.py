# SPDX-License-Identifier: Apache-2.0
"""When the startup taint is looked at in the life of a kepd: before the first rules, all the time, before the end.

The first sync waits until the server took or refused the taint, so that it is there before kepd says that it is ready
(SVN-64); never for a server that is silent, since without it there are no Services to write either.
"""

import asyncio
from contextlib import suppress

from agent.services.attach.missing_rules import MissingRules
from agent.services.attach.startup_taint import StartupTaint
from agent.services.run.intake import Intake

TAINT = "taint"
"""What the intake waits for."""
LONGEST_WAIT_S = 30.0
END_S = 2.0


class TaintWork:
    """Without a taint there is nothing to do."""

    def __init__(
        self, taint: StartupTaint | None = None, missing: MissingRules | None = None, intake: Intake | None = None
    ) -> None:
        self._taint = taint
        self._missing = missing
        self._intake = intake
        if taint is not None and missing is not None:
            missing.heard = taint.look

    async def begin(self) -> None:
        if self._missing is not None:
            await self._missing.begin()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._taint is not None:
                group.create_task(self._taint.run(), name="startup-taint")
            if self._missing is not None:
                group.create_task(self._missing.run(), name="services-missing-rules")
                group.create_task(self._release(), name="startup-taint-first")

    async def _release(self) -> None:
        assert self._taint is not None  # noqa: S101 - it comes with the other
        assert self._intake is not None  # noqa: S101
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._taint.tried.wait()
        self._intake.complete(TAINT)

    async def end(self) -> None:
        if self._taint is None or self._missing is None:
            return
        await self._missing.end()
        if self._missing.is_so():
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._taint.change()
