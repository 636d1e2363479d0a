# SPDX-License-Identifier: Apache-2.0
"""The commands of the page about topology, on its own manifests: they need no daemon (CL-16, DOC-01)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from packages.rehearsal.tests.clusters import deployment, node
from tests.cli.test_topology import PINNED
from tests.deploy.documents import FENCE, Block, blocks
from tests.host.process import PROGRAMS, ROOT

PAGE = ROOT / "docs/topology.md"
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As somebody has it who puts the pod of the last section into a file of its own."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "web.yaml").write_text(PINNED.split("---\n")[0])
    web = deployment("web", ["node-2"])
    for one in web:
        one["metadata"]["namespace"] = "shop"
    items = [node("node-1", "east"), node("node-2", "west"), *web]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return tmp_path


def follow(block: Block, folder: Path) -> int:
    """The exit code, which is 1 where the answer is no."""
    if "explain spread" in block.text:
        (folder / "manifests/spread.yaml").write_text(PINNED)
    done = subprocess.run(
        ["sh", "-uc", block.text], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), f"{block}: {done.stderr}"
    assert block.shows in done.stdout, f"{block}: {done.stdout}{done.stderr}"
    return done.returncode


def test_the_story_goes_as_it_is_told(folder: Path) -> None:
    """Each section's EndpointSlice takes the place of the one before; what is said of exit codes holds."""
    text = PAGE.read_text()
    codes = []
    yamls = iter(blocks(PAGE, language="yaml"))
    commands = {one.line: one for one in blocks(PAGE)}
    for found in FENCE.finditer(text):
        if found[3] == "yaml":
            put(folder / "manifests", next(yamls).text)
        elif (block := commands.get(text.count("\n", 0, found.start(4)))) is not None:
            if "Ten:" in text[: found.start()] and "cpu" in text[: found.start()]:
                nodes = folder / "manifests/Node.yaml"
                nodes.write_text(nodes.read_text().replace('cpu: "2"', 'cpu: "8"').replace('cpu: "4"', 'cpu: "8"'))
            codes.append(follow(block, folder))

    assert codes[:2] == [0, 1]
    assert len(codes) == len(commands)


def put(manifests: Path, text: str) -> None:
    kind = text.partition("kind: ")[2].split()[0]
    (manifests / f"{kind}.yaml").write_text(text)
