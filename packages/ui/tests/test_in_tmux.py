# SPDX-License-Identifier: Apache-2.0
"""`kepctl ui` as people see it: in a real terminal, against the real API server."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model.event import Event
from agent.model.pods.state import ContainerState, PodState
from packages.ui.tests.in_tmux import Window, window
from tests.cli.node_in_process import Node, running_node
from tests.host.process import PROGRAMS, kepctl

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux; scripts/prepare installs it")
APP = ContainerState(name="app", image="i:1", state="Running", is_ready=True, is_started=True)
WEB = PodState(namespace="default", name="web-n1", uid="1", phase="Running", created_at_s=1.0, containers=(APP,))


def fill(node: Node) -> None:
    for name in ("db-n1", "web-n1"):
        pod = replace(WEB, name=name)
        node.pods.pods.put(pod.key, pod)


@contextmanager
def screen(short_path: Path) -> Iterator[tuple[Node, Window]]:
    with running_node(short_path, fill) as node:
        command = [str(PROGRAMS / "kepctl"), "--endpoint", str(node.path), "ui"]
        with window(short_path, command) as opened:
            opened.wait("kepd", "n1", "db-n1", "web-n1")
            yield node, opened


def assert_restored(opened: Window) -> None:
    opened.wait("returned")

    assert opened.left("before") == opened.left("after")
    assert opened.flags() == "0 1"


def test_changes_come_by_themselves_and_keys_open_pages(short_path: Path) -> None:
    with screen(short_path) as (node, opened):
        node.put(replace(WEB, waits_for="readiness of app"))
        opened.wait("web-n1", "readiness of app")
        node.tell(
            Event(
                id="1",
                is_warning=False,
                reason="Pulled",
                message="image \x1b]0;owned\x07 is here",
                object_name="web-n1",
                plane="pods",
            )
        )
        opened.wait("Pulled", "image ?]0;owned? is here")
        opened.press("j", "e")
        opened.wait("explain pod default/web-n1", "plan: default/web-n1")
        opened.press("Escape")
        opened.wait("Services", gone="explain pod")
        opened.press("/")
        opened.press("-l", "db-")
        opened.wait("Pods 1 of 2", gone="web-n1  ")
        opened.press("Enter", "Escape", "Tab")
        opened.wait("▌Pulls")
        opened.tmux("resize-window", "-x", "60", "-y", "12")
        opened.press("1", "?")
        opened.wait("choose a panel")
        opened.press("q", "q")
        assert_restored(opened)

        assert opened.left("code") == "0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_as_it_was(short_path: Path, number: signal.Signals) -> None:
    with screen(short_path) as (_, opened):
        assert opened.flags() == "1 0"

        os.kill(opened.pid(), number)
        assert_restored(opened)

        assert opened.left("code") == str(128 + number)


def test_a_failure_leaves_the_terminal_as_it_was_and_is_seen(short_path: Path) -> None:
    """Whatever fails in the program itself: here its redraw, in an interpreter where drawing raises."""
    broken = "import kepd_ui.run.loop as loop; loop.draw = lambda *_: 1 / 0"
    code = f"{broken}; from agent.cli.main import main; main()"
    with running_node(short_path, fill) as node:
        command = [str(PROGRAMS / "python"), "-c", code, "--endpoint", str(node.path), "ui"]
        with window(short_path, command) as opened:
            assert_restored(opened)

            assert "ZeroDivisionError" in opened.left("errors")


def test_a_daemon_that_goes_and_comes_is_watched_again(short_path: Path) -> None:
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(short_path / "kepd.sock"), "ui"]
    with ExitStack() as first, ExitStack() as opened_window:
        first.enter_context(running_node(short_path, fill))
        opened = opened_window.enter_context(window(short_path, command))
        opened.wait("Pods 2", "web-n1")
        first.close()
        opened.wait("nothing answers there", "web-n1")
        with running_node(short_path, fill) as node:
            node.put(replace(WEB, name="new-n1"))
            opened.wait("new-n1", "Pods 3", gone="nothing answers there")
            opened.press("C-c")
            assert_restored(opened)


def test_suspended_it_gives_the_terminal_back_until_it_goes_on(short_path: Path) -> None:
    with screen(short_path) as (_, opened):
        pid = opened.pid()
        opened.press("C-z")
        opened.wait(gone="web-n1")

        assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "T"
        assert opened.flags() == "0 1"

        os.kill(pid, signal.SIGCONT)
        opened.wait("web-n1")
        opened.press("q")
        assert_restored(opened)


def test_without_a_terminal_it_says_what_to_use_instead(short_path: Path) -> None:
    with running_node(short_path, fill) as node:
        done = kepctl("--endpoint", str(node.path), "ui")

    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal" in done.stderr
    assert "kepctl get pods -w" in done.stderr
