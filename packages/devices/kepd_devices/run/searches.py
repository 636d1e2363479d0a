# SPDX-License-Identifier: Apache-2.0
"""Searches as work for two desks: one for those that are soon done, and one for others, which go on apart and come
again after pauses that grow. So no claim, class or selector keeps the pods of others waiting."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from agent.model.clock import Clock
from agent.model.desk import Desk, DeskFailed, SameProcess
from agent.model.devices.problem import DevicesNotReady
from agent.model.refused import Refused
from kepd_devices.plan.claim_rules import CLAIM_ERROR
from kepd_devices.plan.desk_work import Found, found
from kepd_devices.plan.search import Question
from kepd_devices.view.explained import Explanation, explained

QUICK_S, SLOW_S, LONGEST_PAUSE_S = 0.5, 5.0, 300.0


class SlowSearch(NamedTuple):
    """Not before that moment again; until then what was found holds."""

    until_s: float = 0.0
    pause_s: float = 0.0
    text: str = ""


NOT_SLOW = SlowSearch()


class Searches:
    def __init__(self, clock: Clock, desks: Sequence[Desk]) -> None:
        self._clock = clock
        self._quick, self._patient = desks or (SameProcess(), SameProcess())
        self._slow: dict[str, SlowSearch] = {}
        """By uid of the pod."""

    def forget(self, uid: str) -> None:
        self._slow.pop(uid, None)

    async def search(self, uid: str, question: Question) -> Found:
        """Raises DevicesNotReady while the pod has to pause."""
        slow = self._slow.get(uid, NOT_SLOW)
        if self._clock.now_s() < slow.until_s:
            raise DevicesNotReady(CLAIM_ERROR, slow.text)
        given = msgspec.msgpack.encode(question)
        if slow is NOT_SLOW:
            with suppress(DeskFailed):
                return msgspec.msgpack.decode(await self._quick.ask(found, given, QUICK_S), type=Found)
        try:
            answer = msgspec.msgpack.decode(await self._patient.ask(found, given, SLOW_S), type=Found)
        except DeskFailed as error:
            text = f"the search for devices, with the selectors of its claims and classes, {error}"
            answer = Found(error=f"{text}; fewer devices or shorter selectors take less")
        if answer.allocations is None:
            pause_s = min(max(2 * slow.pause_s, SLOW_S), LONGEST_PAUSE_S)
            text = f"{answer.error or answer.stuck}; searched for again after {pause_s:g} s, as that takes long"
            self._slow[uid] = SlowSearch(self._clock.now_s() + pause_s, pause_s, text)
        return answer

    async def explain(self, question: Question) -> Explanation:
        """Raises Refused."""
        try:
            answer = await self._patient.ask(explained, msgspec.msgpack.encode(question), SLOW_S)
        except DeskFailed as error:
            raise Refused("precondition", f"the search for devices {error}") from error
        return msgspec.msgpack.decode(answer, type=Explanation)
