# SPDX-License-Identifier: Apache-2.0
"""What `kepctl doctor` says of Services: those without an address, whose node port answers nowhere, or with faults."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

from agent.model.finding import Advice
from agent.model.placed import Walk
from agent.model.service_report import ServiceReport

MOST_NAMED = 50


class ServicesView(Protocol):
    def services(self, after: str = "") -> Walk[ServiceReport]: ...


async def service_advice(view: ServicesView) -> list[Advice]:
    """One for each fault, of the first Services by name that have any."""
    found: list[Advice] = []
    async for one in _reports(view):
        texts = one.findings or (() if one.is_programmed else ("it is not programmed",))
        found += [_advice(f"{one.namespace}/{one.name}", text) for text in texts]
        if len(found) >= MOST_NAMED:
            more = "others may have faults too; see kepctl get services"
            return [*found, Advice(subject="Services", found=f"{len(found)} faults", wanted="0", text=more)]
    return found


async def _reports(view: ServicesView) -> AsyncIterator[ServiceReport]:
    async with aclosing(view.services()) as walk:
        async for _, one in walk:
            yield one


def _advice(name: str, text: str) -> Advice:
    return Advice(
        subject=f"Service {name}", found=text, wanted="no fault", text="it does not answer, or not everywhere",
        mend=f"kepctl describe service {name}",
    )  # fmt: skip
