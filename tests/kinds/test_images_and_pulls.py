# SPDX-License-Identifier: Apache-2.0
"""Lists of images and pulls as people read them: every name of an image, and of pulls what is under way."""

from typing import Any

import pytest

from agent.images.attach.image_service import _order, _pull_object
from agent.kinds.own_shape import own_object
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import picked
from agent.kinds.table import Object
from agent.model.feed import ChangeKind, FeedChange
from agent.model.images.pull import PullClass
from agent.model.images.state import ImageState, PullStage, PullState
from agent.wire.kepd.v1 import object_pb2 as pb
from tests.kinds.offers import offering

NAMES = ("docker.io/library/web:latest", "r.test:5000/shop/web:2", f"r.test:5000/shop/web@sha256:{'a' * 64}")
LONG = "no such host " * 20


def pull(stage: str) -> PullState:
    return PullState(
        id=stage, image="web", reference="web", registry="r.test", handler="", pull_class=PullClass.POD,
        stage=PullStage(stage), error=LONG if stage == "failed" else "",
    )  # fmt: skip


async def images() -> Any:
    state = ImageState(id="sha256:" + "b" * 64, names=NAMES, size_bytes=1)
    image = own_object("Image", state.id, state)
    return (await offering(images=[image]).table(pb.TableRequest(kind="images"))).rows


async def pulls(**asked: Any) -> pb.TableResponse:
    states = sorted(map(pull, ("failed", "queued", "downloading", "done")), key=_order)
    return await offering(pulls=list(map(_pull_object, states))).table(pb.TableRequest(kind="pulls", **asked))


async def test_an_image_has_all_its_names() -> None:
    (row,) = await images()

    assert row.cells[0] == f"{NAMES[0]}, {NAMES[1]}"


@pytest.mark.parametrize("name", ["web", "web:latest", *NAMES, "r.test:5000/shop/web:2"])
async def test_an_image_is_found_by_each_name_it_was_pulled_by(name: str) -> None:
    rows = list(await images())

    assert picked(rows, BY_WORD["images"], [name], "") == rows


def test_of_pulls_what_runs_comes_first_and_what_has_ended_last() -> None:
    states = sorted(map(pull, ("failed", "queued", "downloading", "done")), key=_order)

    assert [state.id for state in states] == ["downloading", "queued", "done", "failed"]


async def test_what_has_ended_is_left_out_and_counted() -> None:
    answer = await pulls()

    assert {row.name for row in answer.rows} == {"downloading", "queued"}
    assert answer.notes[-1] == "2 ended are left out; --all shows them"


async def test_a_long_reason_is_cut_in_the_table_and_whole_in_the_wide_one() -> None:
    short = next(row for row in (await pulls(with_ended=True)).rows if row.name == "failed")
    wide = next(row for row in (await pulls(with_ended=True, is_wide=True)).rows if row.name == "failed")

    assert (len(short.cells[2]), short.cells[2][-1]) == (60, "…")
    assert wide.cells[-1] == f"failed: {LONG}"


@pytest.mark.parametrize(("with_ended", "shown"), [(False, ["queued", "failed"]), (True, ["done", "queued", "failed"])])
async def test_a_watch_begins_without_what_is_over(with_ended: bool, shown: list[str]) -> None:
    def change(kind: ChangeKind, stage: str) -> FeedChange[Object]:
        return FeedChange(kind, _pull_object(pull(stage)) if stage else None, 1)

    told = [change(ChangeKind.ADDED, "done"), change(ChangeKind.ADDED, "queued"), change(ChangeKind.BOOKMARK, "")]
    service = offering({"pulls": [*told, change(ChangeKind.MODIFIED, "failed")]})
    request = pb.WatchTableRequest(kind="pulls", with_ended=with_ended)

    assert [row.name async for answer in service.watch_table(request) for row in answer.rows] == shown
