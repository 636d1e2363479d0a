# SPDX-License-Identifier: Apache-2.0
"""Following a resource while things go wrong: nothing is lost, nothing is asked too often, and every outage is told."""

from contextlib import suppress

import pytest
from msgspec.structs import replace

from agent.drivers.kube import errors
from agent.drivers.kube.access import User
from agent.drivers.kube.resource import (
    SERVICE_CIDRS,
    SERVICES,
    Changed,
    Disconnected,
    Replaced,
    Resumed,
)
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates
from tests.drivers.kube.following import FAST, QuickClock, access_to, client_of, feeding, service


async def test_broken_watch_resumes_where_it_stopped(server: ApiServer) -> None:
    """No new list after a mere break: 10 000 nodes must not all list at once."""
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        server.objects.put("services", service("a"))
        await feed.until(Changed)
        version = server.objects.resource_version
        await server.until(lambda server: server.watch_count == 1)
        server.drop_connections()
        server.objects.put("services", service("b"))
        change = await feed.until(Changed, count=2)

    assert change.object.metadata.name == "b"
    assert server.seen[-1].query["resourceVersion"] == str(version)
    assert [type(news) for news in feed.news] == [Replaced, Changed, Disconnected, Resumed, Changed]


async def test_stream_cut_in_the_middle_of_a_line_loses_nothing(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.cut_mid_line()
        server.objects.put("services", service("a"))
        change = await feed.until(Changed)

    assert change.object.metadata.name == "a"
    assert len(feed.of(Replaced)) == 1


async def test_error_event_410_leads_to_a_new_list(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.send_error_event()
        await feed.until(Replaced, count=2)

    assert not feed.of(Disconnected)


async def test_version_forgotten_during_a_break_leads_to_a_new_list(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.until(lambda server: server.watch_count == 1)
        await server.refuse()
        await feed.until(Disconnected)
        server.objects.put("services", service("a"))
        server.objects.compact()
        await server.accept()
        again = await feed.until(Replaced, count=2)

    assert [item.metadata.name for item in again.items] == ["a"]


async def test_http_410_on_a_watch_leads_to_a_new_list(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        server.fail_next(410)
        await server.until(lambda server: server.watch_count == 1)
        server.drop_connections()
        await feed.until(Replaced, count=2)


async def test_expired_page_restarts_the_list_and_then_takes_it_whole(server: ApiServer) -> None:
    """A list that takes longer than the server remembers must end some day."""
    server.offers_streaming = False
    for number in range(600):
        server.objects.load("services", service(f"s-{number:03d}"))
    page_too_old = [410, 410]
    server.fail_next(422, verb="watch")

    async def expire(_request: object) -> None:
        page_too_old.pop()
        server.expire_pages()

    async def pass_by(_request: object) -> None:
        return None

    server.faults.extend([("list", pass_by), ("list", expire), ("list", pass_by), ("list", expire)])
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)

    assert len(first.items) == 600
    limits = [seen.query.get("limit") for seen in server.seen if seen.verb == "list"]
    assert limits == ["500", "500", "500", "500", None]


async def test_retry_after_of_429_is_obeyed(server: ApiServer) -> None:
    server.fail_next(429, retry_after_s=17)
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        told = feed.of(Disconnected)[0]
        slept = client._clock.slept

    assert isinstance(told.error, errors.Throttled)
    assert slept == [17.0]
    assert "429" in told.reason
    assert "next try in 17.0 s" in told.reason


async def test_failing_server_is_asked_ever_more_seldom(server: ApiServer) -> None:
    server.fail_next(500, times=9)
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        slept = client._clock.slept

    assert slept == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert len(feed.of(Disconnected)) == 9


async def test_luck_spreads_the_nodes(server: ApiServer) -> None:
    server.fail_next(503, times=2)
    async with client_of(server, luck=lambda: 0.5) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        slept = client._clock.slept

    assert slept == [0.375, 0.75]
    assert server.seen[-1].query["timeoutSeconds"] == "450"


async def test_forbidden_is_said_with_verb_and_resource_and_asked_again(server: ApiServer) -> None:
    """DS-02: the message names the missing right."""
    server.denied = {("watch", "services"), ("list", "services")}
    clock = QuickClock()
    async with client_of(server, clock=clock) as client, feeding(client.follow(SERVICES)) as feed:
        told = await feed.until(Disconnected)
        server.denied = set()
        await feed.until(Replaced)

    assert isinstance(told.error, errors.Denied)
    assert 'User "kepd" cannot watch resource "services" in API group ""' in str(told.error)
    assert clock.slept[0] == 0.5


async def test_kind_the_server_does_not_have_is_asked_again(server: ApiServer) -> None:
    server.answer_next(b'{"kind":"Status","message":"the server could not find the requested resource"}', status=404)
    clock = QuickClock()
    async with client_of(server, clock=clock) as client, feeding(client.follow(SERVICE_CIDRS)) as feed:
        told = await feed.until(Disconnected)
        await feed.until(Replaced)

    assert isinstance(told.error, errors.Missing)
    assert clock.slept == [0.5]


async def test_rotated_token_file_is_read_again_after_401(server: ApiServer, tmp_path) -> None:
    """A service account token lives an hour; its file is replaced before that."""
    token = tmp_path / "token"
    token.write_text("good-token\n")
    access = replace(access_to(server), user=User(token_file=token))
    async with client_of(server, access=access) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        server.rotate_token("next-token")
        token.write_text("next-token\n")
        await server.until(lambda server: server.watch_count == 1)
        server.drop_connections()
        await feed.until(Resumed)

    assert [seen.user for seen in server.seen] == ["kepd", "kepd"]


async def test_stale_token_is_told_and_retried(server: ApiServer) -> None:
    clock = QuickClock()
    access = access_to(server, token="stale-token-never-shown")
    async with client_of(server, access=access, clock=clock) as client, feeding(client.follow(SERVICES)) as feed:
        told = await feed.until(Disconnected, count=2)
        server.rotate_token("stale-token-never-shown")
        await feed.until(Replaced)

    assert isinstance(told.error, errors.Unauthenticated)
    assert "stale-token" not in f"{told!r} {told.reason}"


async def test_silent_stream_is_given_up_and_resumed(server: ApiServer) -> None:
    """A half-open connection: no data, no bookmark, no end for longer than the server promised."""
    timing = replace(FAST, watch_s=1.0, watch_slack_s=-0.85)
    async with client_of(server, timing=timing) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        server.is_frozen = True
        told = await feed.until(Disconnected)
        server.is_frozen = False
        server.objects.put("services", service("a"))
        await feed.until(Changed)

    assert isinstance(told.error, errors.StreamSilent)
    assert len(feed.of(Replaced)) == 1


async def test_request_without_answer_is_given_up(server: ApiServer) -> None:
    timing = replace(FAST, connect_s=0.1, answer_s=0.1)
    server.hang_next()
    async with client_of(server, timing=timing) as client, feeding(client.follow(SERVICES)) as feed:
        told = await feed.until(Disconnected)
        await feed.until(Replaced)

    assert isinstance(told.error, errors.Unanswered)


async def test_slow_answer_is_waited_for(server: ApiServer) -> None:
    server.delay_next(0.2)
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert not feed.of(Disconnected)


async def test_server_restored_from_an_older_backup_is_listed_anew(server: ApiServer) -> None:
    """A watch from a version the server has never seen hangs for ever (recording watch-future-rv)."""
    timing = replace(FAST, connect_s=0.1, answer_s=1000.0, watch_answer_s=0.1)
    async with client_of(server, timing=timing) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.until(lambda server: server.watch_count == 1)
        server.objects.resource_version = 500
        server.drop_connections()
        again = await feed.until(Replaced, count=2)

    assert again.resource_version == "500"
    assert [type(news.error).__name__ for news in feed.of(Disconnected)] == ["Unreachable", "Unanswered"]


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b'{"type":"RENAMED","object":{"metadata":{"name":"a"}}}\n', b'{"type":"ADDED","object":[]}\n'],
)
async def test_line_that_is_no_event_leads_to_a_new_list(server: ApiServer, line: bytes) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.send_raw(line)
        await feed.until(Replaced, count=2)

    assert isinstance(feed.of(Disconnected)[0].error, errors.AnswerUnreadable)


async def test_endless_line_leads_to_a_new_list_not_to_memory_exhaustion(server: ApiServer) -> None:
    # However long 64 MiB take, the watch is not over before: then it would go on from where it was.
    server.second_s = 3600.0
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        with suppress(ConnectionError):
            for _ in range(20):
                await server.send_raw(b"x" * (4 << 20))
        await feed.until(Replaced, count=2)

    assert isinstance(feed.of(Disconnected)[0].error, errors.AnswerTooBig)
    assert "64 MiB" in feed.of(Disconnected)[0].reason


async def test_body_that_is_no_list_is_told(server: ApiServer) -> None:
    server.offers_streaming = False
    server.answer_next(b"<html>gateway</html>", verb="list")
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert isinstance(feed.of(Disconnected)[0].error, errors.AnswerUnreadable)


async def test_outage_of_ten_minutes_keeps_what_is_known_and_loses_no_change(server: ApiServer) -> None:
    """Rules stay as they were; afterwards the missed changes arrive without a new list."""
    server.objects.put("services", service("a"))
    clock = QuickClock()
    async with client_of(server, clock=clock) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.until(lambda server: server.watch_count == 1)
        await server.refuse()
        began_s = clock.now_s()
        await feed.until(Disconnected, lambda _news: clock.now_s() - began_s > 600)
        tries = len(feed.of(Disconnected))
        server.objects.put("services", service("b"))
        await server.accept()
        await feed.until(Changed)

    assert len(feed.of(Replaced)) == 1
    assert [type(news) for news in feed.news[-2:]] == [Resumed, Changed]
    assert tries < 60


async def test_next_server_is_asked_at_once_when_one_is_gone(certificates: Certificates) -> None:
    """DS-04."""
    clock = QuickClock()
    async with (
        serving(certificates) as first,
        serving(certificates, first.objects) as second,
        client_of(first, second, clock=clock) as client,
        feeding(client.follow(SERVICES)) as feed,
    ):
        await feed.until(Replaced)
        await first.until(lambda server: server.watch_count == 1)
        await first.refuse()
        await feed.until(Resumed)
        second.objects.put("services", service("a"))
        await feed.until(Changed)

    assert second.verbs() == ["watch services"]
    assert clock.slept == []
    assert len(feed.of(Replaced)) == 1


async def test_all_servers_are_tried_before_anybody_waits(certificates: Certificates) -> None:
    clock = QuickClock()
    async with serving(certificates) as first, serving(certificates) as second, serving(certificates) as third:
        await first.refuse()
        await second.refuse()
        servers = (first, second, third)
        async with client_of(*servers, clock=clock) as client, feeding(client.follow(SERVICES)) as feed:
            await feed.until(Replaced)

    assert len(feed.of(Disconnected)) == 2
    assert clock.slept == []


async def test_redirect_is_not_followed(server: ApiServer) -> None:
    """A token must not travel to wherever an answer points."""
    server.answer_next(b"", status=307)
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        told = await feed.until(Disconnected)

    assert isinstance(told.error, errors.ServerFailed)
    assert "307" in told.reason


async def test_repeated_expiry_is_not_a_loop_without_pause(server: ApiServer) -> None:
    """A list costs the server far more than a watch."""
    clock = QuickClock()
    async with client_of(server, clock=clock) as client, feeding(client.follow(SERVICES)) as feed:
        for count in range(1, 5):
            await feed.until(Replaced, count=count)
            await server.send_error_event()
        await feed.until(Replaced, count=5)

    assert clock.slept == [0.5, 1.0, 2.0]
