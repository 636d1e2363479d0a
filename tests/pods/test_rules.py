# SPDX-License-Identifier: Apache-2.0
"""Rules of pod life that are only seen with the whole plane at work: words, interruptions, hooks, collection."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind
from agent.model.pods.state import ContainerState, PodState
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.event import EventKind
from agent.objects.run.writer import take_out
from agent.pods.plan.order import Member, waits_for_end
from agent.pods.plan.remembered import ContainerMemory, Memory, without_outdated
from agent.pods.plan.restart import BackOff
from agent.pods.plan.stop_state import ContainerEnding, Trigger, begin_stop
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from agent.pods.run.pod_context import NoDevices
from agent.pods.view.forecast import Assumption, forecast_stop
from agent.pods.view.status import Look, pod_status
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import AT_ONCE, News, Plane, Slow, running
from tests.pods.pods import Runs, World, make_pod
from tests.pods.pods import container as make_container

HEAD = b"apiVersion: v1\nkind: Pod\nmetadata: {name: web%s}\nspec:\n"


@pytest.fixture
def cri() -> Slow:
    made = Slow()
    made.registry.add("i:1")
    return made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_S", "FIRST_IMAGE_PAUSE_S"):
        monkeypatch.setattr(f"agent.pods.run.one_pod.starting.{name}", 0.05)
    for name in ("FIRST_PAUSE_S", "NETWORK_PAUSE_S"):
        monkeypatch.setattr(f"agent.pods.run.one_pod.sandbox_maker.{name}", 0.05)


def text(spec: str, more: str = "") -> bytes:
    body = "".join(f"  {line}\n" for line in spec.splitlines())
    return HEAD % more.encode() + body.encode()


def pod(spec: str, more: str = "") -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": text(spec, more)})


def one(fields: str = "", more: str = "", pod_more: str = "") -> FakeManifestDirectory:
    return pod(f'{pod_more}\ncontainers:\n- {{name: app, image: "i:1"{", " + fields if fields else ""}}}', more)


def told(plane: Plane, reason: str) -> list[str]:
    return [event.message for event in plane.events if event.reason == reason]


def container(plane: Plane, name: str = "app") -> ContainerState:
    return next(one for one in plane.pod().containers if one.name == name)


async def test_a_pull_that_goes_on_failing_is_backed_off_from(cri: Slow, tmp_path: Path) -> None:
    """RST-07, IMG-B03: the message repeats the last error."""
    given = pod('containers: [{name: app, image: "none:1"}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases and container(plane).reason == "ImagePullBackOff", "the word")
        message = container(plane).message

    assert message.startswith('Back-off pulling image "none:1": ErrImagePull: failed to resolve image "none:1"')


async def test_an_image_that_cannot_be_looked_for_has_its_own_word(cri: Slow, tmp_path: Path) -> None:
    """IMG-B03: ImageInspectError."""
    cri.failures["ImageStatus"] = RuntimeCallFailed("ImageStatus", "disk on fire")
    given = pod('containers: [{name: app, image: "i:1", imagePullPolicy: Always}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: told(plane, "InspectFailed"), "told")
        await plane.until_phases(web="Running")

        assert told(plane, "InspectFailed") == ['Failed to inspect image "i:1": disk on fire']


async def test_a_slow_image_of_a_later_main_delays_nobody_before_it(cri: Slow, tmp_path: Path) -> None:
    """STA-06: it is fetched from the sandbox on, and the order of starts stays."""
    cri.registry.add("slow:1")
    cri.slow_images.add("slow:1")
    given = pod('containers: [{name: app, image: "i:1"}, {name: late, image: "slow:1"}, {name: last, image: "i:1"}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: cri.pulling["slow:1"] and container(plane).state == "Running", "the first runs")
        assert cri.calls.index("PullImage") > cri.calls.index("RunPodSandbox")
        cri.may_pull.set()
        await plane.until_phases(web="Running")
        starts = [one.metadata.name for one in cri._containers.values()]

    assert starts == ["app", "late", "last"]


async def test_an_image_that_comes_ahead_and_cannot_be_had_is_told_by_its_container_alone(
    cri: Slow, tmp_path: Path
) -> None:
    """STA-06."""
    given = pod('containers: [{name: app, image: "i:1"}, {name: late, image: "none:1"}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases and "ImagePull" in container(plane, "late").reason, "its reason")

        assert container(plane).state == "Running"
        assert {event.container for event in plane.events if event.reason == "Failed"} == {"late"}
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")


class Beside(Slow):
    """A sandbox that is not there before a pull has begun."""

    async def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
        while "PullImage" not in self.calls:
            await asyncio.sleep(0)
        return await super().run_sandbox(config, runtime_handler)


async def test_the_first_image_comes_while_the_sandbox_is_made(tmp_path: Path) -> None:
    """FP-24: and no other image does."""
    cri = Beside()
    cri.registry |= {"i:1", "i:2"}
    given = pod('containers: [{name: app, image: "i:1"}, {name: late, image: "i:2"}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")

    assert cri.calls.count("PullImage") == 2
    assert cri.calls.index("PullImage") < cri.calls.index("RunPodSandbox")


async def test_a_first_image_that_cannot_be_had_is_asked_for_once_before_it_is_told(tmp_path: Path) -> None:
    """FP-24: the pull beside the sandbox is the container's own."""
    cri = Beside()
    async with running(cri, pod('containers: [{name: app, image: "none:1"}]'), tmp_path) as plane:
        await plane.until(lambda: plane.phases and "ImagePull" in container(plane).reason, "its reason")

        assert container(plane).reason == "ErrImagePull"
        assert cri.calls.count("PullImage") == 1


class Hung(Slow):
    """Commands go on until they are cancelled; `done` tells which were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.registry.add("i:1")
        self.asked: list[str] = []
        self.hangs = {"begin"}

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        self.asked.append(command[0])
        if command[0] in self.hangs:
            await asyncio.Event().wait()
        return await super().exec_sync(container_id, command, timeout_s)


PRE_STOP = "lifecycle: {preStop: {exec: {command: [drain]}}}"
HOOKS = "lifecycle: {postStart: {exec: {command: [begin]}}, preStop: {exec: {command: [drain]}}}"


async def test_a_delete_does_not_wait_for_a_post_start_that_hangs(tmp_path: Path) -> None:
    """STA-12: preStop of that container runs all the same."""
    cri = Hung()
    given = one(HOOKS)
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: cri.asked == ["begin"], "postStart hangs")
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")

    assert cri.asked == ["begin", "drain"]


@pytest.mark.parametrize("more", ["", "readinessProbe: {exec: {command: [ready]}, periodSeconds: 1}"])
async def test_a_restart_of_kepd_during_a_post_start_runs_it_once_and_the_pod_gets_ready(
    tmp_path: Path, more: str
) -> None:
    """FP-2, HOK-12."""
    cri = Hung()
    given = one(f"{HOOKS}, {more}" if more else HOOKS)
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: cri.asked == ["begin"], "postStart hangs")
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases and container(plane).is_ready, "ready")
        assert told(plane, "PostStartHookInterrupted")
        assert container(plane).restart_count == 0

    assert cri.asked.count("begin") == 1
    assert cri.stops == []


async def test_a_delete_does_not_wait_for_a_pull(cri: Slow, tmp_path: Path) -> None:
    """STA-12."""
    cri.registry.add("slow:1")
    cri.slow_images.add("slow:1")
    given = pod('containers: [{name: app, image: "slow:1"}]')
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: cri.pulling["slow:1"], "the pull hangs")
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")

    assert cri.pulling["slow:1"] == 0
    assert "CreateContainer" not in cri.calls


async def test_a_post_start_over_its_limit_counts_as_failed(tmp_path: Path) -> None:
    """HOK-03, HOK-04."""
    cri = Hung()
    async with running(cri, one(HOOKS), tmp_path, post_start_timeout=0.05) as plane:
        await plane.until(lambda: told(plane, "FailedPostStartHook"), "it failed")
        await plane.until(lambda: "drain" in cri.asked, "the container ends with its preStop")
        await plane.until(lambda: cri.stops, "and is stopped")

    assert told(plane, "FailedPostStartHook")[0] == "PostStartHook failed"


async def test_what_hooks_wrote_is_told_to_those_who_ask_and_in_no_event(tmp_path: Path) -> None:
    """HOK-04, HOK-06, HOK-13; and the picture of a pod that is gone."""
    cri = Hung()
    cri.hangs = set()

    async def answer(_container_id: str, command: list[str], _timeout_s: int) -> pb.ExecSyncResponse:
        text = b"x" * 5000 + b"the password is sesame"
        return pb.ExecSyncResponse(stdout=text, exit_code=int(command == ["drain"]))

    cri.exec_sync = answer  # type: ignore[method-assign]
    given = one(HOOKS)
    async with running(cri, given, tmp_path) as plane:
        commands = PodCommands(
            plane.runner, Drainer(plane.runner, plane.runner._context), plane.runner._context, take_out
        )
        await plane.until_phases(web="Running")
        cri.may_stop.clear()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: cri.stops, "it ends")
        lines = [line for line in (await commands.explain("default", "web-n")).details if line.startswith("hook")]
        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")
        moments, containers = commands.timeline("", "web")

    assert [line[:24] for line in lines] == ["hook app/postStart: ok: ", "hook app/preStop: failed"]
    assert all(line.endswith("the password is sesame") and len(line) < 4200 for line in lines)
    assert "command exited with 1" in lines[1]
    assert "sesame" not in str([event.message for event in plane.events])
    assert "sesame" not in str(moments)
    assert (containers, moments[-1].kind) == (("app",), "stop_ended")


async def test_pods_that_need_no_network_start_without_one(cri: Slow, tmp_path: Path) -> None:
    """STA-14."""
    run_sandbox = cri.run_sandbox
    has_network = False

    async def without_network(config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
        options = config.linux.security_context.namespace_options
        if options.network != pb.NODE and not has_network:
            text = "failed to setup network for sandbox: cni plugin not initialized"
            raise RuntimeCallFailed("RunPodSandbox", text)
        return await run_sandbox(config, runtime_handler)

    cri.run_sandbox = without_network  # type: ignore[method-assign]
    given = one()
    host = text('hostNetwork: true\ncontainers: [{name: app, image: "i:1"}]')
    given.put("/m/g.yaml", host.replace(b"name: web", b"name: host"))
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases.get("host-n") == "Running", "it starts")
        await plane.until(lambda: told(plane, "NetworkNotReady"), "the other waits")
        assert plane.phases["web-n"] == "Pending"
        has_network = True
        await plane.until_phases(web="Running", host="Running")


def test_a_changed_image_has_not_failed_yet() -> None:
    """RST-03: the back-off of what it was is forgotten, that of others is not."""
    before = make_pod((make_container("app"), make_container("web"), make_container("job")))
    limits = {"limits": {"cpu": 1}}
    after = make_pod(
        (make_container("app", image="j"), make_container("web", args=["x"]), make_container("job", resources=limits))
    )
    failed = ContainerMemory(backoff=BackOff(restarts=4, tried_s=7.0))
    memory = without_outdated(Memory(containers=dict.fromkeys(("app", "web", "job"), failed)), before, after)

    assert {name: known.backoff.restarts for name, known in memory.containers.items()} == {"app": 0, "web": 4, "job": 0}


async def test_two_containers_that_have_to_end_do_so_together(cri: Slow, tmp_path: Path) -> None:
    """RST-08."""
    spec = 'containers: [{name: app, image: "i:1"}, {name: web, image: "i:1"}]'
    given = pod(spec, ", uid: u1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        cri.may_stop.clear()
        given.put("/m/f.yaml", text(spec.replace('"i:1"', '"i:1", args: [x]'), ", uid: u1"))
        await plane.until(lambda: cri.stopping == {"app", "web"}, "both end at the same time")
        cri.may_stop.set()
        await plane.until(lambda: [one.restart_count for one in plane.pod().containers] == [1, 1], "both restart")

    assert sorted(told(plane, "Killing")) == [
        "Container app definition changed, will be restarted", "Container web definition changed, will be restarted",
    ]  # fmt: skip


async def test_a_container_that_vanished_counts_as_failed(cri: Slow, tmp_path: Path) -> None:
    """CMP-07."""
    async with running(cri, one(pod_more="restartPolicy: Never"), tmp_path) as plane:
        await plane.until_phases(web="Running")
        for container_id in list(cri._containers):
            await cri.remove_container(container_id)
        plane.runner.rounds.due.set()
        await plane.until_phases(web="Failed")
        shown = container(plane)

    assert (shown.exit_code, shown.reason) == (137, "ContainerStatusUnknown")
    assert shown.message == "The container could not be located when the pod was terminated"


@pytest.mark.parametrize("is_removed_too", [False, True])
async def test_a_container_that_is_taken_out_of_its_manifest_ends_with_its_pre_stop(
    tmp_path: Path, is_removed_too: bool
) -> None:
    """FP-7: also where the whole pod ends right after."""
    cri = Hung()
    cri.hangs = set()
    both = f'containers:\n- {{name: app, image: "i:1"}}\n- {{name: extra, image: "i:1", {PRE_STOP}}}'
    given = pod(both, ", uid: u-1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases == {"web-n": "Running"}, "both run")
        given.put("/m/f.yaml", text('containers:\n- {name: app, image: "i:1"}', ", uid: u-1"))
        if is_removed_too:
            await plane.until(
                lambda: len(plane.runner.wants.reading.pods["default/web-n"].containers) == 1, "it is read"
            )
            given.put("/m/f.yaml", None)
            await plane.until(lambda: not plane.phases, "gone")
        else:
            await plane.until(lambda: cri.stops, "the container is stopped")
            await plane.rounds()
            assert plane.phases == {"web-n": "Running"}
            assert container(plane).restart_count == 0

    assert cri.asked == ["drain"]
    assert {name for name, _ in cri.stops} == ({"app", "extra"} if is_removed_too else {"extra"})


async def test_a_container_that_is_taken_out_while_its_image_comes_is_never_made(cri: Slow, tmp_path: Path) -> None:
    """FP-7: and what went wrong with it is no problem of the pod any more."""
    cri.registry.add("slow:1")
    cri.slow_images.add("slow:1")
    first = '- {name: app, image: "i:1"}'
    both = f'containers:\n{first}\n- {{name: extra, image: "slow:1"}}'
    given = pod(both, ", uid: u-1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: cri.pulling["slow:1"], "the pull hangs")
        given.put("/m/f.yaml", text(f"containers:\n{first}", ", uid: u-1"))
        await plane.until(lambda: plane.phases == {"web-n": "Running"}, "it is read")
        cri.may_pull.set()
        await plane.until(lambda: not cri.pulling["slow:1"], "the image is there")
        await plane.until_ready()
        await plane.rounds()

    assert [one.metadata.name for one in cri._containers.values()] == ["app"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
async def test_a_pod_whose_container_is_changed_in_place_is_never_shown_as_over(
    cri: Slow, tmp_path: Path, policy: str
) -> None:
    """FP-8, MAN-11: also while its new image comes."""
    cri.registry.add("slow:1")
    cri.slow_images.add("slow:1")
    given = one(pod_more=f"restartPolicy: {policy}", more=", uid: u-1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        changed = f'restartPolicy: {policy}\ncontainers: [{{name: app, image: "slow:1"}}]'
        given.put("/m/f.yaml", text(changed, ", uid: u-1"))
        await plane.until(lambda: cri.pulling["slow:1"], "it ended, and its image comes")
        assert (plane.phases, container(plane).state) == ({"web-n": "Running"}, "Waiting")
        cri.may_pull.set()
        await plane.until(lambda: container(plane).state == "Running", "it runs again")

        assert (plane.phases, container(plane).restart_count) == ({"web-n": "Running"}, 1)


@pytest.mark.parametrize("deaths", [0, 1])
async def test_a_restart_of_kepd_while_a_changed_container_ends_makes_no_difference(
    cri: Slow, tmp_path: Path, deaths: int
) -> None:
    """FP-8, TRM-31: what it ended for is written down."""
    given = one(pod_more="restartPolicy: Never", more=", uid: u-1")
    changed = text('restartPolicy: Never\ncontainers: [{name: app, image: "i:1", args: [x]}]', ", uid: u-1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        cri.may_stop.clear()
        given.put("/m/f.yaml", changed)
        await plane.until(lambda: cri.stopping, "it ends")
        if not deaths:
            cri.may_stop.set()
            await plane.until(lambda: container(plane).restart_count == 1, "it runs again")
            return
    cri.may_stop.set()
    cri.exit(next(iter(cri._containers)), 0)
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: plane.phases and container(plane).restart_count == 1, "it begins again")
        await plane.until_phases(web="Running")


class Crashing(Slow):
    """Containers fail as soon as they run."""

    def __init__(self) -> None:
        super().__init__()
        self.registry.add("i:1")

    async def start_container(self, container_id: str) -> None:
        await super().start_container(container_id)
        self.exit(container_id, 1)


async def test_a_deadline_in_a_back_off_leaves_no_sandbox_and_no_volume(tmp_path: Path) -> None:
    """FP-9: they would be held, with the address and the host ports, for as long as the record is shown."""
    cri = Crashing()
    volume = "activeDeadlineSeconds: 1\nvolumes: [{name: v, emptyDir: {}}]"
    async with running(cri, one(pod_more=volume), tmp_path / "logs") as plane:
        await plane.until_phases(web="Failed")
        await plane.until(lambda: not list((tmp_path / "logs-pods").glob("pods/*/volumes")), "the volumes are gone")

        assert {one.state for one in await cri.list_sandboxes()} == {pb.SANDBOX_NOTREADY}
        assert plane.pod().reason == "DeadlineExceeded"


async def test_without_a_sandbox_a_pod_that_is_over_holds_no_volume_either(tmp_path: Path) -> None:
    """FP-9: whatever made it end."""
    cri = Slow()
    volume = "activeDeadlineSeconds: 1\nvolumes: [{name: v, emptyDir: {}}]"

    async def refuse(_config: pb.PodSandboxConfig, _handler: str = "") -> str:
        raise RuntimeCallFailed("RunPodSandbox", "no network")

    cri.run_sandbox = refuse  # type: ignore[method-assign]
    async with running(cri, one(pod_more=volume), tmp_path / "logs") as plane:
        await plane.until(lambda: list((tmp_path / "logs-pods").glob("pods/*/volumes")), "the volumes are there")
        await plane.until_phases(web="Failed")
        await plane.until(lambda: not list((tmp_path / "logs-pods").glob("pods/*/volumes")), "the volumes are gone")


async def test_a_deadline_is_told(cri: Slow, tmp_path: Path) -> None:
    """STS-04."""
    async with running(cri, one(pod_more="activeDeadlineSeconds: 1"), tmp_path) as plane:
        await plane.until_phases(web="Failed")
        shown = plane.pod()

    assert (shown.reason, shown.message) == (
        "DeadlineExceeded", "Pod was active on the node longer than the specified deadline",
    )  # fmt: skip
    assert told(plane, "DeadlineExceeded") == [shown.message]


async def test_dead_instances_and_sandboxes_are_collected(cri: Slow, tmp_path: Path) -> None:
    """GC-01, GC-02: one dead instance of each is kept, and the newest sandbox."""
    async with running(cri, one(), tmp_path, events=News(cri), curve=AT_ONCE) as plane:
        await plane.until_phases(web="Running")
        for attempt in (1, 2, 3):
            cri.exit(next(one.id for one in cri._containers.values() if one.state == pb.CONTAINER_RUNNING), 1)
            await plane.until(lambda count=attempt: container(plane).restart_count == count, "it restarts")
        await plane.until(lambda: len(cri._containers) == 2, "older ones are gone")
        kept = sorted(one.metadata.attempt for one in cri._containers.values())
        await cri.stop_sandbox(next(iter(cri._sandboxes)))
        await plane.until(
            lambda: [one.metadata.attempt for one in cri._sandboxes.values() if one.state == pb.SANDBOX_READY] == [1],
            "a new sandbox",
        )
        await plane.until_phases(web="Running")

    assert kept == [2, 3]


def state(*containers: ContainerState, phase: str = "Running", **fields: Any) -> str:
    return PodState(namespace="d", name="p", uid="u", phase=phase, containers=containers, **fields).status


def shown(state_: str, reason: str = "", name: str = "a", kind: str = "main", **fields: Any) -> ContainerState:
    return ContainerState(name=name, image="i", kind=kind, state=state_, reason=reason, **fields)


@pytest.mark.parametrize(
    ("word", "actual"),
    [
        ("Running", state(shown("Running"))),
        ("CrashLoopBackOff", state(shown("Waiting", "CrashLoopBackOff"), shown("Running"))),
        ("Error", state(shown("Terminated", "Error"), shown("Running"))),
        ("NotReady", state(shown("Terminated", "Completed"), shown("Running", is_ready=True))),
        ("Completed", state(shown("Terminated", "Completed"), phase="Succeeded")),
        ("Init:0/1", state(shown("Waiting", "PodInitializing", kind="init"), phase="Pending")),
        ("Init:Error", state(shown("Terminated", "Error", kind="init", exit_code=1), phase="Pending")),
        ("Init:ExitCode:3", state(shown("Terminated", "", kind="init", exit_code=3), phase="Pending")),
        ("Init:CrashLoopBackOff", state(shown("Waiting", "CrashLoopBackOff", kind="init"), phase="Pending")),
        (
            "Init:1/2",
            state(
                shown("Running", kind="sidecar", is_started=True), shown("Running", kind="init"), phase="Pending"
            ),
        ),
        ("Terminating", state(shown("Running"), is_terminating=True)),
        ("Evicted", state(shown("Terminated", "Error"), phase="Failed", reason="Evicted")),
    ],
)  # fmt: skip
def test_the_word_of_lists_is_kubectls(word: str, actual: str) -> None:
    """STS-03."""
    assert word == actual


async def test_a_sandbox_is_made_anew_after_everything_in_it_has_ended(cri: Slow, tmp_path: Path) -> None:
    """SBX-02: running containers end, inits and sidecars are removed, and it is told."""
    given = pod(
        'initContainers: [{name: net, image: "i:1", restartPolicy: Always}]\ncontainers: [{name: app, image: "i:1"}]'
    )
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        before = {one.metadata.name: one.id for one in cri._containers.values()}
        # The sandbox dies, and what runs in it goes on.
        (sandbox,) = cri._sandboxes.values()
        sandbox.state = pb.SANDBOX_NOTREADY
        plane.runner.rounds.due.set()
        await plane.until(lambda: len(cri._sandboxes) == 2, "another one")
        await plane.until_phases(web="Running")

    assert {name for name, _ in cri.stops} == {"app", "net"}
    assert before["net"] not in cri._containers
    assert told(plane, "SandboxChanged") == ["Pod sandbox changed, it will be killed and re-created."]


class BehindItsNews(Slow):
    """Tells of the end of a sandbox before its lists have it, as containerd does."""

    stale = 0

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        found, self.stale = await super().list_sandboxes(), self.stale - 1
        if self.stale >= 0:
            for one in found:
                one.state = pb.SANDBOX_READY
        return found


async def test_news_of_a_sandbox_are_followed_until_lists_know_of_them(tmp_path: Path) -> None:
    """SBX-02."""
    cri, given = BehindItsNews(), pod('containers: [{name: app, image: "i:1"}]')
    cri.registry.add("i:1")
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        (sandbox,) = cri._sandboxes.values()
        sandbox.state, cri.stale = pb.SANDBOX_NOTREADY, 2
        cri._tell(EventKind.STOPPED, sandbox.id, 0)
        await plane.until(lambda: len(cri._sandboxes) == 2, "another one")
        await plane.until_phases(web="Running")


def test_an_init_that_is_no_more_was_done_in_an_initialised_pod() -> None:
    """SBX-07."""
    world = World(make_pod(("app",), ("one",)), {"one": [Runs(1, 0)]}).run(5)
    world.seen = replace(world.seen, instances=tuple(one for one in world.seen.instances if one.name == "app"))
    (first, _) = pod_status(Look(pod=world.pod, seen=world.seen, memory=world.memory)).containers

    assert (first.state, first.reason, first.exit_code) == ("Terminated", "Completed", 0)


def test_a_sidecar_that_cannot_start_blocks_what_comes_after_it() -> None:
    """STA-05."""
    world = World(make_pod(("app",), ("+net", "late")), fails={"net": "ErrImagePull"})
    world.settle()

    assert world.starts() == []
    world.fails.clear()
    world.behaves = {"late": [Runs(1, 0)]}
    world.run(20)
    assert [line.split(" ", 1)[1] for line in world.starts()] == ["start net", "start late", "start app"]


def test_with_grace_zero_sidecars_of_a_finished_pod_have_two_seconds_and_no_order() -> None:
    """CMP-04: this is no force."""
    members = [Member(name=name, kind=ContainerKind.SIDECAR) for name in ("net", "log")]
    waits = waits_for_end(members)
    endings = [ContainerEnding(name=one.name, kind=one.kind, hook="exec", waits_for=waits[one.name]) for one in members]
    stop = begin_stop(Trigger.COMPLETE, endings, 0.0, 0.0)
    happenings = forecast_stop(stop, {"net": Assumption(), "log": Assumption(exit_after_s=1)})

    assert [(one.at_s, one.event, one.container) for one in happenings] == [
        (0.0, "stop_signal", "net"), (0.0, "stop_signal", "log"), (1.0, "exit", "log"), (2.0, "sigkill", "net"),
        (2.0, "exit", "net"), (2.0, "sandbox_stop", ""),
    ]  # fmt: skip


async def test_a_hook_over_the_budget_is_told(tmp_path: Path) -> None:
    """TRM-28; TRM-02: each running container is told at once that it ends."""
    cri = Hung()
    cri.hangs = {"drain"}
    given = one(HOOKS, pod_more="terminationGracePeriodSeconds: 1")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")

    assert told(plane, "Killing") == ["Stopping container app"]
    assert told(plane, "FailedPreStopHook") == ["PreStopHook did not complete in 1s"]


async def test_who_ends_by_itself_runs_no_pre_stop(tmp_path: Path) -> None:
    """HOK-05."""
    cri = Hung()
    cri.hangs = set()
    async with running(cri, one(HOOKS, pod_more="restartPolicy: Never"), tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        cri.exit(next(iter(cri._containers)), 0)
        await plane.until_phases(web="Succeeded")

    assert cri.asked == ["begin"]


async def test_a_finished_pod_holds_no_devices(cri: Slow, tmp_path: Path) -> None:
    """DVM-19: its record stays, and its claims are given back at once."""

    class Given(NoDevices):
        def __init__(self) -> None:
            self.released: list[str] = []

        async def release(self, uid: str) -> None:
            assert not any(one.state == pb.CONTAINER_RUNNING for one in cri._containers.values())
            self.released.append(uid)

    devices = Given()
    given = one(pod_more="restartPolicy: Never")
    async with running(cri, given, tmp_path, events=News(cri), devices=devices) as plane:
        await plane.until_phases(web="Running")
        assert devices.released == []
        cri.exit(next(iter(cri._containers)), 0)
        await plane.until_phases(web="Succeeded")

        await plane.until(lambda: devices.released, "its devices are given back")
        assert devices.released == [plane.pod().uid]


async def test_a_finished_pod_holds_no_volumes(cri: Slow, tmp_path: Path) -> None:
    """TRM-18: its record stays, what it was given does not."""
    given = pod(
        "restartPolicy: Never\nvolumes: [{name: v, emptyDir: {}}]\n"
        'containers: [{name: app, image: "i:1", volumeMounts: [{name: v, mountPath: /v}]}]'
    )
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        home = plane.runner._context.files.of(plane.pod().uid)
        assert list((home / "volumes").iterdir())
        cri.exit(next(iter(cri._containers)), 0)
        await plane.until_phases(web="Succeeded")

        await plane.until(lambda: not (home / "volumes").exists(), "its volumes are removed")
        assert home.is_dir()
