# SPDX-License-Identifier: Apache-2.0
"""A node with objects and manifests, for tests that try many lines on it."""

from collections.abc import Iterator

import pytest

from tests.cli.node_in_process import Node, running_node
from tests.cli.test_grammar import fill
from tests.objects.test_applying import objects_in


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    manifests = tmp_path_factory.mktemp("manifests")

    def filled(node: Node) -> None:
        fill(node)
        node.objects = lambda: objects_in(manifests)

    with running_node(tmp_path_factory.mktemp("c"), filled) as found:
        yield found
