# SPDX-License-Identifier: Apache-2.0
"""`kepctl debug` from the call to the runtime: what joins a pod, what kepd makes of it later, and its end."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.objects.run.writer import take_out
from agent.pods.attach.pod_service import PodService
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from agent.pods.run.stream_urls import StreamUrls
from agent.wire.cri import runtime_v1_pb2 as pb
from agent.wire.kepd.v1 import access_pb2, pod_pb2
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Dying, News, Plane, Slow, manifest, running
from tests.pods.pods import container

SIDECAR = b"  initContainers:\n  - {name: net, image: i, restartPolicy: Always}\n"


@pytest.fixture
def given() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", grace_s=7) + SIDECAR})


class Runtime(Slow):
    """Remembers what containers were made with, and in which sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self.registry.add("tools")
        self.made: dict[str, tuple[pb.ContainerConfig, pb.PodSandboxConfig]] = {}

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str:
        self.made[config.metadata.name] = (config, sandbox_config)
        return await super().create_container(sandbox_id, config, sandbox_config)

    def states(self, name: str) -> list[int]:
        return [one.state for one in self._containers.values() if one.metadata.name == name]

    def end(self, name: str, code: int) -> None:
        self.exit(next(one.id for one in self._containers.values() if one.metadata.name == name), code)


class Urls:
    """Answers with what it was asked for."""

    async def attach_url(self, request: pb.AttachRequest) -> str:
        return f"{request.container_id} {request.stdin} {request.tty}"


def commands_of(plane: Plane) -> PodCommands:
    context = plane.runner._context
    return PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)


async def debug(plane: Plane, name: str = "", profile: str = "", target: str = "", **fields: Any) -> str:
    given = container(name, **{"image": "tools", **fields})
    return await commands_of(plane).debug("", "web-n", given, profile, target)


async def up(plane: Plane) -> None:
    await plane.until_phases(web="Running")
    await plane.until(lambda: len(plane.pod().containers) == 2 and all(one.id for one in plane.pod().containers), "up")


def shown(plane: Plane, name: str) -> tuple[str, str]:
    return next(((one.kind, one.state) for one in plane.pod().containers if one.name == name), ("", ""))


def has(plane: Plane, name: str, state: str) -> Callable[[], bool]:
    return lambda: shown(plane, name) == ("ephemeral", state)


async def test_it_gets_a_name_an_image_and_a_place_in_the_pod(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27."""
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        name = await debug(plane, target="a", profile="sysadmin")
        await plane.until(has(plane, name, "Running"), "it is shown")
        lines = (await commands_of(plane).explain("", "web-n")).details
        told = [one.reason for one in plane.events if one.container == name]
        assert plane.metrics.started["ephemeral"] == 1

    config, sandbox = cri.made[name]
    target = next(one.id for one in cri._containers.values() if one.metadata.name == "a")
    assert re.fullmatch("debugger-[a-z0-9]{5}", name)
    assert ("tools", "", "") in cri.pulls
    assert config.linux.security_context.namespace_options.target_id == target
    assert sandbox.linux.security_context.privileged, "else the runtime refuses a privileged container"
    assert f"{name}: ephemeral, running, no part of the manifest" in lines
    assert told[-2:] == ["Created", "Started"]


async def test_what_cannot_be_done_is_refused(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27: and nothing is left of it."""
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        await debug(plane, "look")
        for wanted, text in (
            ({"name": "look"}, 'has a container "look" already'),
            ({"name": "a"}, 'has a container "a" already'),
            ({"name": "b", "image": "nowhere"}, "b was not started: ErrImagePull: "),
            ({"name": "b", "profile": "restricted"}, "b was not started: .* image will run as root"),
            ({"name": "b", "target": "none"}, 'no container "none"'),
        ):
            with pytest.raises(Refused, match=text):
                await debug(plane, **wanted)
        cri.failures["StartContainer"] = RuntimeCallFailed("StartContainer", "no such program")
        with pytest.raises(Refused, match="c does not run: "):
            await debug(plane, "c")
        await plane.until(lambda: cri.states("c") == [], "what did not start is taken away")
        with pytest.raises(Refused, match='no pod "default/none"'):
            await commands_of(plane).debug("", "none", container("x"), "", "")

    assert cri.states("b") == []
    assert [one.message for one in plane.events if one.container == "c" and one.reason == "Failed"] == [
        "Error: no such program"
    ]


async def test_the_call_asks_for_all_that_it_says_at_the_level_of_commands_and_manifests(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """TRM-27: who may apply a manifest may run privileged pods, so no profile needs more."""
    methods = pod_pb2.DESCRIPTOR.services_by_name["PodService"].methods_by_name
    levels = {name: methods[name].GetOptions().Extensions[access_pb2.level] for name in methods}
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        request = pod_pb2.DebugPodRequest(
            name="web-n",
            container="look",
            image="tools",
            command=["sh", "-c"],
            target="a",
            profile="netadmin",
            tty=True,
        )
        answer = await PodService(commands_of(plane), None).debug_pod(request)

    config = cri.made["look"][0]
    assert answer.container == "look"
    assert (list(config.command), config.tty, config.stdin) == (["sh", "-c"], True, False)
    assert list(config.linux.security_context.capabilities.add_capabilities) == ["NET_ADMIN", "NET_RAW"]
    assert levels["DebugPod"] == levels["GetExecUrl"] == access_pb2.LEVEL_OPERATE


async def test_a_second_one_of_a_name_that_is_being_started_is_refused(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """TRM-27."""
    cri = Runtime()
    cri.slow_images.add("tools")
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        first = asyncio.create_task(debug(plane, "look"))
        await plane.until(lambda: cri.pulling["tools"], "a pull")
        with pytest.raises(Refused, match='has a container "look" already, which starts'):
            await debug(plane, "look")
        cri.may_pull.set()

        assert await first == "look"


async def test_it_ends_once_and_is_never_started_again(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27: neither by kepd, nor by an edit, nor by `kepctl restart`."""
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        await debug(plane, "once")
        await debug(plane, "stays")
        cri.end("once", 3)
        await plane.until(has(plane, "once", "Terminated"), "its end is shown")
        commands = commands_of(plane)
        assert sorted(commands.restart("", "web-n", "")) == ["a", "net"]
        with pytest.raises(Refused, match='no container "stays"'):
            commands.restart("", "web-n", "stays")
        await plane.until(lambda: [one.restart_count for one in plane.pod().containers[:2]] == [1, 1], "restarts")
        await plane.rounds()

        assert {name: cri.states(name) for name in ("once", "stays")} == {
            "once": [pb.CONTAINER_EXITED], "stays": [pb.CONTAINER_RUNNING],
        }  # fmt: skip
        assert {name for name, _ in cri.stops} == {"a", "net"}
        assert has(plane, "once", "Terminated")()


async def test_an_edit_of_the_manifest_neither_ends_nor_restarts_it(tmp_path: Path) -> None:
    """TRM-27, MAN-11."""
    cri = Runtime()
    cri.registry.add("j")
    uid = ", uid: 11111111-1111-1111-1111-111111111111"
    given = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", more=uid)})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        await debug(plane, "look")
        given.put("/m/f.yaml", manifest("web", "j", more=uid))
        await plane.until(lambda: plane.pod().containers[0].restart_count == 1, "the edit is carried out")
        await plane.rounds()

    assert cri.states("look") == [pb.CONTAINER_RUNNING]
    assert {name for name, _ in cri.stops} == {"a"}


async def test_it_survives_a_restart_of_kepd(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27: it is known again, attaching included, and neither ended nor run twice."""
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        await debug(plane, "look", stdin=True, tty=True)
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        await plane.until(has(plane, "look", "Running"), "it is adopted")
        await plane.rounds()
        url, is_tty = await StreamUrls(commands_of(plane), Urls(), Urls()).attach_url(  # type: ignore[arg-type]
            ("", "web-n", "look"), has_stdin=True
        )
        with pytest.raises(Refused, match="already"):
            await debug(plane, "look")

    assert (url.split()[1:], is_tty) == (["True", "True"], True)
    assert cri.states("look") == [pb.CONTAINER_RUNNING]
    assert cri.stops == []


@pytest.mark.parametrize(("step", "left"), [("create_container", []), ("start_container", [pb.CONTAINER_RUNNING])])
async def test_a_kill_of_kepd_between_two_calls_starts_nothing_later(
    given: FakeManifestDirectory, tmp_path: Path, step: str, left: list[int]
) -> None:
    """TRM-27: what was created and not started is taken away; nobody waits for it any more."""
    cri = Runtime()
    with pytest.raises(BaseExceptionGroup):
        # The pod has two containers of its own.
        async with running(Dying(cri, (step,), 3), given, tmp_path, events=News(cri)) as plane:
            await up(plane)
            await debug(plane, "look")
    assert len(cri.states("look")) == 1
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: cri.states("look") == left, "what is left of it")
        await plane.rounds()

    assert cri.states("look") == left
    assert cri.stops == []


async def test_it_is_ended_at_once_and_no_sidecar_waits_for_it(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27: it gets its signal with the mains, and all that the pod has for its end."""
    cri = Runtime()
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        await debug(plane, "look")
        cri.may_stop.clear()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: cri.stopping == {"a", "look"}, "both are signalled")
        cri.end("a", 0)
        await plane.until(lambda: "net" in cri.stopping, "the sidecar's turn, although it still runs")
        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")

    assert dict(cri.stops)["look"] == 7
    assert cri._containers == {}


async def test_a_pod_that_is_done_ends_it(tmp_path: Path) -> None:
    """TRM-27: it holds up no completion, and stays listed."""
    cri = Runtime()
    given = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i") + b"  restartPolicy: Never\n"})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        await debug(plane, "look")
        cri.end("a", 0)
        await plane.until_phases(web="Succeeded")
        await plane.until(has(plane, "look", "Terminated"), "it is listed")
        with pytest.raises(Refused, match="ends, or is over"):
            await debug(plane, "late")

    assert [name for name, _ in cri.stops] == ["look"]


async def test_an_end_of_the_pod_does_not_wait_for_its_image(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """TRM-27, STA-12."""
    cri = Runtime()
    cri.slow_images.add("tools")
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await up(plane)
        asked = asyncio.create_task(debug(plane, "look"))
        await plane.until(lambda: cri.pulling["tools"], "a pull")
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")
        with pytest.raises(Refused, match="look was not started: pod default/web-n ends"):
            await asked

    assert "look" not in cri.made
