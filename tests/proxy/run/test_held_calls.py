# SPDX-License-Identifier: Apache-2.0
"""Holds from the door to the end, on a virtual clock: what the link is told, and what the ledger learns."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import structlog

from agent.host.joints.proxy_pods import stop_order
from agent.model.images.pull import CallerPullEnd, PullGivenUp, PullsAway
from agent.model.pods.ending import EndingPods
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.proxy.frames.layout import END_STREAM, data_frame, framed, message_in
from agent.proxy.frames.routes import ROUTES
from agent.proxy.gates.ledger import GRACE, PRE_STOP, LedgerState
from agent.proxy.gates.stop import StopRules
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from agent.proxy.run.event_follower import EventFollower
from agent.proxy.run.figures import Figures
from agent.proxy.run.held_calls import HeldCalls
from agent.proxy.run.judge import GateJudge
from agent.proxy.run.readiness import Readiness
from agent.proxy.run.state import ProxySettings, ProxyState
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.cri import FakeCri

IMAGE = "registry.example/x:1"
SETTINGS = ProxySettings(StopRules(stop_order))
NOTES = {"kepd.dev/sidecars": "side", "kepd.dev/mains": "main"}


@dataclass
class Line:
    """A link that writes down what it is told."""

    released: bytes | None = None
    refused: Refusal | None = None
    at_s: float | None = None
    clock: FakeClock | None = None

    def release(self, call: ProxyCall, frames: Sequence[bytes]) -> None:
        self.released, self.at_s = b"".join(frames), self.clock.now_s() if self.clock else None

    def refuse(self, call: ProxyCall, refusal: Refusal) -> None:
        self.refused, self.at_s = refusal, self.clock.now_s() if self.clock else None


@dataclass
class Files:
    content: dict[str, bytes] = field(default_factory=dict)

    async def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    async def write(self, name: str, content: bytes) -> None:
        self.content[name] = content

    async def set_aside(self, name: str) -> str:
        self.content[f"{name}.aside"] = self.content.pop(name)
        return f"{name}.aside"


class Pulls:
    """A queue with one slot that a test opens."""

    def __init__(self) -> None:
        self.slot = asyncio.Event()
        self.error: Exception | None = None
        self.carried: list[CallerPullEnd] = []

    async def run_caller_pull(self, request, fingerprint, carry) -> None:
        if self.error is not None:
            raise self.error
        await self.slot.wait()
        self.carried.append(await carry())

    is_busy = False
    asked: tuple[str, float] = ("", 0.0)

    async def settled(self, image: str, longest_s: float) -> None:
        self.asked = (image, longest_s)
        await self.slot.wait()


class Events:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue()

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        while True:
            yield await self.queue.get()


class Asker:
    is_open = False

    async def tcp_connect(self, host: str, port: int) -> None:
        if not self.is_open:
            raise ConnectionRefusedError


class House:
    """Everything behind the links."""

    def __init__(self) -> None:
        self.clock, self.cri, self.files, self.events = FakeClock(), FakeCri(), Files(), Events()
        self.asker, self.pulls, self.told, self.settings = Asker(), Pulls(), [], SETTINGS
        self.endings = EndingPods()
        self.state = ProxyState(self.clock, self.told.append, lambda: self.settings, Figures(), self.endings)
        self.readiness = readiness = Readiness(self.state, self.cri, self.asker)
        self.held_calls = HeldCalls(self.state, self.cri, lambda: self.pulls)
        self.follower = EventFollower(self.state, self.cri, readiness, self.events, self.files)
        self.judge = GateJudge(self.state, self.held_calls, readiness)
        self.ids: dict[str, str] = {}

    def ask(self, method: str, request, deadline_s: float | None = 120.0) -> tuple[Verdict | Refusal, ProxyCall, Line]:
        """A request at the door."""
        path = next(path for path, route in ROUTES.items() if route.name == method)
        line, now_s = Line(clock=self.clock), self.clock.now_s()
        message = request.SerializeToString()
        call = ProxyCall(line, 1, path.decode(), ROUTES[path], now_s, now_s + deadline_s if deadline_s else None)
        call.request = bytearray(framed(message))
        call.answer = bytearray()
        verdict = self.judge.judge(call, message)
        if verdict == Verdict.HOLD:
            call.keep_back(END_STREAM, data_frame(1, framed(message), ends=True))
        return verdict, call, line

    def end(self, call: ProxyCall, answer=None, code: int = 0) -> None:
        """The runtime answers."""
        call.code, call.is_over, call.held = code, True, None
        call.answer = bytearray(framed(answer.SerializeToString())) if answer is not None else bytearray()
        self.judge.finish(call)

    def config(self, notes=NOTES) -> pb.PodSandboxConfig:
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="pod", namespace="default", uid="u"), annotations=notes
        )

    async def sandbox(self, notes=NOTES) -> None:
        self.cri.registry.add(IMAGE)
        await self.cri.pull_image(IMAGE)
        sandbox_id = await self.cri.run_sandbox(self.config(notes))
        _, call, _ = self.ask("RunPodSandbox", pb.RunPodSandboxRequest(config=self.config(notes)))
        self.end(call, pb.RunPodSandboxResponse(pod_sandbox_id=sandbox_id))
        self.ids["sandbox"] = sandbox_id

    def container_config(self, name: str) -> pb.ContainerConfig:
        image = pb.ImageSpec(image=IMAGE)
        return pb.ContainerConfig(metadata=pb.ContainerMetadata(name=name), image=image, annotations={GRACE: "30"})

    def create(self, name: str, notes=NOTES, deadline_s: float | None = 120.0):
        request = pb.CreateContainerRequest(
            pod_sandbox_id=self.ids["sandbox"], config=self.container_config(name), sandbox_config=self.config(notes)
        )
        return self.ask("CreateContainer", request, deadline_s)

    async def run(self, name: str, notes=NOTES) -> str:
        """Made and started without a hold."""
        verdict, call, _ = self.create(name, notes)
        assert verdict == Verdict.PASS
        container_id = await self.cri.create_container(
            self.ids["sandbox"], self.container_config(name), self.config(notes)
        )
        self.end(call, pb.CreateContainerResponse(container_id=container_id))
        await self.cri.start_container(container_id)
        verdict, call, _ = self.ask("StartContainer", pb.StartContainerRequest(container_id=container_id))
        assert verdict == Verdict.PASS
        self.end(call)
        self.ids[name] = container_id
        return container_id

    def stop(self, name: str, timeout_s: int = 30):
        request = pb.StopContainerRequest(container_id=self.ids[name], timeout=timeout_s)
        return self.ask("StopContainer", request, 150)

    async def exit(self, name: str, code: int = 0) -> None:
        self.cri.exit(self.ids[name], code)
        await self.follower._take(RuntimeEvent(EventKind.STOPPED, self.ids[name], exit_code=code))
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def state() -> AsyncIterator[House]:
    made = House()
    async with asyncio.TaskGroup() as group:
        made.state.group = group
        for work in (made.follower.follow(), made.held_calls.watch()):
            group.create_task(work)
        made.events.queue.put_nowait(RuntimeEvent(EventKind.LOST))
        await made.follower.recover()
        yield made
        made.state.group = None
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def timeout_of(line: Line) -> int:
    assert line.released is not None
    message = message_in(line.released[9:])
    assert message is not None
    return pb.StopContainerRequest.FromString(message).timeout


async def made_by_an_earlier_process(state: House) -> str:
    """A main that runs, and a sidecar whose start is on its way; its id."""
    await state.sandbox()
    for name in ("main", "side"):
        state.ids[name] = await state.cri.create_container(
            state.ids["sandbox"], state.container_config(name), state.config()
        )
    await state.cri.start_container(state.ids["main"])
    return state.ids["side"]


async def test_a_start_that_takes_effect_after_the_lists_were_read_counts(state: House) -> None:
    """REC-1: an earlier process passed it on and was killed. Its sidecar is no less one that has to wait."""
    side = await made_by_an_earlier_process(state)
    await state.follower._take(RuntimeEvent(EventKind.LOST))
    await state.cri.start_container(side)
    await state.follower._take(RuntimeEvent(EventKind.STARTED, side))

    assert state.stop("main")[0] == Verdict.PASS
    assert state.stop("side")[0] == Verdict.HOLD
    await settle()


async def test_what_happens_while_the_lists_are_read_is_not_missed() -> None:
    """REC-1: events that come before the state is known mean that it is looked at once more."""
    made = House()
    async with asyncio.TaskGroup() as group:
        made.state.group = group
        side = await made_by_an_earlier_process(made)
        ask = made.follower._ask_exit_codes

        async def slowly() -> None:
            if made.state.ledger.find(side)[1].state is LedgerState.CREATED:
                await made.cri.start_container(side)
                await made.follower._take(RuntimeEvent(EventKind.STARTED, side))
            await ask()

        made.follower._ask_exit_codes = slowly
        made.follower._listening.set()
        await made.follower.recover()

        assert made.state.ledger.find(side)[1].is_running
        assert made.stop("main")[0] == Verdict.PASS
        assert made.stop("side")[0] == Verdict.HOLD
        await settle()
        made.state.group = None
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


@pytest.mark.parametrize("moment", ["list_sandboxes", "list_containers"])
async def test_what_a_call_did_while_the_lists_were_read_is_newer_than_they(state: House, moment: str) -> None:
    """REC-1: a feed that has settled asks for one more look, just when a kubelet makes its first pods."""
    await state.sandbox()
    gone = await state.run("side")
    read = getattr(state.cri, moment)

    async def read_late() -> object:
        seen = await read()
        setattr(state.cri, moment, read)
        await state.exit("side")
        request = pb.RemoveContainerRequest(container_id=gone)
        state.end(state.ask("RemoveContainer", request)[1])
        await state.cri.remove_container(gone)
        await state.run("side")
        return seen

    setattr(state.cri, moment, read_late)
    await state.follower._take(RuntimeEvent(EventKind.LOST))

    (sandbox,) = state.state.ledger.sandboxes.values()
    assert {one.id: one.state for one in sandbox.containers.values()} == {state.ids["side"]: LedgerState.RUNNING}
    assert state.create("main")[0] == Verdict.PASS


async def test_what_ended_in_no_event_after_it_was_left_alone_is_found(state: House) -> None:
    """REC-1: the lists may as well be newer than the call. So there is one more look."""
    notes = {**NOTES, "kepd.dev/job-end": "success"}
    await state.sandbox(notes)
    side = await state.run("side", notes)
    read = state.cri.list_containers

    async def read_late() -> object:
        state.cri.list_containers = read
        state.cri.exit(await state.run("main", notes), 0)
        return await read()

    state.cri.list_containers = read_late
    await state.follower._take(RuntimeEvent(EventKind.LOST))
    await state.clock.advance(2.0)
    await settle()

    assert (await state.cri.container_status(side)).state == pb.CONTAINER_EXITED


async def test_a_sandbox_made_while_the_lists_were_read_stays(state: House) -> None:
    """REC-1."""
    await state.sandbox()
    await state.run("side")
    read = state.cri.list_sandboxes

    async def read_early() -> object:
        seen = await read()
        request = pb.RunPodSandboxRequest(config=state.config())
        state.end(state.ask("RunPodSandbox", request)[1], pb.RunPodSandboxResponse(pod_sandbox_id="second"))
        return seen

    state.cri.list_sandboxes = read_early
    await state.follower._take(RuntimeEvent(EventKind.LOST))

    assert set(state.state.ledger.sandboxes) == {state.ids["sandbox"], "second"}


async def test_a_held_create_goes_on_when_its_sidecar_is_ready(state: House) -> None:
    """ORD-4, ORD-9."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80"}
    await state.sandbox(notes)
    await state.run("side", notes)
    verdict, _, line = state.create("main", notes)
    assert verdict == Verdict.HOLD
    await state.clock.advance(2.0)
    assert (line.released, line.refused) == (None, None)
    state.asker.is_open = True
    await state.clock.advance(0.4)

    assert line.released is not None
    assert state.state.holds == {}


async def test_an_open_pod_starts_after_its_time_and_says_so(state: House) -> None:
    """ORD-4."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80", "kepd.dev/start-timeout": "5s"}
    await state.sandbox(notes)
    await state.run("side", notes)
    _, _, line = state.create("main", notes)
    await state.clock.advance(5.1)

    assert line.released is not None
    assert [one.reason for one in state.told] == ["StartGateOpened"]


async def test_what_was_made_after_its_time_is_started_at_once(state: House) -> None:
    """ORD-4, ORD-6: the time of a main is one, though making and starting it are two calls."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80", "kepd.dev/start-timeout": "5s"}
    await state.sandbox(notes)
    await state.run("side", notes)
    _, call, _ = state.create("main", notes)
    await state.clock.advance(5.1)
    state.end(call, pb.CreateContainerResponse(container_id="m1"))

    assert state.ask("StartContainer", pb.StartContainerRequest(container_id="m1"))[0] == Verdict.PASS
    assert [one.reason for one in state.told] == ["StartGateOpened"]


async def test_the_end_of_a_pod_ends_the_wait_of_its_main(state: House) -> None:
    """ORD-8, PRX-41: the kubelet waits for this call before it stops anything; a main that comes then is refused."""
    state.endings._listeners.append(state.held_calls.pod_ends)
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80"}
    await state.sandbox(notes)
    await state.run("side", notes)
    _, _, line = state.create("main", notes)
    await state.clock.advance(1.0)
    state.endings.note("u")
    await settle()
    refusal = Refusal(14, "kepd: waiting for sidecar side")

    assert line.refused == refusal
    assert state.create("main", notes)[0] == refusal
    assert state.state.holds == {}


async def test_a_sidecar_that_dies_meanwhile_ends_the_wait(state: House) -> None:
    """ORD-5."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80"}
    await state.sandbox(notes)
    await state.run("side", notes)
    _, _, line = state.create("main", notes)
    await settle()
    await state.exit("side", 1)

    assert line.refused == Refusal(14, "kepd: waiting for sidecar side")


@pytest.mark.parametrize("is_late", [False, True], ids=["known before the stop", "known after it"])
async def test_a_sidecar_whose_pod_is_known_to_end_waits_for_its_mains(state: House, is_late: bool) -> None:
    """STO-3 (d): an older kubelet that stops the containers one after the other gives no other sign."""
    state.endings._listeners.append(state.held_calls.pod_ends)
    await state.sandbox(NOTES)
    await state.run("side", NOTES)
    await state.run("main", NOTES)
    if not is_late:
        state.endings.note("u")
    _, _, line = state.stop("side")
    if is_late:
        await state.clock.advance(0.5)
        state.endings.note("u")
    await state.clock.advance(3.0)
    assert line.released is None
    await state.exit("main")

    assert timeout_of(line) == (26 if is_late else 27)


async def test_a_sidecar_of_a_pod_that_nobody_ends_is_restarted_soon(state: House) -> None:
    """STO-3: a probe's kill costs a second."""
    state.endings.note("another")
    await state.sandbox(NOTES)
    await state.run("side", NOTES)
    await state.run("main", NOTES)
    _, _, line = state.stop("side")
    await state.clock.advance(1.1)

    assert timeout_of(line) == 29


@pytest.mark.parametrize("method", ["StopPodSandbox", "RemovePodSandbox", "RemoveContainer"])
async def test_the_end_of_the_sandbox_ends_every_hold(state: House, method: str) -> None:
    """NOH-3, ORD-8, STO-7."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80", "kepd.dev/prestop-sleep.side": "20s"}
    await state.sandbox(notes)
    await state.run("side", notes)
    _, _, created = state.create("main", notes)
    _, _, stopped = state.stop("side")
    await settle()
    assert len(state.state.holds) == 2
    if method == "RemoveContainer":
        request = pb.RemoveContainerRequest(container_id=state.ids["side"])
    else:
        request = getattr(pb, f"{method}Request")(pod_sandbox_id=state.ids["sandbox"])
    assert state.ask(method, request)[0] == Verdict.PASS
    await settle()

    assert stopped.released is not None
    assert created.released is not None or created.refused is not None


async def test_a_sidecar_waits_for_its_main_and_gets_the_rest(state: House) -> None:
    """STO-1, STO-2, STO-5."""
    await state.sandbox()
    await state.run("side")
    await state.run("main")
    verdict, _, line = state.stop("side", 8)
    assert verdict == Verdict.HOLD
    assert state.stop("main", 8)[0] == Verdict.PASS
    await state.clock.advance(3.2)
    await state.exit("main")

    assert timeout_of(line) == 4
    assert state.state.figures.holds.number(("StopContainer", "order")) == 1


async def test_a_budget_that_ends_first_is_told(state: House) -> None:
    """STO-1, StopHoldExpired."""
    await state.sandbox()
    await state.run("side")
    await state.run("main")
    _, _, line = state.stop("side", 8)
    state.stop("main", 8)
    await state.clock.advance(6.1)

    assert timeout_of(line) == 2
    assert [one.reason for one in state.told] == ["StopHoldExpired"]


async def test_two_stops_of_one_container_share_the_earlier_end(state: House) -> None:
    """STO-6: a kubelet that was restarted asks again with less."""
    await state.sandbox()
    await state.run("side")
    await state.run("main")
    _, _, first = state.stop("side", 30)
    state.stop("main", 30)
    await state.clock.advance(4.0)
    _, _, second = state.stop("side", 5)
    await state.clock.advance(3.1)

    assert first.released is not None
    assert second.released is not None
    assert (timeout_of(first), timeout_of(second)) == (23, 2)


async def test_a_sleep_ends_with_its_container(state: House) -> None:
    """SLP-2."""
    notes = {"kepd.dev/prestop-sleep.main": "20s"}
    await state.sandbox(notes)
    await state.run("main", notes)
    verdict, _, line = state.stop("main")
    assert verdict == Verdict.HOLD
    await state.clock.advance(3.0)
    await state.exit("main")

    assert timeout_of(line) == 27


async def test_masks_are_on_the_disk_before_the_stop_is_sent(state: House) -> None:
    """REC-4, JOB-3: a kill between the two leaves no exit that makes the Job fail."""
    notes = {**NOTES, "kepd.dev/job-end": "success"}
    await state.sandbox(notes)
    side = await state.run("side", notes)
    await state.run("main", notes)
    seen: list[bytes | None] = []
    stop = state.cri.stop_container

    async def noted(container_id: str, grace_s: int) -> None:
        seen.append(state.files.content.get("masks.json"))
        await stop(container_id, grace_s)

    state.cri.stop_container = noted  # type: ignore[method-assign]
    await state.exit("main", 0)

    assert state.state.masks == {side: state.ids["sandbox"]}
    assert [side.encode() in (content or b"") for content in seen] == [True]


async def test_a_sidecar_that_crashes_before_its_turn_shows_its_own_code(state: House) -> None:
    """FI-18: all due sidecars were masked at once, then stopped one by one; a crash in between showed 0."""
    notes = {**NOTES, "kepd.dev/sidecars": "first,second", "kepd.dev/job-end": "success"}
    await state.sandbox(notes)
    first, second = await state.run("first", notes), await state.run("second", notes)
    await state.run("main", notes)
    stop, stopped = state.cri.stop_container, []

    async def slowly(container_id: str, grace_s: int) -> None:
        stopped.append(container_id)
        await state.exit("first", 3)
        await stop(container_id, grace_s)

    state.cri.stop_container = slowly  # type: ignore[method-assign]
    await state.exit("main", 0)
    await settle()
    home = state.ids["sandbox"]

    assert stopped == [second], "the last one first; the other has ended by itself"
    assert state.state.masks == {second: home}
    assert first.encode() not in state.files.content["masks.json"]


@pytest.mark.parametrize(("hook_s", "left_s"), [(4.0, 26), (100.0, 2), (None, 30)])
async def test_a_hook_runs_before_a_sidecar_is_ended_out_of_one_grace(
    state: House, hook_s: float | None, left_s: int
) -> None:
    """JOB-3: a kubelet would not run it, for the stop is not its own."""
    notes = {**NOTES, "kepd.dev/job-end": "success"}
    await state.sandbox(notes)
    side = await state.run("side", notes)
    await state.run("main", notes)
    done: list[object] = []

    async def hook(container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        done.append((container_id, command, timeout_s))
        await state.clock.sleep(min(hook_s or 0.0, timeout_s))
        return pb.ExecSyncResponse()

    async def stop(container_id: str, grace_s: int) -> None:
        done.append((container_id, grace_s))

    state.cri.exec_sync, state.cri.stop_container = hook, stop  # type: ignore[method-assign]
    (sandbox,) = state.state.ledger.sandboxes.values()
    if hook_s is not None:
        sandbox.containers[side].annotations = {GRACE: "30", PRE_STOP: '{"exec": {"command": ["bye"]}}'}
    await state.exit("main", 0)
    await state.clock.advance(200)

    assert done == ([(side, ["bye"], 28)] if hook_s is not None else []) + [(side, left_s)]


async def test_a_process_that_starts_anew_knows_what_the_last_one_knew(state: House) -> None:
    """REC-1 to REC-4: mains started, exit codes, masks; and nothing that is gone."""
    notes = {**NOTES, "kepd.dev/job-end": "success"}
    await state.sandbox(notes)
    side = await state.run("side", notes)
    await state.run("main", notes)
    state.cri.exit(state.ids["main"], 0)
    later = House()
    later.cri = state.cri
    later.files.content["masks.json"] = b'{"version":1,"containers":{"gone":"s","%b":"s"}}' % side.encode()
    readiness = Readiness(later.state, later.cri, later.asker)
    follower = EventFollower(later.state, later.cri, readiness, later.events, later.files)
    await follower.load_masks()
    follower._listening.set()
    await follower.recover()
    (sandbox,) = later.state.ledger.sandboxes.values()
    main = sandbox.current("main")

    assert sandbox.has_started_main
    assert main is not None
    assert main.exit_code == 0
    assert later.state.masks == {side: "s"}
    async with asyncio.TaskGroup() as group:
        later.state.group = group
        follower.end_jobs()
    status = await later.cri.container_status(side)
    assert status.state == pb.CONTAINER_EXITED, "killed between mask and stop, the stop follows"


async def test_damaged_masks_are_kept_aside(state: House) -> None:
    state.files.content["masks.json"] = b"garbage"
    await state.follower.load_masks()

    assert state.files.content == {"masks.json.aside": b"garbage"}


# pulls


PULL = pb.PullImageRequest(image=pb.ImageSpec(image="registry.example/a:1"), auth=pb.AuthConfig(password="x"))


async def test_a_pull_goes_on_with_its_slot_and_keeps_it_until_the_answer(state: House) -> None:
    """IMG-X01, IMG-X04."""
    verdict, call, line = state.ask("PullImage", PULL, None)
    assert verdict == Verdict.HOLD
    await state.clock.advance(1000.0)
    assert line.released is None
    state.pulls.slot.set()
    await settle()
    assert line.released is not None
    assert state.pulls.carried == []
    state.end(call, pb.PullImageResponse(image_ref="sha256:1"))
    await settle()

    assert state.pulls.carried == [CallerPullEnd(image_id="sha256:1")]


async def test_a_credential_is_shown_nowhere_while_its_pull_waits(state: House) -> None:
    """PRT-5."""
    secret = pb.PullImageRequest(
        image=pb.ImageSpec(image="registry.example/a:1"), auth=pb.AuthConfig(password="s3cr3t")
    )
    _, call, _ = state.ask("PullImage", secret, None)
    await settle()

    assert "s3cr3t" not in repr(call) + repr(state.state.holds) + repr(call.request)


async def test_the_error_of_a_kubelets_pull_is_kept_without_its_secrets(state: House) -> None:
    """FI-12: `kepctl get pulls` shows it to readers."""
    request = pb.PullImageRequest(
        image=pb.ImageSpec(image="registry.example/a:1"), auth=pb.AuthConfig(username="u", password="long-password")
    )
    _, call, _ = state.ask("PullImage", request, None)
    state.pulls.slot.set()
    await settle()
    call.text = "Get https://cdn.example/b?sig=signed: refused \x1b[31m long-password"
    state.end(call, code=2)
    await settle()

    assert state.pulls.carried == [CallerPullEnd(error="Get https://cdn.example/b?*** refused ?[31m ***")]


async def test_an_image_that_is_being_pulled_is_removed_after_that(state: House) -> None:
    """IMG-G15: within the kubelet's own deadline; without pulls a removal passes at once."""
    request = pb.RemoveImageRequest(image=pb.ImageSpec(image="sha256:a"))
    at_once, _, _ = state.ask("RemoveImage", request)
    state.pulls.is_busy = True
    verdict, _, line = state.ask("RemoveImage", request)
    await state.clock.advance(5)
    before = line.released
    state.pulls.slot.set()
    await state.clock.advance(1)

    assert (at_once, verdict, before) == (Verdict.PASS, Verdict.HOLD, None)
    assert line.released is not None
    assert state.pulls.asked == ("sha256:a", 90.0)
    assert not state.state.holds


async def test_a_pull_that_its_kubelet_gives_up_leaves_the_queue(state: House) -> None:
    """IMG-X05."""
    _, call, line = state.ask("PullImage", PULL, None)
    await settle()
    call.code, call.is_over = None, True
    state.judge.finish(call)
    await settle()

    assert (line.released, state.state.holds) == (None, {})


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (PullsAway(), None),
        (PullGivenUp("its pod is gone"), Refusal(1, "kepd: its pod is gone")),
        (RuntimeError("a defect"), None),
    ],
)
async def test_pulls_pass_when_the_queue_fails(state: House, error: Exception, refusal: Refusal | None) -> None:
    """IMG-X12, IMG-X04."""
    state.pulls.error = error
    _, _, line = state.ask("PullImage", PULL, None)
    await settle()

    assert line.refused == refusal
    assert (line.released is not None) == (refusal is None)
    assert sum(state.state.figures.policy_errors.values()) == (refusal is None)


async def test_a_node_that_wants_no_pull_without_the_queue_gets_none(state: House) -> None:
    """IMG-X12: proxy.failOpen false."""
    state.settings = ProxySettings(StopRules(stop_order), fails_open=False)
    state.pulls.error = PullsAway()
    _, _, line = state.ask("PullImage", PULL, None)
    await settle()

    assert line.released is None
    assert line.refused is not None
    assert line.refused.code == 14


# what goes wrong in here


async def test_the_watchdog_opens_what_no_gate_opened(state: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that never comes: opened before the kubelet gives the call up, and counted."""
    notes = {**NOTES, "kepd.dev/ready.side": "tcp:80", "kepd.dev/start-timeout": "10s"}
    await state.sandbox(notes)
    await state.run("side", notes)

    async def never(_sandbox_id: str, _until_s: float | None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(state.state, "change", never)
    _, call, line = state.create("main", notes)
    await state.clock.advance(14.0)

    assert line.released is not None
    assert call.deadline_s is not None
    assert line.at_s is not None
    assert line.at_s < call.deadline_s - 100
    assert state.state.figures.policy_errors["watchdog"] == 1


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_defect_of_ours_lets_the_call_pass_unless_told_otherwise(state: House, is_open: bool) -> None:
    """PRX-53."""
    await state.sandbox()
    state.settings = ProxySettings(StopRules(stop_order), fails_open=is_open)

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    state.held_calls.create = broken  # type: ignore[method-assign, assignment]
    state.judge = GateJudge(state.state, state.held_calls, state.readiness)
    verdict, _, _ = state.create("main")

    assert (verdict == Verdict.PASS) == is_open
    assert sum(state.state.figures.policy_errors.values()) == 1


async def test_what_nobody_can_read_passes(state: House) -> None:
    """PRX-53: a request that is no message, and one without what it needs."""
    for path, route in ROUTES.items():
        for message in (b"\xff\xff kepd.dev/", b"", b"\x0a\x00"):
            line = Line()
            call = ProxyCall(line, 1, path.decode(), route, 0.0)
            call.request = bytearray(framed(message))

            if route.name != "PullImage":
                assert state.judge.judge(call, message) == Verdict.PASS
    assert sum(state.state.figures.policy_errors.values()) == 0


async def test_an_ending_proxy_holds_nothing_new(state: House) -> None:
    """PRX-51."""
    await state.sandbox({**NOTES, "kepd.dev/prestop-sleep.side": "20s"})
    await state.run("side")
    state.state.is_ending = True
    assert state.stop("side")[0] == Verdict.PASS
    assert state.ask("PullImage", PULL, None)[0] == Verdict.PASS
    state.state.refuses_pulls = True

    assert isinstance(state.ask("PullImage", PULL, None)[0], Refusal)


async def test_a_runtime_that_is_away_is_asked_ever_more_rarely_and_told_once() -> None:
    """98 lines in 20 s, without a pause."""
    house = House()
    asked: list[float] = []

    async def away():
        asked.append(house.clock.now_s())
        raise RuntimeCallFailed("ListPodSandbox", "connection refused", "UNAVAILABLE")

    house.cri.list_sandboxes = away
    house.follower._listening.set()
    with structlog.testing.capture_logs() as lines:
        recovering = asyncio.ensure_future(house.follower.recover())
        while len(asked) < 30:
            await settle()
            await house.clock.advance(0.1)
        recovering.cancel()
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(asked)]

    assert [line["event"] for line in lines] == ["proxy_recovery_waits"]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 0.9
