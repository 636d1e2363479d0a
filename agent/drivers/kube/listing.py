# SPDX-License-Identifier: Apache-2.0
"""All objects of a resource at one moment, by pages, for who asks once and does not follow.

A list that expired on the way begins anew, a server that is busy is asked again when it says so, and everything has a
bound: pages, bytes of one, the time of a request. Objects come as plain values, so `convert` sheds what is not wanted
while no more than one page is there whole.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from agent.drivers.kube.connection import KubeConnection, KubeRequest, KubeTiming
from agent.drivers.kube.decoding import UNREADABLE, ListAnswer, reason_of
from agent.drivers.kube.errors import AnswerTooBig, AnswerUnreadable, ApiRefused, Expired, Unanswered
from agent.drivers.kube.resource import Resource
from agent.model.clock import Clock

Plain = dict[str, Any]
T = TypeVar("T")

PAGE_SIZE = 250
MOST_PAGES = 400
MOST_STARTS = 3
MOST_TRIES = 4
LONGEST_WAIT_S = 10.0
PAGES = msgspec.json.Decoder(ListAnswer[Plain])


async def list_objects(
    connection: KubeConnection,
    resource: Resource[Plain],
    convert: Callable[[Plain], T],
    clock: Clock,
    timing: KubeTiming,
) -> list[T]:
    """Raises those of errors.py. What came of a list that expired is given up."""
    for _ in range(MOST_STARTS - 1):
        try:
            return await _from_its_start(connection, resource, convert, clock, timing)
        except Expired:
            continue
    return await _from_its_start(connection, resource, convert, clock, timing)


async def _from_its_start(
    connection: KubeConnection,
    resource: Resource[Plain],
    convert: Callable[[Plain], T],
    clock: Clock,
    timing: KubeTiming,
) -> list[T]:
    found: list[T] = []
    told, token = f"list {resource}", ""
    seen = {token}
    for _ in range(MOST_PAGES):
        page = await _page(connection, _ask(resource, token), clock, timing)
        found += map(convert, page.items or ())
        token = page.metadata.continue_
        if not token:
            return found
        if token in seen:
            raise AnswerUnreadable(f"{told}: a page names itself or one before as the next; expected a new page")
        seen.add(token)
    raise AnswerTooBig(f"{told}: more than {MOST_PAGES} pages of {PAGE_SIZE}")


def _ask(resource: Resource[Plain], token: str) -> KubeRequest:
    # A list takes one token of the rate limit, however many pages it has.
    return KubeRequest(
        verb="list",
        what=str(resource),
        path=resource.path,
        query=resource.query({"limit": str(PAGE_SIZE), "continue": token}),
        is_rated=not token,
    )


async def _page(connection: KubeConnection, ask: KubeRequest, clock: Clock, timing: KubeTiming) -> ListAnswer[Plain]:
    for _ in range(MOST_TRIES - 1):
        try:
            return await _once(connection, ask, timing)
        except ApiRefused as error:
            # Only who is told when to come back does.
            if error.retry_after_s is None:
                raise
            await clock.sleep(min(error.retry_after_s, LONGEST_WAIT_S))
    return await _once(connection, ask, timing)


async def _once(connection: KubeConnection, ask: KubeRequest, timing: KubeTiming) -> ListAnswer[Plain]:
    try:
        async with asyncio.timeout(timing.page_s), connection.opened(ask) as opened:
            body = await opened.body(timing.body_silence_s)
    except TimeoutError:
        raise Unanswered(f"list {ask.what}: a page took more than {timing.page_s:.0f} s") from None
    try:
        return PAGES.decode(body)
    except UNREADABLE as error:
        raise AnswerUnreadable(f"list {ask.what}: the answer is not a list: {reason_of(error)}") from error
