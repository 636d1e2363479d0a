# SPDX-License-Identifier: Apache-2.0
"""The registry of kinds: each is shown by its module, and a new one is a line and a module."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent.kinds.node
from agent.cli.objects.listed import listed
from agent.cli.session import CommandFailed
from agent.kinds.registry import BY_WORD, FOLDERS, KINDS, Kind
from agent.kinds.shown import How, shown_of
from agent.model.exit_codes import CONFLICT, NOT_FOUND
from agent.wire.kepd.v1 import cri_proxy_pb2, node_pb2

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


class Daemon:
    """Answers of methods; what has none is off."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def call(self, method: str, _request: object, answer: type[Any]) -> Any:
        name = method.rpartition("/")[2]
        self.asked.append(name)
        found = self.answers.get(name, CommandFailed(f"{name}: its plane is off", CONFLICT))
        if isinstance(found, CommandFailed):
            raise found
        assert isinstance(found, answer)
        return found


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


def test_a_new_kind_is_a_line_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teapots.py").write_text(TEAPOT)
    monkeypatch.setattr(agent.kinds.node, "__path__", [*agent.kinds.node.__path__, str(tmp_path)])
    planes = node_pb2.ListPlanesResponse(planes=[node_pb2.Plane(name="brown", message="tea")])
    kind = Kind("teapots", "teapot")
    monkeypatch.setitem(FOLDERS, kind, "node")
    found = listed(Daemon(ListPlanes=planes), kind)  # type: ignore[arg-type]
    del sys.modules["agent.kinds.node.teapots"]

    assert [[column.cell(one) for column in found.columns] for one in found.items] == [["brown", "tea"]]
    assert found.name(found.items[0]) == "teapot/brown"


def test_what_another_plane_would_add_is_left_out_where_it_is_off() -> None:
    held = cri_proxy_pb2.ListHoldsResponse(holds=[cri_proxy_pb2.Hold(id="h1")])
    daemon = Daemon(ListPullHolds=held)
    found = listed(daemon, BY_WORD["holds"])  # type: ignore[arg-type]

    assert daemon.asked == ["ListHolds", "ListPullHolds"]
    assert [one.id for one in found.items] == ["h1"]
    with pytest.raises(CommandFailed, match="ListHolds: its plane is off"):
        listed(Daemon(), BY_WORD["holds"])  # type: ignore[arg-type]
    with pytest.raises(CommandFailed, match="gone"):
        listed(Daemon(ListHolds=CommandFailed("gone", NOT_FOUND)), BY_WORD["holds"])  # type: ignore[arg-type]


def test_pods_are_shown_without_what_takes_long_to_import() -> None:
    """`kepctl get pods` and completion wait for it."""
    heavy = ("google.protobuf", "grpc", "click", "json")
    program = f"import sys; import agent.kinds.pods.pods; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
