# SPDX-License-Identifier: Apache-2.0
"""The commands of the page about rehearsals, on its own cluster: they need no daemon."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.documents import Block, blocks
from tests.host.process import PROGRAMS, ROOT

PAGE = ROOT / "docs/what-if.md"
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
COMMANDS = [one for one in blocks(PAGE) if one.is_run]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    (found / "cluster").mkdir()
    (written,) = blocks(PAGE, language="yaml")
    (found / "cluster/web.yaml").write_text(written.text)
    return found


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_a_command_shows_what_the_page_says(block: Block, folder: Path) -> None:
    done = subprocess.run(
        ["sh", "-uc", block.text], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert done.returncode == ("--fail-on" in block.text), f"{block}: {done.stderr}"
    assert block.shows in done.stdout, f"{block}: {done.stdout}{done.stderr}"


def test_counts_that_the_page_names_have_hints(folder: Path) -> None:
    words = ["kepctl", "what-if", "--from-files", "cluster", "--hpa", "web=4..20", "--all"]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    states = [one.split()[2] for one in done.stdout.splitlines() if one.lstrip().startswith("after ")]
    active = [count for count, state in enumerate(states, 4) if state == "active"]

    assert active == [4, 7, 8, 9, *range(11, 21)]
