# SPDX-License-Identifier: Apache-2.0
"""Every command has its group and its examples, and each example is a line that kepctl takes."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from agent.cli.main import COMMANDS
from agent.cli.texts.examples import EXAMPLES, GROUPS, examples_of
from agent.model.exit_codes import USAGE
from packages.rehearsal.tests.clusters import deployment
from packages.rehearsal.tests.clusters import node as cluster_node
from tests.cli.node_in_process import Node, running_node
from tests.cli.test_foreign_words import parsed
from tests.cli.test_grammar import fill
from tests.cli.test_making import WEB
from tests.host.forked_kepctl import forked_kepctl
from tests.objects.test_applying import POD

# They have no more than one way to be typed.
# They would stay, start an editor, or ask another program, or a machine, than the node at hand.
HELD = (
    "-f web -c",
    " -w",
    "-it ",
    "node-logs",
    "port-forward",
    " ui",
    "edit",
    "--endpoint",
    "wait",
    "attach",
    "--summary",
    "what-if --kubeconfig",
    "what-if --from-node",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("x"), fill) as found:
        yield found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What examples read, where they are typed."""
    monkeypatch.chdir(tmp_path)
    for name in ("web.yaml", "other.yaml", "manifests/web.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(POD)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/web.yaml").write_text(WEB)
    (tmp_path / "overlay/kustomization.yaml").write_text("resources: [web.yaml]\nnamePrefix: a-\n")
    shop = deployment("web", ["node-2"])
    for one in shop:
        one["metadata"]["namespace"] = "shop"
    items = [cluster_node("node-1", "east"), cluster_node("node-2", "west"), *shop]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (tmp_path / "admin.conf").write_text("kind: Config\n")
    (tmp_path / "words.txt").write_text("so")
    (tmp_path / "node.yaml").write_text("images: {maxParallelPulls: 2}\n")
    (tmp_path / "images.yaml").write_text(yaml.safe_dump(["r.test/web:1"]))
    return tmp_path


def test_every_command_is_in_one_group_and_has_three_examples() -> None:
    grouped = Counter(name for names in GROUPS.values() for name in names)
    few = {name for name in COMMANDS if len(examples_of(f"kepctl {name}")) < 3}

    assert grouped == Counter(COMMANDS.keys())
    assert not few


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_is_taken(files: Path, node: Node, line: str) -> None:
    """What the node at hand has not may fail; what is mistyped may not."""
    assert files.exists()
    assert isinstance(parsed(line), click.Context)
    if any(mark in line for mark in HELD):
        return
    done = node.ctl(*shlex.split(line)[1:])

    assert "Traceback" not in done.stderr
    assert "Usage:" not in done.stderr
    assert done.returncode != USAGE or "is not served here" in done.stderr, done.stderr


def test_help_shows_groups_and_examples() -> None:
    whole, one, inner = (forked_kepctl(*words, "--help").stdout for words in ((), ("get",), ("plan", "stop")))

    assert [line.rstrip(":") for line in whole.splitlines() if line.rstrip(":") in GROUPS] == list(GROUPS)
    assert "Examples:\n  kepctl get pods\n" in one
    assert "  kepctl plan stop web\n" in inner
