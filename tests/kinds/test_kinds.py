# SPDX-License-Identifier: Apache-2.0
"""The registry of kinds: each is shown by its module, and a new one is a line and a module."""

import json
from typing import Any

import pytest

from agent.api.errors import ApiError
from agent.api.service import level_of
from agent.kinds.kind import Kind
from agent.kinds.registry import BY_WORD, KINDS
from agent.kinds.shown import described_by, shown_of
from agent.kinds.table import Object, without_facts
from agent.model.refused import Refused
from agent.wire.kepd.v1 import access_pb2, list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb
from tests.kinds.offers import DESCRIPTORS, offering


def named(name: str, namespace: str = "", **status: Any) -> Object:
    metadata = {"name": name, "labels": {"app": namespace}} | ({"namespace": namespace} if namespace else {})
    return {"metadata": metadata, "status": status}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_each_kind_is_shown_by_its_module(kind: Kind) -> None:
    shown = shown_of(kind)
    titles = [column.title for column in shown.columns_of(kind, is_wide=True)]

    assert len(titles) == len(set(titles)) > 1
    assert shown.kind or kind.api
    for service in shown.services:
        assert service in DESCRIPTORS


def test_no_word_means_two_kinds() -> None:
    words = [word for kind in KINDS for word in kind.words]

    assert len(words) == len(set(words)) == len(BY_WORD)


async def test_what_another_plane_would_add_is_left_out_where_it_is_off() -> None:
    hold = named(
        "h1", reason="", heldSeconds=1.0, method="", pod="", container="", waitsFor=[], why=""
    )  # fmt: skip
    both = ("kepd.v1.CriProxyService", "kepd.v1.ImageService")
    request = pb.TableRequest(kind="holds")
    found = await offering(holds=[hold], off=both[:1]).table(request)

    assert [row.name for row in found.rows] == ["h1"]
    assert list(found.notes) == ["kepctl release hold ID lets one go on"]
    with pytest.raises(ApiError, match="CriProxyService"):
        await offering(holds=[hold], off=both).table(request)


async def test_a_list_comes_in_pages_and_by_its_scope() -> None:
    service = offering(pods=[named("web", one) for one in ("a", "b", "c")], containers=[])
    options = list_pb2.ListOptions(page_size=1)
    one = await service.table(pb.TableRequest(kind="po", namespace="b"))
    first = await service.table(pb.TableRequest(kind="pod", selector="app in (a,c)", options=options))
    options.page_token = first.meta.next_page_token
    second = await service.table(pb.TableRequest(kind="pod", selector="app in (a,c)", options=options))

    assert [(row.namespace, row.shown) for row in one.rows] == [("b", "pod/b/web")]
    assert one.empty == "no pods in namespace b"
    assert [row.namespace for row in (*first.rows, *second.rows)] == ["a", "c"]
    assert (bool(first.columns), bool(second.columns), second.meta.next_page_token) == (True, False, "")
    with pytest.raises(Refused, match='no kind "teapots"; kinds are holds, proxy'):
        await service.table(pb.TableRequest(kind="teapots"))
    with pytest.raises(Refused, match="containers have no labels"):
        await service.table(pb.TableRequest(kind="containers", selector="a=b"))


async def test_objects_are_listed_and_got_with_what_only_kepd_knows_and_tables_have_them_without() -> None:
    pods = [named("web-n1", "a") | {"kepd": {"manifestName": "web", "status": one}} for one in ("Running",)]
    service = offering(pods=[*pods, named("db", "b")])
    listed = await service.objects(pb.ListRequest(kind="pods", namespace="a"))
    filtered = await service.objects(pb.ListRequest(kind="pods", options=list_pb2.ListOptions(filter="status=Ended")))
    got = await service.get(pb.GetRequest(kind="pod", namespace="a", name="web"))
    table = await service.table(pb.TableRequest(kind="pods", namespace="a", with_objects=True))

    assert [json.loads(made) for made in listed.objects] == pods
    assert list(filtered.objects) == []
    assert json.loads(got.object) == pods[0]
    assert "kepd" not in json.loads(table.rows[0].object)
    with pytest.raises(Refused, match='no pod "web"'):
        await service.get(pb.GetRequest(kind="pod", name="web"))


async def test_endpoints_of_several_pages_are_one_object() -> None:
    endpoints = [
        named(
            "web", "a", service="web", family="IPv4", endpoint=f"{address}:80", port="http",
            protocol="TCP", state="ready", node="", zones=[], nodes=[], isUsed=True, isUsedLocally=False, reason="",
        )
        for address in ("10.0.0.1", "10.0.0.2")
    ]  # fmt: skip
    for one in endpoints:
        one["status"]["namespace"] = "a"
    service = offering(endpoints=endpoints)
    found = await service.table(pb.TableRequest(kind="endpoints", with_objects=True))
    made = json.loads(found.rows[0].object)
    (listed,) = (await service.objects(pb.ListRequest(kind="endpoints"))).objects

    assert [(len(row.object) > 0, row.rows_back) for row in found.rows] == [(True, 0), (False, 1)]
    assert [one["addresses"] for one in made["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert without_facts(json.loads(listed)) == made
    assert [one["endpoint"] for one in json.loads(listed)["kepd"]["endpoints"]] == ["10.0.0.1:80", "10.0.0.2:80"]


async def test_what_has_no_changes_to_follow_says_so() -> None:
    with pytest.raises(ApiError, match="changes of planes cannot be followed") as raised:
        await anext(offering(planes=[]).watch_table(pb.WatchTableRequest(kind="planes")))

    assert raised.value.reason == "NOT_WATCHED"


async def test_the_kinds_there_are_can_be_asked_for() -> None:
    known = {one.plural: one for one in (await offering().list_kinds(pb.ListKindsRequest())).kinds}

    assert list(known) == [kind.plural for kind in KINDS]
    assert (known["pods"].api, known["pods"].is_watched, known["pods"].is_described) == ("Pod", True, True)
    assert (known["planes"].is_watched, known["planes"].is_described) == (False, False)


def test_whoever_may_read_objects_may_ask_for_all_that_describes_them() -> None:
    for service, method in (("PodService", "ExplainPod"), ("ServiceProxyService", "ExplainRoute"),
                            ("PolicyService", "ExplainPolicy")):  # fmt: skip
        descriptor = DESCRIPTORS[f"kepd.v1.{service}"]

        assert level_of(descriptor.methods_by_name[method]) == access_pb2.LEVEL_READ
    assert described_by(BY_WORD["pods"]) is not None


async def test_pages_go_on_from_one_service_to_the_next() -> None:
    fields: dict[str, Any] = {"reason": "", "heldSeconds": 1.0, "method": "", "pod": "", "container": "", "why": ""}
    service = offering(holds=[named(name, waitsFor=[], **fields) for name in ("a", "b")])
    options, seen = list_pb2.ListOptions(page_size=1), []
    while True:
        answer = await service.table(pb.TableRequest(kind="holds", options=options))
        seen += [row.name for row in answer.rows]
        options.page_token = answer.meta.next_page_token
        if not options.page_token:
            break

    assert seen == ["a", "b", "a", "b"]
