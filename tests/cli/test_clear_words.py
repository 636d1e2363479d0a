# SPDX-License-Identifier: Apache-2.0
"""What people read when something is closed to them, away or has failed: said once, with what would help."""

import os
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from agent.cli import client, session
from agent.cli.commands.planes import images
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.progress import ProgressLines
from agent.model.runtime.error import Unavailable
from agent.wire.kepd.v1 import image_pb2
from tests.cli.pod_node import pod_node
from tests.pods.plane import manifest


def test_a_directory_that_is_closed_is_no_fault_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """CL-4: `exists` of pathlib raises where the directory may not be entered."""

    def refuse(self: Path, **_how: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(session.Path, "exists", refuse)
    monkeypatch.delenv("KEPD_ENDPOINT", raising=False)

    assert Session().sockets()[0] == session.DEFAULT_SOCKET


def test_a_closed_socket_names_the_group_that_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CL-4."""
    path = tmp_path / "kepd.sock"
    real = os.stat

    def stat(where: object, *rest: object, **more: object) -> os.stat_result:
        if str(where) == str(path):
            raise PermissionError(13, "Permission denied")
        found = list(real(where, *rest, **more))  # type: ignore[call-overload]
        found[5] = 4 if str(where) == str(tmp_path) else found[5]
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat)
    text = client._unreachable(str(path))

    assert text.startswith(f"no access to {path}: ")
    assert text.endswith("join group adm and log in anew, or use root")


async def test_a_command_in_a_container_says_that_the_runtime_is_away(tmp_path: Path, short_path: Path) -> None:
    """CL-15: it said `Exec: No such file or directory`, and before that `is kepd running?`."""
    async with pod_node(tmp_path, short_path, {"/m/f.yaml": manifest("web", "i")}) as node:
        await node.plane.until_phases(web="Running")
        node.streams.failure = Unavailable("Exec", "No such file or directory")
        answers = [await node.ctl(line) for line in ("exec web -- true", "attach web")]

    for answer in answers:
        assert isinstance(answer.exception, CommandFailed)
        assert "the container runtime does not answer (Exec: No such file" in str(answer.exception)
        assert answer.exception.exit_code == 4


class Answers:
    """A client whose daemon has one pull that fails."""

    def follow(self, *_call: object) -> list[image_pb2.PullImageResponse]:
        failed = image_pb2.Pull(id="1", image="r/a", stage="failed", error="no such host")
        outcome = image_pb2.PullOutcome(image="r/a", result="failed", reason="ErrImagePull", message="no such host")
        return [image_pb2.PullImageResponse(pull=failed), image_pb2.PullImageResponse(outcome=outcome)]


def test_a_failed_pull_says_why_once(capsys: pytest.CaptureFixture[str]) -> None:
    """CL-15."""
    outcomes = images._follow(Answers(), image_pb2.PullImageRequest(), Session())  # type: ignore[arg-type]
    told = [images._outcome_line(one) for one in outcomes]
    shown = capsys.readouterr()

    assert (shown.out + shown.err).count("no such host") == 0
    assert told == ["failed: ErrImagePull: no such host"]
    assert ProgressLines(Session())._bars is None


@pytest.mark.parametrize(("mode", "words"), [("--dry-run", "would free 3.0 MiB"), ("--now", "3.0 MiB freed")])
def test_what_was_only_computed_is_not_freed(mode: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CL-15."""
    one = image_pb2.CollectedImage(image=image_pb2.Image(id="sha256:1", names=["r/a"]))
    answer = image_pb2.CollectGarbageResponse(images=[one], freed_bytes=3 << 20, usage_percent=50)
    monkeypatch.setattr(images, "ask", lambda *_: answer)
    done = CliRunner().invoke(images.gc, [mode], obj=Session())

    assert words in done.output


def test_an_error_of_the_daemon_keeps_its_words_also_when_it_may_be_tried_again() -> None:
    """CL-15: not every UNAVAILABLE means that nobody is there."""

    class Gone(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "failed to connect"

        def trailing_metadata(self) -> tuple[()]:
            return ()

    assert "there is no such socket" in str(client.failure(Gone(), "/nonexistent/kepd.sock"))  # type: ignore[arg-type]
