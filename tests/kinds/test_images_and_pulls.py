# SPDX-License-Identifier: Apache-2.0
"""Lists of images and pulls as people read them: every name of an image, and of pulls what is under way."""

from collections.abc import AsyncIterator

import pytest

from agent.api.services.kinds import KindService
from agent.kinds.images.images import SHOWN as IMAGES
from agent.kinds.images.pulls import SHOWN as PULLS
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import picked, without_ended
from agent.kinds.shown import AnyListing
from agent.kinds.table import rows_of
from agent.wire.kepd.v1 import image_pb2 as pb
from agent.wire.kepd.v1 import kind_pb2
from agent.wire.kepd.v1.list_pb2 import CHANGE_TYPE_ADDED as ADDED
from agent.wire.kepd.v1.list_pb2 import CHANGE_TYPE_BOOKMARK as BOOKMARK
from agent.wire.kepd.v1.list_pb2 import CHANGE_TYPE_MODIFIED as MODIFIED

NAMES = ("docker.io/library/web:latest", "r.test:5000/shop/web:2", f"r.test:5000/shop/web@sha256:{'a' * 64}")
LONG = "no such host " * 20


def images() -> AnyListing:
    answer = pb.ListImagesResponse(images=[pb.Image(id="sha256:" + "b" * 64, names=NAMES)])
    return IMAGES.listing(BY_WORD["images"], [answer])


def pulls() -> AnyListing:
    stages = ("failed", "queued", "downloading", "done")
    found = [pb.Pull(id=stage, stage=stage, error=LONG if stage == "failed" else "") for stage in stages]
    return PULLS.listing(BY_WORD["pulls"], [pb.ListPullsResponse(pulls=found)])


def test_an_image_has_all_its_names() -> None:
    (row,) = rows_of(images())

    assert row.cells[0] == f"{NAMES[0]}, {NAMES[1]}"


@pytest.mark.parametrize("name", ["web", "web:latest", *NAMES, "r.test:5000/shop/web:2"])
def test_an_image_is_found_by_each_name_it_was_pulled_by(name: str) -> None:
    rows = rows_of(images())

    assert picked(rows, BY_WORD["images"], [name], "") == rows


def test_of_pulls_what_runs_comes_first_and_what_has_ended_last() -> None:
    assert [row.name for row in rows_of(pulls())] == ["downloading", "queued", "failed", "done"]


def test_what_has_ended_is_left_out_and_counted() -> None:
    listing = without_ended(pulls())

    assert [row.name for row in rows_of(listing)] == ["downloading", "queued"]
    assert listing.notes[-1] == "2 ended are left out; --all shows them"


def test_a_long_reason_is_cut_in_the_table_and_whole_in_the_wide_one() -> None:
    short = next(row for row in rows_of(pulls()) if row.name == "failed")
    wide = next(row for row in rows_of(pulls(), is_wide=True) if row.name == "failed")

    assert (len(short.cells[2]), short.cells[2][-1]) == (60, "…")
    assert wide.cells[-1] == f"failed: {LONG}"


class Watched:
    async def list_pulls(self, _request: pb.ListPullsRequest) -> pb.ListPullsResponse:
        return pb.ListPullsResponse()

    async def watch_image_pulls(self, _request: object) -> AsyncIterator[pb.WatchImagePullsResponse]:
        for stage, change in (("done", ADDED), ("queued", ADDED), ("", BOOKMARK), ("failed", MODIFIED)):
            yield pb.WatchImagePullsResponse(type=change, pull=pb.Pull(id=stage, stage=stage) if stage else None)


@pytest.mark.parametrize(("with_ended", "shown"), [(False, ["queued", "failed"]), (True, ["done", "queued", "failed"])])
async def test_a_watch_begins_without_what_is_over(with_ended: bool, shown: list[str]) -> None:
    service = KindService({pb.DESCRIPTOR.services_by_name["ImageService"]: Watched()})
    request = kind_pb2.WatchRowsRequest(kind="pulls", with_ended=with_ended)

    assert [row.name async for answer in service.watch_rows(request) for row in answer.rows] == shown
