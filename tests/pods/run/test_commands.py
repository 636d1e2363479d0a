# SPDX-License-Identifier: Apache-2.0
"""What people ask of pods goes through the keeper; what they read says what is being done."""

import asyncio
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from agent.cli.commands.pods import pods
from agent.cli.session import CommandFailed, Session
from agent.drivers.cri import methods
from agent.model.refused import Refused
from agent.model.runtime.error import DeadlineExceeded
from agent.objects.run.writer import take_out
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Plane, Slow, manifest, running


@pytest.fixture
def given() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", "i")})


def commands_of(plane: Plane) -> PodCommands:
    context = plane.runner._context
    return PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)


async def test_explain_says_in_words_what_is_being_done(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """FP-26: names of tasks such as `*stop` and `launch:a` were shown."""
    cri = Slow()
    cri.registry.add("slow")
    cri.slow_images.add("slow")
    given.put("/m/f.yaml", manifest("web", "i", "slow"))
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        commands = commands_of(plane)
        await plane.until(lambda: cri.pulling["slow"] and plane.pod().containers[0].state == "Running", "a pull")
        while "doing: start b" not in (await commands.explain("", "web-n")).details:
            await plane.clock.sleep(0.1)
        cri.may_pull.set()
        await plane.until_phases(web="Running")
        cri.may_stop.clear()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: cri.stopping == {"a", "b"}, "both are stopped")
        doing = {line for line in (await commands.explain("", "web-n")).details if line.startswith("doing")}
        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")

    assert doing >= {"doing: end the pod", "doing: stop a", "doing: stop b"}


async def test_a_restart_on_request_ends_one_container_and_starts_it_again(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """BEY-11."""
    cri = Slow()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        commands = commands_of(plane)

        assert commands.restart("", "web-n", "a") == ["a"]
        with pytest.raises(Refused, match='has no container "none"'):
            commands.restart("", "web-n", "none")

        await plane.until(lambda: [one.restart_count for one in plane.pod().containers] == [1, 0], "a restart")
        keeper = plane.runner.keeper("default", "web-n")
        assert keeper is not None
        assert keeper.run.memory.of("a").backoff.restarts == 1
        commands.clear_backoff("", "web-n")
        assert keeper.run.memory.of("a").backoff.restarts == 0, "BEY-10"
    assert [name for name, _ in cri.stops] == ["a"]


async def test_a_pod_that_is_found_running_reports_its_annotations_once(tmp_path: Path) -> None:
    """It was made twice, once to look at it and once to keep it."""
    cri = Slow()
    given = FakeManifestDirectory({"/m/f.yaml": manifest(more=", annotations: {kepd.dev/grace.a: soon}")})
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.rounds()

        assert [one.message for one in plane.events if one.reason == "InvalidAnnotation"] == [
            "kepd.dev/grace.a: 'soon' is not a duration such as 5s, 1m30s or 500ms"
        ]


async def test_a_checkpoint_that_the_runtime_does_not_finish_in_time_says_what_is_known(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """FP-32: the runtime may work on, and the container may be paused meanwhile."""
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        cri.failures["CheckpointContainer"] = DeadlineExceeded("CheckpointContainer", "Deadline Exceeded")
        with pytest.raises(Refused, match=r"may still write .*checkpoint-web-n_default-a-.*tar; .* may be paused"):
            await commands_of(plane).checkpoint("", "web-n", "a")


async def test_a_checkpoint_goes_on_when_nobody_waits_for_it_any_more(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """FP-32: Ctrl-C ends kepctl, not the archive."""
    asked, finish, made = asyncio.Event(), asyncio.Event(), []

    class Writing(Slow):
        async def checkpoint_container(self, container_id: str, location: str) -> None:
            asked.set()
            await finish.wait()
            await asyncio.to_thread(Path(location).write_bytes, b"archive")
            made.append(Path(location))

    async with running(Writing(), given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        caller = asyncio.ensure_future(commands_of(plane).checkpoint("", "web-n", "a"))
        await asked.wait()
        caller.cancel()
        await asyncio.wait([caller])
        with capture_logs() as logged:
            finish.set()
            while not logged:
                await asyncio.sleep(0.01)

    assert caller.cancelled()
    assert [(one["event"], one["error"]) for one in logged] == [("checkpoint_ended", "")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o600]


def test_kepctl_and_the_runtime_have_more_time_for_a_checkpoint_than_for_other_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FP-32: a checkpoint of much memory takes minutes; kepctl waits longer than the daemon waits for the runtime."""
    timeouts: list[float] = []

    def connected(session: Session) -> None:
        timeouts.append(session.timeout_s)
        raise CommandFailed("no daemon here")

    monkeypatch.setattr(pods, "connected", connected)
    for session in (Session(), Session(timeout_s=3.0)):
        CliRunner().invoke(pods.checkpoint, ["web"], obj=session)

    assert timeouts == [pods.LONGEST_S, 3.0]
    assert pods.LONGEST_S > 120 * methods.CHECKPOINT_CONTAINER.deadline_factor > 600
