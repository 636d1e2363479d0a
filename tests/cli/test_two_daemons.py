# SPDX-License-Identifier: Apache-2.0
"""A node with two processes: kepctl finds the one that runs what is asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.client import connected
from agent.cli.commands.node.node import diagnosed
from agent.cli.objects.listed import listed
from agent.cli.session import CommandFailed, Session
from agent.kinds.registry import BY_WORD
from tests.host.process import Kepd
from tests.ports import take_port


class Node(Session, frozen=True, kw_only=True):
    paths: tuple[str, ...] = ()

    def sockets(self) -> list[str]:
        return list(self.paths)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folders = [tmp_path_factory.mktemp("k") for _ in range(2)]
    for folder in folders:
        assert isinstance(folder, Path)
    with Kepd(folders[0], take_port()) as plain, Kepd(folders[1], take_port()) as cri:
        for daemon, planes in ((plain, ""), (cri, "proxy")):
            daemon.start("--planes", planes)
        for daemon in (plain, cri):
            daemon.wait(lambda one=daemon: one.get("/livez")[0] == 200 and one.socket.exists(), "an answer")
        yield Node(paths=(str(plain.socket), str(cri.socket)))


def test_the_proxy_is_found_where_it_runs(node: Node) -> None:
    """CLI-06: without an endpoint, whoever has the plane answers."""
    with connected(node) as daemon:
        listing = listed(daemon, BY_WORD["proxy"])

    assert any("kubelet.sock" in note for note in listing.notes)


def test_a_plane_that_runs_nowhere_is_told_by_the_last_one_asked(node: Node) -> None:
    with connected(node) as daemon, pytest.raises(CommandFailed, match="images plane does not run here"):
        listed(daemon, BY_WORD["pulls"])


def test_all_of_them_are_asked_what_is_wrong(node: Node) -> None:
    with connected(node) as daemon:
        subjects = [one.subject for one in diagnosed(daemon)]

    assert sum(one.startswith("kepd runtime") for one in subjects) == 2
    assert "kubelet" in subjects


def test_a_socket_that_is_named_is_the_only_one_asked(node: Node) -> None:
    with connected(Session(endpoint=node.paths[0])) as daemon, pytest.raises(CommandFailed, match="proxy plane"):
        listed(daemon, BY_WORD["proxy"])


def test_a_finding_names_the_daemon_whose_part_it_is(node: Node) -> None:
    """CL-9: with several on a node, `kepd runtime` alone says nothing; what both see of the node is there once."""
    with connected(node) as daemon:
        subjects = [one.subject for one in diagnosed(daemon)]

    assert [one for one in subjects if one.startswith("kepd runtime of ")] == [
        f"kepd runtime of {path}" for path in node.paths
    ]
    assert len(subjects) == len(set(subjects))
