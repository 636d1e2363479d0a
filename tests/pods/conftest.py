# SPDX-License-Identifier: Apache-2.0
"""Virtual time and threads do not go together: nobody knows how much of it passes while a thread works."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from agent.pods.run.handlers import interrupts

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture(autouse=True)
def work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plane gives to a thread is done in the loop here; files of a test are small."""

    async def at_once(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        await asyncio.sleep(0)
        return work(*args, **named)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


@pytest.fixture(autouse=True)
def an_end_breaks_calls_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving a plane stands for a kill; a test that means an orderly end says so."""
    monkeypatch.setattr(interrupts, "LONGEST_END_S", 0.0)
