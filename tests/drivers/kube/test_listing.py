# SPDX-License-Identifier: Apache-2.0
"""A list that is asked for once: each of its bounds, with the test's own clock."""

import asyncio

import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.drivers.kube import errors, listing
from agent.drivers.kube.resource import Resource
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.following import FAST, QuickClock, client_of, service

SERVICES = Resource("", "v1", "services", dict)


def name_of(one: dict) -> str:
    return one["metadata"]["name"]


async def test_pages_come_in_order_and_their_number_is_bounded(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE_SIZE", 2)
    for place in range(5):
        server.objects.put("services", service(f"s{place}"))
    async with client_of(server) as client:
        assert await client.all_of(SERVICES, name_of) == [f"s{place}" for place in range(5)]
        monkeypatch.setattr(listing, "MOST_PAGES", 2)
        with pytest.raises(errors.AnswerTooBig, match="list services: more than 2 pages of 2"):
            await client.all_of(SERVICES, name_of)


async def test_a_list_that_always_expires_is_given_up(server: ApiServer) -> None:
    server.fail_next(410, times=9)
    async with client_of(server) as client:
        with pytest.raises(errors.Expired):
            await client.all_of(SERVICES, name_of)

    assert len(server.seen) == listing.MOST_STARTS


async def test_a_server_that_stays_busy_is_given_up_and_never_waited_for_long(server: ApiServer) -> None:
    clock = QuickClock()
    server.fail_next(429, times=9, retry_after_s=200)
    async with client_of(server, clock=clock) as client:
        with pytest.raises(errors.Throttled):
            await client.all_of(SERVICES, name_of)

    assert clock.slept == [listing.LONGEST_WAIT_S] * (listing.MOST_TRIES - 1)


async def test_a_page_has_a_deadline_though_bytes_go_on_arriving(server: ApiServer) -> None:
    async def drip(request) -> None:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    server.faults.append(("list", drip))
    async with client_of(server, timing=replace(FAST, page_s=0.2)) as client:
        with pytest.raises(errors.Unanswered, match="list services: a page took more than"):
            await client.all_of(SERVICES, name_of)
