# SPDX-License-Identifier: Apache-2.0
"""The registry of kinds: each is shown by its module, and a new one is a line and a module."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool

import agent.kinds.node
from agent.api.errors import ApiError
from agent.api.service import level_of
from agent.api.services.kinds import KindService
from agent.kinds.registry import BY_WORD, FOLDERS, KINDS, Kind
from agent.kinds.shown import How, shown_of
from agent.model.refused import Refused
from agent.wire.kepd.v1 import (
    access_pb2,
    cri_proxy_pb2,
    image_pb2,
    list_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
)
from agent.wire.kepd.v1 import kind_pb2 as pb

TEAPOT = """
from agent.kinds.shown import shown_by
from agent.kinds.table import Column, Listing
from agent.wire.kepd.v1 import node_pb2 as pb

COLUMNS = (Column("POT", lambda one: one.name), Column("FOR", lambda one: one.message, wide=True))
SHOWN = shown_by(
    "kepd.v1.NodeService/ListPlanes", pb.ListPlanesRequest(), pb.ListPlanesResponse,
    lambda answer: Listing("Teapot", answer.planes, COLUMNS, lambda one: f"teapot/{one.name}", "no teapots"),
)
"""


class Served:
    """A service of the API with the answers that a test gives; a method that has none is of a plane that is off."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def method(_request: object) -> Any:
            self.asked.append(name)
            found = self.answers.get(name, Refused("precondition", f"{name}: its plane is off"))
            if isinstance(found, Exception):
                raise found
            return found

        return method


def kind_service(served: Served) -> KindService:
    files = (node_pb2, pod_pb2, image_pb2, service_proxy_pb2, cri_proxy_pb2, object_pb2)
    return KindService({one: served for file in files for one in file.DESCRIPTOR.services_by_name.values()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_each_kind_is_shown_by_its_module(kind: Kind) -> None:
    shown = shown_of(kind)
    asks = shown.asks(kind, How(with_objects=True, is_wide=True))
    listing = shown.listing(kind, [ask.answer() for ask in asks])
    titles = [column.title for column in listing.columns]

    assert not list(listing.items) or kind.plural == "nodes"
    assert len(titles) == len(set(titles)) > 1
    assert listing.empty or kind.plural in ("nodes", "planes")
    if shown.watch is not None:
        watch = shown.watch(How())
        assert watch.item in watch.ask.answer.DESCRIPTOR.fields_by_name
        assert watch.items in watch.listed.DESCRIPTOR.fields_by_name


def test_no_word_means_two_kinds() -> None:
    words = [word for kind in KINDS for word in kind.words]

    assert len(words) == len(set(words)) == len(BY_WORD)


async def test_a_new_kind_is_a_line_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teapots.py").write_text(TEAPOT)
    monkeypatch.setattr(agent.kinds.node, "__path__", [*agent.kinds.node.__path__, str(tmp_path)])
    planes = node_pb2.ListPlanesResponse(planes=[node_pb2.Plane(name="brown", message="tea")])
    kind = Kind("teapots", "teapot")
    monkeypatch.setitem(FOLDERS, kind, "node")
    monkeypatch.setitem(BY_WORD, "teapots", kind)
    found = await kind_service(Served(list_planes=planes)).list_rows(pb.ListRowsRequest(kind="teapots", is_wide=True))
    del sys.modules["agent.kinds.node.teapots"]

    assert [column.title for column in found.columns] == ["POT", "FOR"]
    assert [(list(row.cells), row.shown) for row in found.rows] == [(["brown", "tea"], "teapot/brown")]


async def test_what_another_plane_would_add_is_left_out_where_it_is_off() -> None:
    held = cri_proxy_pb2.ListHoldsResponse(holds=[cri_proxy_pb2.Hold(id="h1")])
    served = Served(list_pull_holds=held)
    request = pb.ListRowsRequest(kind="holds")
    found = await kind_service(served).list_rows(request)

    assert served.asked == ["list_holds", "list_pull_holds"]
    assert [row.name for row in found.rows] == ["h1"]
    with pytest.raises(Refused, match="list_holds: its plane is off"):
        await kind_service(Served()).list_rows(request)


async def test_a_list_comes_in_pages_and_by_its_scope() -> None:
    pods = [pod_pb2.Pod(namespace=one, name="web", labels={"app": one}) for one in ("a", "b")]
    meta = list_pb2.ListMeta(next_page_token="next")
    service = kind_service(Served(list_pods=pod_pb2.ListPodsResponse(pods=pods, meta=meta)))
    first = await service.list_rows(pb.ListRowsRequest(kind="po", namespace="b"))
    chosen = await service.list_rows(
        pb.ListRowsRequest(kind="pod", selector="app in (a)", options=list_pb2.ListOptions(page_token="next"))
    )

    assert [(row.namespace, row.shown) for row in first.rows] == [("b", "pod/b/web")]
    assert (first.meta.next_page_token, first.empty) == ("next", "no pods in namespace b")
    assert [row.namespace for row in chosen.rows] == ["a"]
    assert not chosen.columns
    with pytest.raises(Refused, match='no kind "teapots"; kinds are nodes, planes'):
        await service.list_rows(pb.ListRowsRequest(kind="teapots"))
    with pytest.raises(Refused, match="containers have no labels"):
        await service.list_rows(pb.ListRowsRequest(kind="containers", selector="a=b"))


async def test_endpoints_of_several_pages_are_one_object() -> None:
    def page(address: str, token: str) -> service_proxy_pb2.ListEndpointsResponse:
        one = service_proxy_pb2.Endpoint(
            namespace="a", service="web", family="IPv4", endpoint=f"{address}:80", port="http", protocol="TCP"
        )
        return service_proxy_pb2.ListEndpointsResponse(endpoints=[one], meta=list_pb2.ListMeta(next_page_token=token))

    class Pages:
        async def list_endpoints(self, request: service_proxy_pb2.ListEndpointsRequest) -> Any:
            return page("10.0.0.2", "") if request.options.page_token else page("10.0.0.1", "second")

    service = kind_service(Pages())  # type: ignore[arg-type]
    found = await service.list_rows(pb.ListRowsRequest(kind="endpoints", with_objects=True))
    made = json.loads(found.rows[0].object)

    assert [(len(row.object) > 0, row.rows_back) for row in found.rows] == [(True, 0), (False, 1)]
    assert [one["addresses"] for one in made["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert found.meta.next_page_token == ""


async def test_what_has_no_changes_to_follow_says_so() -> None:
    with pytest.raises(ApiError, match="changes of planes cannot be followed") as raised:
        await anext(kind_service(Served()).watch_rows(pb.WatchRowsRequest(kind="planes")))

    assert raised.value.reason == "NOT_WATCHED"


async def test_the_kinds_there_are_can_be_asked_for() -> None:
    known = {one.plural: one for one in (await kind_service(Served()).list_kinds(pb.ListKindsRequest())).kinds}

    assert list(known) == [kind.plural for kind in KINDS]
    assert (known["pods"].api, known["pods"].is_watched, known["pods"].is_described) == ("Pod", True, True)
    assert (known["planes"].is_watched, known["planes"].is_described) == (False, False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_whoever_may_read_rows_may_read_all_that_they_are_made_of(kind: Kind) -> None:
    shown = shown_of(kind)
    asks = [*shown.asks(kind, How(with_objects=True)), *([shown.watch(How()).ask] if shown.watch else [])]
    for ask in asks:
        service, _, method = ask.method.partition("/")
        descriptor = descriptor_pool.Default().FindServiceByName(service)

        assert level_of(descriptor.methods_by_name[method]) == access_pb2.LEVEL_READ
