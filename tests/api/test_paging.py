# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.api.errors import ApiError
from agent.api.paging import page
from agent.wire.kepd.v1 import list_pb2, node_pb2

PLANES = [node_pb2.Plane(name=name, restarts=len(name), state=node_pb2.PLANE_STATE_READY) for name in ("b", "aa", "c")]


def ask(**options: object) -> tuple[list[str], str]:
    found, meta = page(PLANES, list_pb2.ListOptions(**options), lambda plane: plane.name, node_pb2.Plane)  # type: ignore[arg-type]
    return [plane.name for plane in found], meta.next_page_token


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    """API-02."""
    first, token = ask(page_size=2)
    second, end = ask(page_size=2, page_token=token)

    assert (first, second, end) == (["aa", "b"], ["c"], "")
    assert ask()[0] == ["aa", "b", "c"]


def test_filters_compare_text_numbers_and_enums() -> None:
    assert ask(filter="name=b")[0] == ["b"]
    assert ask(filter="restarts=2")[0] == ["aa"]
    assert ask(filter="state=PLANE_STATE_READY,restarts=1")[0] == ["b", "c"]
    assert ask(filter="state=PLANE_STATE_OFF")[0] == []


@pytest.mark.parametrize(
    "options", [{"filter": "nme=b"}, {"filter": "name"}, {"filter": "since=1"}, {"page_token": "%"}]
)
def test_wrong_options_are_told(options: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        ask(**options)

    assert refused.value.code == 3
