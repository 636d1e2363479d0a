# SPDX-License-Identifier: Apache-2.0
"""SVN-130: what the runtime and kepd's own probes say of pods of this node."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from agent.model.pods.pod import PodSpec
from agent.model.pods.state import Condition, PodState
from agent.model.runtime.error import Unavailable
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.services.attach.local_ends import AllEnds, OwnPodEnds, RuntimeEnds
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.pods.pods import make_pod

FIRST, SECOND, SIXTH = bytes((10, 1, 0, 1)), bytes((10, 1, 0, 2)), bytes(15) + b"\1"


class Runtime:
    def __init__(self) -> None:
        self.sandboxes: dict[str, tuple[bool, str, bool]] = {}
        """Whether it is ready, its address, whether it is on the node's network."""
        self.containers: list[tuple[str, str, int, bool]] = []
        self.is_away = False
        self.vanished: set[str] = set()
        """Listed, and gone when they are asked for."""
        self.events: asyncio.Queue[RuntimeEvent] = asyncio.Queue()

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        if self.is_away:
            raise Unavailable("ListPodSandbox", "UNAVAILABLE", "away")
        ready, ended = pb.SANDBOX_READY, pb.SANDBOX_NOTREADY
        return [pb.PodSandbox(id=key, state=ready if one[0] else ended) for key, one in self.sandboxes.items()]

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        return [
            pb.Container(
                pod_sandbox_id=sandbox,
                metadata=pb.ContainerMetadata(name=name, attempt=attempt),
                state=pb.CONTAINER_RUNNING if is_running else pb.CONTAINER_EXITED,
            )
            for sandbox, name, attempt, is_running in self.containers
        ]

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        if sandbox_id in self.vanished:
            raise Unavailable("PodSandboxStatus", "NOT_FOUND", "gone")
        _, ip, is_host = self.sandboxes[sandbox_id]
        options = pb.NamespaceOption(network=pb.NODE if is_host else pb.POD)
        return pb.PodSandboxStatus(
            network=pb.PodSandboxNetworkStatus(ip=ip, additional_ips=[pb.PodIP(ip="::1")]),
            linux=pb.LinuxPodSandboxStatus(namespaces=pb.Namespace(options=options)),
        )

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        while True:
            yield await self.events.get()


async def test_a_container_that_ran_and_ended_or_a_sandbox_that_did_ends_its_addresses() -> None:
    runtime = Runtime()
    ends = RuntimeEnds(runtime, runtime)
    runtime.sandboxes = {"a": (True, "10.1.0.1", False), "host": (True, "192.168.0.10", True)}
    runtime.containers = [("a", "main", 0, True), ("a", "init", 0, False), ("host", "x", 0, True)]
    await ends.look()
    assert ends.ended() == {}, "what prepared the pod has ended by itself"

    runtime.containers = [("a", "main", 0, False), ("a", "init", 0, False), ("host", "x", 0, False)]
    await ends.look()
    assert ends.ended() == dict.fromkeys((FIRST, SIXTH), "its container main ended")

    runtime.containers = [("a", "main", 0, False), ("a", "main", 1, True)]
    await ends.look()
    assert ends.ended() == {}

    runtime.sandboxes["a"] = (False, "", False)
    await ends.look()
    assert ends.ended() == dict.fromkeys((FIRST, SIXTH), "its sandbox ended")
    runtime.sandboxes["b"] = (True, "10.1.0.1", False)
    await ends.look()
    assert ends.ended() == {}, "another pod has the address"


async def test_a_container_that_was_seen_preparing_a_pod_has_not_ended_it() -> None:
    """A server that is doubted has pods that begin."""
    runtime = Runtime()
    ends = RuntimeEnds(runtime, runtime)
    runtime.sandboxes = {"a": (True, "10.1.0.1", False)}
    side = ("a", "side", 0, True)
    for containers in (
        [("a", "init", 0, True), side],
        [("a", "init", 0, False), side, ("a", "main", 0, True)],
    ):
        runtime.containers = containers
        await ends.look()
    assert ends.ended() == {}

    runtime.containers = [("a", "init", 0, False), ("a", "side", 0, False), ("a", "main", 0, True)]
    await ends.look()
    assert ends.ended()[FIRST] == "its container side ended"


async def test_a_sandbox_of_which_nothing_is_told_hides_no_other() -> None:
    runtime = Runtime()
    ends = RuntimeEnds(runtime, runtime)
    runtime.sandboxes = {"a": (True, "10.1.0.1", False), "odd": (True, "no address", False)}
    runtime.containers = [("a", "main", 0, True)]
    await ends.look()
    runtime.vanished = {"b"}
    runtime.sandboxes["b"] = (True, "10.1.0.2", False)
    runtime.containers = [("a", "main", 0, False), ("b", "main", 0, True)]
    await ends.look()
    assert ends.ended().get(FIRST) == "its container main ended"

    runtime.vanished = set()
    await ends.look()
    runtime.sandboxes["b"] = (False, "", False)
    await ends.look()
    assert ends.ended().get(SECOND) == "its sandbox ended"


async def test_a_new_absence_begins_with_nothing_of_the_last_one() -> None:
    """The runtime may not answer at once, and the container runs again."""
    runtime = Runtime()
    ends = RuntimeEnds(runtime, runtime)
    runtime.sandboxes = {"a": (True, "10.1.0.1", False)}
    for is_running in (True, False):
        runtime.containers = [("a", "main", 0, is_running)]
        await ends.look()
    assert FIRST in ends.ended()
    runtime.is_away = True
    runtime.events.put_nowait(RuntimeEvent(EventKind.LOST))
    news = ends.changes()
    await asyncio.wait_for(anext(news), 5.0)

    assert ends.ended() == {}
    await news.aclose()  # type: ignore[attr-defined]


class Pods:
    def __init__(self, *states: PodState) -> None:
        self.states = states
        self.bell = asyncio.Event()

    def names(self) -> dict[str, str]:
        return {}

    def pods(self) -> Iterable[tuple[PodSpec, PodState]]:
        return [(make_pod(hostNetwork=one.ip == "192.168.0.10"), one) for one in self.states]

    async def changes(self) -> AsyncIterator[object]:
        while True:
            await self.bell.wait()
            self.bell.clear()
            yield None

    async def looked(self) -> None: ...


def state(ip: str, *, is_ready: bool = True, phase: str = "Running") -> PodState:
    return PodState(
        namespace="default",
        name="web",
        uid="u",
        phase=phase,
        ip=ip,
        conditions=(Condition(type="Ready", is_true=is_ready),),
    )


def test_own_pods_end_with_their_readiness() -> None:
    pods = Pods(
        state("10.1.0.1", is_ready=False), state("10.1.0.2"), state("10.1.0.3", phase="Succeeded"),
        state("192.168.0.10", is_ready=False), state(""),
    )  # fmt: skip

    assert OwnPodEnds(pods).ended() == {FIRST: "its pod is not ready", bytes((10, 1, 0, 3)): "its pod ended"}


async def test_whoever_has_news_wakes_and_a_runtime_that_is_away_says_nothing() -> None:
    runtime, pods = Runtime(), Pods(state("10.1.0.2", is_ready=False))
    runtime.is_away = True
    both = AllEnds([OwnPodEnds(pods), RuntimeEnds(runtime, runtime)])
    news = both.changes()
    for ring in (lambda: runtime.events.put_nowait(RuntimeEvent(EventKind.LOST)), pods.bell.set):
        ring()
        await asyncio.wait_for(anext(news), 5.0)

    assert both.ended() == {SECOND: "its pod is not ready"}
    await news.aclose()  # type: ignore[attr-defined]
