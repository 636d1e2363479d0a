# SPDX-License-Identifier: Apache-2.0
"""One call of a driver for several claims, within its time."""

import asyncio
from collections.abc import Sequence

from agent.model.devices.plugin import ClaimAnswer
from agent.model.finding import printable
from kepd_devices.plan.answers import Answers, checked
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.ports import DeviceDriver, DriverFailed

# Drivers keep the limit themselves, where they can.
OVERTIME_S = 1.0


async def answers_of(
    driver: DeviceDriver | None, name: str, asked: Sequence[ClaimRecord], limit_s: float, *, is_prepare: bool
) -> Answers:
    """What a driver says to each claim; a driver that is away, late or wrong is an error of each."""
    why = f"driver {name} is not registered" if driver is None else driver.why_away
    if driver is None or why:
        return {one.uid: ClaimAnswer(error=f"driver-away: {why}") for one in asked}
    limit_s += driver.extra_s(asked, is_prepare=is_prepare)
    call = driver.prepare if is_prepare else driver.unprepare
    try:
        async with asyncio.timeout(limit_s + OVERTIME_S):
            answers = await call(asked)
    except TimeoutError:
        text = f"driver {name} did not answer within {limit_s:g} s"
        return {one.uid: ClaimAnswer(error=text) for one in asked}
    except DriverFailed as error:
        return {one.uid: ClaimAnswer(error=f"driver {name}: {printable(str(error))}") for one in asked}
    return checked(name, asked, answers, is_prepare=is_prepare)
