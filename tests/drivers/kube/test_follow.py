# SPDX-License-Identifier: Apache-2.0
"""Following a resource through a server that behaves: lists, changes, selectors, unreadable objects."""

from agent import __version__
from agent.drivers.kube.resource import (
    ENDPOINT_SLICES,
    SERVICES,
    Bookmark,
    Changed,
    ChangeType,
    Disconnected,
    Malformed,
    ObjectKey,
    Replaced,
)
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.following import FAST, client_of, feeding, service


def names(replaced: Replaced) -> list[str]:
    return [item.metadata.name for item in replaced.items]


async def test_first_news_are_all_objects_then_each_change(server: ApiServer) -> None:
    """IN-12: a follower starts from the whole truth and then hears of every change."""
    server.objects.put("services", service("a"))
    server.objects.put("services", service("b"))
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)
        server.objects.put("services", service("c"))
        server.objects.put("services", service("a", clusterIP="10.0.0.9"))
        server.objects.delete("services", "default", "b")
        await feed.until(Changed, count=3)

    assert names(first) == ["a", "b"]
    changes = [(news.change, news.object.metadata.name) for news in feed.of(Changed)]
    assert changes == [(ChangeType.ADDED, "c"), (ChangeType.MODIFIED, "a"), (ChangeType.DELETED, "b")]
    assert feed.of(Changed)[1].object.spec.cluster_ip == "10.0.0.9"


async def test_list_is_streamed_in_one_request_where_offered(server: ApiServer) -> None:
    server.objects.put("services", service("a"))
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert server.verbs() == ["watch services"]
    query = server.seen[0].query
    assert query["sendInitialEvents"] == "true"
    assert query["resourceVersionMatch"] == "NotOlderThan"
    assert query["allowWatchBookmarks"] == "true"
    assert 300 <= int(query["timeoutSeconds"]) <= 600
    assert "resourceVersion" not in query


async def test_list_comes_by_pages_where_streaming_is_not_offered(server: ApiServer) -> None:
    server.offers_streaming = False
    for number in range(1200):
        server.objects.put("services", service(f"s-{number:04d}"))
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)
        server.objects.put("services", service("late"))
        await feed.until(Changed)

    assert len(first.items) == 1200
    assert server.verbs() == ["watch services", *["list services"] * 3, "watch services"]
    assert [seen.query.get("limit") for seen in server.seen[1:4]] == ["500", "500", "500"]
    assert server.seen[4].query["resourceVersion"] == first.resource_version
    assert not feed.of(Disconnected)


async def test_pages_of_one_list_take_one_token_of_the_rate_limit(server: ApiServer) -> None:
    server.offers_streaming = False
    for number in range(2100):
        server.objects.load("services", service(f"s-{number:04d}"))
    async with client_of(server, qps=0.001, burst=3) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        slept = list(client._clock.slept)

    assert slept == []


async def test_selectors_and_namespace_reach_the_server(server: ApiServer) -> None:
    """IN-1."""
    chosen = SERVICES.narrowed(
        namespace="prod",
        label_selector="!service.kubernetes.io/service-proxy-name",
        field_selector="spec.clusterIP!=None",
    )
    server.objects.put("services", service("a", "prod"))
    server.objects.put("services", service("headless", "prod", clusterIP="None"))
    server.objects.put("services", service("elsewhere"))
    async with client_of(server) as client, feeding(client.follow(chosen)) as feed:
        first = await feed.until(Replaced)
        foreign = service("a", "prod")
        foreign["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "other"}
        server.objects.put("services", foreign)
        gone = await feed.until(Changed)

    assert names(first) == ["a"]
    assert gone.change is ChangeType.DELETED
    assert server.seen[0].query["fieldSelector"] == "spec.clusterIP!=None"


async def test_every_request_names_program_and_version(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert server.seen[0].headers["User-Agent"] == f"kepd/{__version__}"


async def test_bookmarks_are_signs_of_life_and_places_to_resume(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        server.objects.put("nodes", {"metadata": {"name": "n"}})
        await server.send_bookmarks()
        mark = await feed.until(Bookmark)
        server.drop_connections()
        await feed.until(Disconnected)
        await server.until(lambda server: len(server.seen) >= 2)

    assert mark.resource_version == str(server.objects.resource_version)
    assert server.seen[1].query["resourceVersion"] == mark.resource_version


async def test_unreadable_object_is_named_once_and_the_others_go_on(server: ApiServer) -> None:
    """A bad Service never stops the good ones, and is not complained about at every event."""
    bad = service("bad", ports=[{"port": 80}, {"port": "eighty"}])
    server.objects.put("services", service("good"))
    server.objects.put("services", bad)
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)
        server.objects.put("services", bad)
        server.objects.put("services", service("more"))
        await feed.until(Changed)
        server.objects.put("services", service("bad"))
        await feed.until(Changed, lambda news: news.object.metadata.name == "bad")
        server.objects.put("services", bad)
        await feed.until(Malformed, count=2)
        server.objects.delete("services", "default", "bad")
        gone = await feed.until(Malformed, lambda news: news.is_gone)

    assert names(first) == ["good"]
    assert first.unreadable == {ObjectKey("default", "bad")}
    expected = Malformed(ObjectKey("default", "bad"), "spec.ports[1].port: expected int, got str")
    assert feed.of(Malformed)[0] == expected
    assert [news.is_gone for news in feed.of(Malformed)] == [False, False, True]
    assert gone.key == expected.key


async def test_unreadable_object_in_a_page_is_named_once(server: ApiServer) -> None:
    server.offers_streaming = False
    server.objects.put("services", service("good"))
    server.objects.put("services", service("bad", ports="none"))
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)
        await server.send_error_event()
        again = await feed.until(Replaced, count=2)

    assert names(first) == names(again) == ["good"]
    assert first.unreadable == again.unreadable == {ObjectKey("default", "bad")}
    assert len(feed.of(Malformed)) == 1


async def test_converted_values_are_delivered_and_refusals_blamed_on_the_object(server: ApiServer) -> None:
    def only_short(item) -> str:
        if len(item.metadata.name) > 3:
            raise ValueError("metadata.name: longer than three letters")
        return item.metadata.name.upper()

    server.objects.put("services", service("abc"))
    server.objects.put("services", service("abcd"))
    async with client_of(server) as client, feeding(client.follow(SERVICES, only_short)) as feed:
        first = await feed.until(Replaced)
        server.objects.put("services", service("x"))
        change = await feed.until(Changed)

    assert (first.items, change.object) == (["ABC"], "X")
    assert feed.of(Malformed)[0].text == "metadata.name: longer than three letters"


async def test_slices_without_endpoints_or_ports_are_readable(server: ApiServer) -> None:
    """The API server writes null for an empty list."""
    empty = {"metadata": {"name": "e", "namespace": "d"}, "addressType": "IPv4", "endpoints": None, "ports": None}
    server.objects.put("endpointslices", empty)
    async with client_of(server) as client, feeding(client.follow(ENDPOINT_SLICES)) as feed:
        first = await feed.until(Replaced)

    assert first.items[0].endpoints is None
    assert not feed.of(Malformed)


async def test_object_of_many_megabytes_arrives(server: ApiServer) -> None:
    async with client_of(server) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        large = service("large")
        large["metadata"]["annotations"] = {"padding": "x" * (6 << 20)}
        server.objects.put("services", large)
        change = await feed.until(Changed)

    assert change.object.metadata.name == "large"


async def test_watch_that_the_server_ends_in_time_goes_on_without_a_word(server: ApiServer) -> None:
    timing = FAST.__class__(watch_s=1.0, short_watch_s=0.0)
    async with client_of(server, timing=timing) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        await server.until(lambda server: len(server.seen) >= 4)
        server.objects.put("services", service("a"))
        await feed.until(Changed)

    assert [type(news) for news in feed.news] == [Replaced, Changed]


async def test_closing_the_generator_closes_the_stream(server: ApiServer) -> None:
    async with client_of(server) as client:
        async with feeding(client.follow(SERVICES)) as feed:
            await feed.until(Replaced)
            await server.until(lambda server: server.watch_count == 1)
        await server.until(lambda server: server.watch_count == 0)


async def test_many_followers_share_one_client(server: ApiServer) -> None:
    server.objects.put("services", service("a"))
    async with (
        client_of(server) as client,
        feeding(client.follow(SERVICES)) as services,
        feeding(client.follow(ENDPOINT_SLICES)) as slices,
    ):
        first, second = await services.until(Replaced), await slices.until(Replaced)

    assert (len(first.items), len(second.items)) == (1, 0)
