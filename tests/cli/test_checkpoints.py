# SPDX-License-Identifier: Apache-2.0
"""CKP-12, CKP-13: checkpoints on the command line."""

import asyncio
import re
from pathlib import Path

from click.testing import Result

from agent.cli.session import CommandFailed
from agent.model.exit_codes import CONFLICT, NOT_FOUND, USAGE
from tests.cli.pod_node import pod_node
from tests.pods.plane import Slow, manifest
from tests.pods.run.test_checkpoints import whole


class Writes(Slow):
    async def checkpoint_container(self, container_id: str, location: str) -> None:
        del container_id
        await asyncio.to_thread(Path(location).write_bytes, whole())


def code(done: Result) -> int:
    assert isinstance(done.exception, CommandFailed)
    return done.exception.exit_code


async def test_a_checkpoint_is_made_listed_and_deleted(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}, Writes()) as node:
        await node.plane.until_phases(web="Running")
        made = await node.ctl("checkpoint web/a")
        listed = await node.ctl("get checkpoints")
        path = Path(made.stdout.strip())
        dry = await node.ctl(f"delete checkpoint {path.name} --dry-run")
        kept = await node.ctl("get checkpoints")
        deleted = await node.ctl(f"delete checkpoint/{path.name}")
        again = await node.ctl(f"delete checkpoint {path.name}")
        all_ = await node.ctl("delete checkpoints --all")
        none = await node.ctl("get checkpoints")

    assert made.exit_code == 0, made.output
    assert "secrets too" in made.stderr
    row = listed.output.splitlines()[1].split()
    assert row[0] == path.name
    assert row[1] == "ready"
    assert row[-2:] == ["registry.example/web:1", "3.17.1"]
    assert (dry.output, path.name in kept.output) == (f"checkpoint/{path.name} deleted (dry run)\n", True)
    assert (deleted.output, path.name in none.output) == (f"checkpoint/{path.name} deleted\n", False)
    assert [code(one) for one in (again, all_)] == [NOT_FOUND, USAGE]
    assert re.search("none", none.output)


async def test_a_runtime_without_checkpoints_is_a_conflict(tmp_path: Path, short_path: Path) -> None:
    """CKP-10."""
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        done = await node.ctl("checkpoint web/a")

    assert (code(done), "cannot make checkpoints" in str(done.exception)) == (CONFLICT, True)


TWO = {"/m/a.yaml": manifest("web", "i"), "/m/b.yaml": manifest("db", "i")}


async def test_a_drain_may_keep_what_runs(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, TWO, Writes()) as node:
        await node.plane.until_phases(web="Running", db="Running")
        done = await node.ctl("drain --checkpoint")
        listed = await node.ctl("get checkpoints")

    assert done.exit_code == 0, done.output
    assert [line.rpartition(".")[2] for line in done.output.splitlines()[:2]] == ["tar", "tar"]
    assert done.output.count(" ended") == 2
    assert len(listed.output.splitlines()) == 3


async def test_what_cannot_be_kept_is_not_drained(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, TWO) as node:
        await node.plane.until_phases(web="Running", db="Running")
        refused = await node.ctl("drain --checkpoint")
        phases = {*node.plane.phases.values()}

    assert (code(refused), phases) == (CONFLICT, {"Running"})
    assert "nothing was stopped" in str(refused.exception)
