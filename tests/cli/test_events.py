# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl events --for` and `--types`, and a list that grows without new titles."""

import asyncio
from pathlib import Path

import pytest

from agent.cli.commands.node import events
from agent.cli.session import CommandFailed
from agent.model.event import Event
from tests.cli.pod_node import PodNode, pod_node
from tests.pods.plane import manifest


def tell(node: PodNode, reason: str, name: str = "", plane: str = "pods", *, is_warning: bool = False) -> None:
    namespace = "default" if name else ""
    node.ring.tell(
        Event(is_warning=is_warning, reason=reason, message="m", plane=plane, namespace=namespace, object_name=name)
    )


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        ("events", ["Pulled", "BackOff", "InvalidService", "Starting"]),
        ("events --for pod/web", ["Pulled", "BackOff"]),
        ("events --for po/web-n --types=Warning", ["BackOff"]),
        ("events --for svc/web-n", ["InvalidService"]),
        ("events --for node", ["Starting"]),
        ("events --types normal,warning", ["Pulled", "BackOff", "InvalidService", "Starting"]),
        ("events --for pod/gone", []),
    ],
)
async def test_events_of_one_object_or_type(tmp_path: Path, short_path: Path, words: str, reasons: list[str]) -> None:
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        tell(node, "Pulled", "web-n")
        tell(node, "BackOff", "web-n", is_warning=True)
        tell(node, "InvalidService", "web-n", "services", is_warning=True)
        tell(node, "Starting")
        done = await node.ctl(words)

    assert done.exit_code == 0, done.exception
    assert [line.split()[2] for line in done.stdout.splitlines()[1:]] == reasons


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("events --types Error", "expected Normal or Warning"),
        ("events --for web", "expected pod/NAME, service/NAME, deployment/NAME or node"),
        ("events --for pod/", "expected pod/NAME"),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, short_path: Path, words: str, text: str) -> None:
    async with pod_node(tmp_path, short_path, {}) as node:
        done = await node.ctl(words)

    assert isinstance(done.exception, CommandFailed)
    assert done.exception.exit_code == 2
    assert text in str(done.exception)


async def test_a_list_that_grows_has_its_titles_once(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[str] = []
    monkeypatch.setattr(events, "_print_row", lambda cells: rows.append(cells[2]))
    async with pod_node(tmp_path, short_path, {}) as node:
        tell(node, "First")
        following = asyncio.create_task(node.ctl("events -w"))
        await node.plane.until(lambda: len(rows) == 2, "the first is shown")
        tell(node, "Second")
        await node.plane.until(lambda: len(rows) == 3, "the second is shown")
    done = await following

    assert rows == ["REASON", "First", "Second"]
    assert isinstance(done.exception, CommandFailed), "the daemon has ended"
