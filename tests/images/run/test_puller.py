# SPDX-License-Identifier: Apache-2.0
"""The puller on a fake runtime and a clock that the test moves: sharing, cancelling, failing, restarts, deadlines."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agent.config.sections.images import Images
from agent.images.settings import image_settings
from agent.kit.runtime import RuntimeWatch
from agent.model.component import Board, State
from agent.model.images.credential import PullSecret, SecretId, SecretText
from agent.model.images.pull import ErrorClass, PodIdentity, PullPolicy, PullRequest, PullResult
from agent.model.images.state import LimitState, PullStage
from agent.model.images.store import Ingest
from agent.model.runtime.error import RuntimeCallFailed, Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri
from tests.fakes.jumping import jumps
from tests.fakes.state_files import FakeStateFiles
from tests.images.harness import build_plane

__all__ = ["jumps"]

SECRET = "pa55word-of-the-registry"
A, B, C = (f"r.io/{name}:1" for name in "abc")


class Node:
    """A plane on fakes, with pulls that take as long as the test wants."""

    def __init__(self, **images) -> None:
        self.clock = FakeClock()
        self.cri = FakeCri()
        self.containerd = FakeContainerd()
        self.files = FakeStateFiles()
        self.gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.running: set[str] = set()
        self.peak = 0
        self.cri.while_pulling = self._pulling
        for name in (A, B, C):
            self.offer(name)
        # Most tests end like a crash: without a last word.
        self.settings = image_settings(Images(**{"drain": 0.0, **images}))
        self.extra: dict = {}
        self.start()

    def start(self) -> None:
        self.plane = build_plane(
            self.cri, self.containerd, self.files, self.clock, settings=self.settings, **self.extra
        )

    def offer(self, name: str, size: int = 100) -> None:
        self.cri.registry.add(name)
        self.cri.sizes[name] = size

    def hold(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def _pulling(self, image, auth) -> None:
        self.running.add(image)
        self.peak = max(self.peak, len(self.running))
        try:
            if image in self.gates:
                await self.gates[image].wait()
            if self.failures.get(image):
                raise self.failures[image].pop(0)
        finally:
            self.running.discard(image)

    @property
    def puller(self):
        return self.plane.puller

    @asynccontextmanager
    async def up(self):
        async with asyncio.TaskGroup() as group:
            self.group = group
            task = group.create_task(self.puller.run(self.plane.report))
            yield self
            task.cancel()

    def ask(self, image, pod="p1", **more):
        identity = PodIdentity(pod, "ns", pod) if pod else PodIdentity()
        request = PullRequest(image=image, policy=more.pop("policy", PullPolicy.IF_NOT_PRESENT), pod=identity, **more)
        return self.group.create_task(self.puller.request(request))

    async def until(self, is_true) -> None:
        """Until something is so, without moving the clock."""
        async with asyncio.timeout(30):
            while not is_true():
                await asyncio.sleep(0.001)

    def states(self) -> dict:
        return {state.image: state for state in self.puller.pulls.items.values()}

    def pulls_of(self, image) -> int:
        return [name for name, _, _ in self.cri.pulls].count(image)


async def test_an_image_is_pulled_once_for_all_who_want_it_at_the_time() -> None:
    """IMG-S03."""
    async with Node().up() as node:
        gate = node.hold(A)
        asks = [node.ask(A, f"p{number}") for number in range(5)]
        await node.until(lambda: len(node.states()) and len(node.states()[A].requesters) == 5)
        gate.set()
        outcomes = [await ask for ask in asks]

    assert [outcome.result for outcome in outcomes] == [PullResult.PULLED] + 4 * [PullResult.JOINED]
    assert len({outcome.image_id for outcome in outcomes}) == 1
    assert node.pulls_of(A) == 1
    assert node.plane.told.reasons("p1") == ["Pulling", "Pulled"]


async def test_outcomes_say_how_long_each_waited_for_its_slot() -> None:
    """TRC-11: of a pull that fails as well."""
    async with Node(max_parallel_pulls=1).up() as node:
        gate = node.hold(A)
        node.failures[B] = [RuntimeCallFailed("PullImage", "boom")]
        first = node.ask(A, "p1")
        await node.until(lambda: A in node.running)
        second = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        await node.clock.advance(3.0)
        gate.set()
        phases = [(await one).phases[0] for one in (first, second)]

    assert [one.name for one in phases] == ["queue", "queue"]
    assert [round(one.end_s - one.begin_s, 1) for one in phases] == [0.0, 3.0]


async def test_short_and_full_spelling_are_one_image() -> None:
    """IMG-P06."""
    node = Node()
    node.offer("busybox:1")
    async with node.up():
        gate = node.hold("busybox:1")
        asks = [node.ask("busybox:1", "p1"), node.ask("docker.io/library/busybox:1", "p2")]
        await node.until(lambda: any(len(state.requesters) == 2 for state in node.states().values()))
        gate.set()

        assert [(await ask).is_ok for ask in asks] == [True, True]


async def test_never_more_run_than_may_and_the_rest_says_why_it_waits() -> None:
    """IMG-S01."""
    async with Node(max_parallel_pulls=1).up() as node:
        gates = [node.hold(name) for name in (A, B)]
        first = node.ask(A)
        await node.until(lambda: A in node.running)
        second = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        state = node.states()[B]

        assert (state.stage, state.position, state.wait_text) == (PullStage.QUEUED, 1, "1 of 1 slots busy")
        assert node.puller.limits()[0] == LimitState("node", 1, 1)

        for gate in gates:
            gate.set()
        await first
        await second

    assert node.peak == 1


async def test_a_raised_limit_starts_what_waits_at_once() -> None:
    """IMG-S20."""
    async with Node(max_parallel_pulls=1).up() as node:
        gates = [node.hold(name) for name in (A, B)]
        asks = [node.ask(A), node.ask(B, "p2")]
        await node.until(lambda: len(node.states()) == 2)
        node.puller.set_limit("", 2)
        await node.until(lambda: len(node.running) == 2)
        for gate in gates:
            gate.set()

        assert [(await ask).is_ok for ask in asks] == [True, True]


async def test_what_is_present_needs_neither_slot_nor_pull() -> None:
    """IMG-S05."""
    async with Node(max_parallel_pulls=1).up() as node:
        await node.ask(A)
        node.hold(B)
        blocking = node.ask(B, "p2")
        await node.until(lambda: B in node.running)
        outcome = await node.ask(A, "p3")

        assert outcome.result is PullResult.PRESENT
        assert node.pulls_of(A) == 1
        node.gates[B].set()
        await blocking


async def test_never_uses_what_is_there_and_refuses_what_is_not() -> None:
    """IMG-P02."""
    async with Node().up() as node:
        absent = await node.ask(A, policy=PullPolicy.NEVER)
        await node.ask(A)
        there = await node.ask(A, policy=PullPolicy.NEVER)

    assert (absent.result, absent.reason) == (PullResult.REFUSED, "ErrImageNeverPull")
    assert absent.message == f'Container image "{A}" is not present with pull policy of Never'
    assert there.result is PullResult.PRESENT


async def test_always_asks_the_registry_every_time() -> None:
    """IMG-P02."""
    async with Node().up() as node:
        results = [(await node.ask(A, policy=PullPolicy.ALWAYS)).result for _ in range(2)]

    assert results == [PullResult.PULLED, PullResult.REVALIDATED]
    assert node.pulls_of(A) == 2


async def test_a_bad_name_is_refused_in_the_kubelets_words() -> None:
    """IMG-B03."""
    async with Node().up() as node:
        outcome = await node.ask("Not:A:Name")

    assert outcome.reason == "InvalidImageName"
    assert outcome.message.startswith(
        'Failed to apply default image tag "Not:A:Name": couldn\'t parse image name "Not:A:Name": '
    )
    assert node.plane.told.reasons() == ["InspectFailed"]


async def test_a_runtime_that_cannot_say_whether_an_image_is_there_is_told() -> None:
    """IMG-B03."""
    async with Node().up() as node:
        node.cri.failures["ImageStatus"] = RuntimeCallFailed("ImageStatus", "boom")
        outcome = await node.ask(A)

    assert (outcome.reason, outcome.message) == ("ImageInspectError", f'Failed to inspect image "{A}": boom')


async def test_a_failed_pull_fails_everybody_and_then_nobody_asks_the_registry() -> None:
    """IMG-S24, B01, B02, B03."""
    async with Node().up() as node:
        node.failures[A] = [RuntimeCallFailed("PullImage", "connection refused")]
        gate = node.hold(A)
        asks = [node.ask(A, "p1"), node.ask(A, "p2")]
        await node.until(lambda: len(node.states()) and len(node.states()[A].requesters) == 2)
        gate.set()
        outcomes = [await ask for ask in asks]
        paused = await node.ask(A, "p1")

        assert [(one.reason, one.message, one.error_class) for one in outcomes] == [
            ("ErrImagePull", "connection refused", ErrorClass.NET)
        ] * 2
        assert paused.reason == "ImagePullBackOff"
        assert paused.message == f'Back-off pulling image "{A}": ErrImagePull: connection refused'
        assert paused.retry_in_s == 2
        assert node.pulls_of(A) == 1

        await node.clock.advance(2)

        assert (await node.ask(A, "p1")).is_ok
    assert node.plane.told.reasons("p1") == ["Pulling", "Failed", "Failed", "BackOff", "Failed", "Pulling", "Pulled"]


async def test_an_image_that_does_not_exist_is_tried_once_per_node() -> None:
    """IMG-B06: shared by reference and credentials."""
    async with Node().up() as node:
        first = await node.ask("r.io/missing:1", "p1")
        second = await node.ask("r.io/missing:1", "p2")

        assert (first.error_class, second.reason) == (ErrorClass.NOT_FOUND, "ImagePullBackOff")
        assert node.pulls_of("r.io/missing:1") == 1

        assert node.puller.retry("ns", "p1") == 2
        assert (await node.ask("r.io/missing:1", "p1")).reason == "ErrImagePull"


async def test_a_registry_that_wants_a_pause_delays_its_pulls_and_no_others() -> None:
    """IMG-B06: class rate."""
    async with Node().up() as node:
        node.offer("other.io/x:1")
        node.failures[A] = [RuntimeCallFailed("PullImage", "status: 429 Too Many Requests, Retry-After: 30")]
        assert (await node.ask(A)).error_class is ErrorClass.RATE
        waiting = node.ask(A)
        await node.until(lambda: A in node.states() and node.states()[A].position == 1)

        assert node.states()[A].wait_text == "r.io asked kepd to slow down"
        assert (await node.ask("other.io/x:1", "p2")).is_ok

        await node.clock.advance(30)

        assert (await waiting).is_ok


async def test_a_registry_that_is_left_alone_is_seen_and_can_be_asked_again_at_once() -> None:
    async with Node().up() as node:
        node.failures[A] = [RuntimeCallFailed("PullImage", "status: 429 Too Many Requests, Retry-After: 3000")]
        await node.ask(A)
        waiting = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        (held,) = node.puller.holds()

        assert (held.id, held.reason, held.ends_in_s) == ("r.io", "registry", 3000)
        assert "Too Many Requests" in held.why
        assert not node.puller.release_hold("other.io")
        assert node.puller.release_hold("r.io")
        assert (await waiting).is_ok
        assert node.puller.holds() == []


async def test_a_corrupt_download_is_tried_once_more() -> None:
    """IMG-B06: class corrupt."""
    async with Node().up() as node:
        node.failures[A] = [RuntimeCallFailed("PullImage", "unexpected commit digest sha256:x, expected sha256:y")]

        assert (await node.ask(A)).is_ok
        assert node.pulls_of(A) == 2


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        ('failed commit on ref "{}": unexpected commit digest sha256:x, expected sha256:y', False),
        ('failed to copy: ref "{}" locked: unavailable', True),
    ],
)
async def test_only_a_bad_blob_is_thrown_away_never_one_that_somebody_else_writes(second: str, kept: bool) -> None:
    """IMG-B06: a bad blob left whole fails every later try; a locked one is another download."""
    bad, other = f"layer-sha256:{'a' * 64}", f"layer-sha256:{'b' * 64}"
    async with Node().up() as node:
        node.containerd.ingests = [Ingest(bad, 100, 100), Ingest(other, 40, 100)]
        first = f'failed commit on ref "{bad}": unexpected commit digest sha256:x, expected sha256:y'
        node.failures[A] = [RuntimeCallFailed("PullImage", text) for text in (first, second.format(other))]
        await node.ask(A)

        refs = [one.ref for one in node.containerd.ingests]
        assert bad not in refs
        assert (other in refs) is kept


async def test_a_pod_that_is_gone_frees_its_slot_at_once_and_gets_nothing_more() -> None:
    """IMG-S17."""
    async with Node(max_parallel_pulls=1).up() as node:
        node.hold(A)
        ask = node.ask(A, "p1")
        await node.until(lambda: A in node.running)
        waiting = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        node.puller.pod_gone("p1")
        outcome = await ask

        assert (outcome.result, outcome.error_class) == (PullResult.CANCELLED, ErrorClass.CANCELLED)
        assert (await waiting).is_ok
        assert (await node.ask(B, "p1")).result is PullResult.CANCELLED
        await node.until(lambda: A not in node.running)
        await node.until(lambda: node.states()[A].stage is PullStage.CANCELLED)


async def test_a_shared_pull_survives_one_of_its_pods() -> None:
    """IMG-S17."""
    async with Node().up() as node:
        gate = node.hold(A)
        asks = [node.ask(A, "p1"), node.ask(A, "p2")]
        await node.until(lambda: len(node.states()) and len(node.states()[A].requesters) == 2)
        node.puller.pod_gone("p1")
        gate.set()

        assert (await asks[0]).result is PullResult.CANCELLED
        assert (await asks[1]).is_ok


async def test_whoever_stops_waiting_gives_the_wish_up() -> None:
    """IMG-X05."""
    async with Node().up() as node:
        node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        ask.cancel()
        await node.until(lambda: A not in node.running)

        assert node.puller.limits()[0].running == 0


async def test_a_pull_or_one_of_its_requesters_can_be_cancelled_by_name() -> None:
    async with Node().up() as node:
        node.hold(A)
        asks = [node.ask(A, "p1"), node.ask(A, "p2")]
        await node.until(lambda: len(node.states()) and len(node.states()[A].requesters) == 2)
        state = node.states()[A]

        assert node.puller.cancel(state.requesters[0].id)
        assert (await asks[0]).result is PullResult.CANCELLED
        assert node.puller.cancel(state.id)
        assert (await asks[1]).result is PullResult.CANCELLED
        assert not node.puller.cancel(state.id)
        assert not node.puller.cancel("p999")


async def test_what_a_cancel_cuts_off_is_kept_for_an_hour() -> None:
    """IMG-S18, LAB-27: else the runtime throws half-written blobs away."""
    digest = "sha256:" + "a" * 64
    manifest = json.dumps(
        {"config": {"digest": "sha256:c", "size": 1}, "layers": [{"digest": digest, "size": 100}]}
    ).encode()
    async with Node().up() as node:
        node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        put_manifest(node, "sha256:" + "b" * 64, manifest, "a")
        node.containerd.ingests = [Ingest(f"layer-{digest}", 40, 100)]
        await node.clock.advance(3)
        assert node.states()[A].stage is PullStage.DOWNLOADING
        node.puller.cancel(node.states()[A].id)
        await ask
        await node.until(lambda: A not in node.running)
        leases = await node.containerd.list_leases()

        assert [name.startswith("kepd-hold-") for name in leases] == [True]
        assert "containerd.io/gc.expire" in next(iter(leases.values()))
        assert list(node.containerd.lease_resources.values()) == [[("ingests", f"layer-{digest}")]]

        node.gates[A].set()
        assert (await node.ask(A, "p2")).is_ok
        assert await node.containerd.list_leases() == {}


def put_manifest(node, digest, content, path) -> None:
    from agent.model.images.store import BlobInfo

    labels = {"containerd.io/distribution.source.r.io": path}
    node.containerd.put_blob(BlobInfo(digest, len(content), node.clock.wall_s(), labels), content)


async def test_a_pull_without_progress_ends_with_its_reason_and_others_go_on() -> None:
    """IMG-S22."""
    async with Node().up() as node:
        node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        await node.clock.advance(300)
        assert (await node.ask(B, "p2")).is_ok
        await node.clock.advance(320)
        outcome = await ask

    assert (outcome.reason, outcome.error_class) == ("ErrImagePull", ErrorClass.TIMEOUT)
    assert outcome.message == "no progress for 10m0s (nothing fetched yet)"


async def test_waiting_in_the_queue_never_counts_against_a_pull() -> None:
    """IMG-S22."""
    async with Node(max_parallel_pulls=1, progress_timeout=60.0).up() as node:
        node.hold(A)
        first, second = node.ask(A), node.ask(B, "p2")
        await node.until(lambda: len(node.states()) == 2)
        await node.clock.advance(70)

        assert (await first).error_class is ErrorClass.TIMEOUT
        assert (await second).is_ok


async def test_a_runtime_that_shows_no_progress_gets_no_deadline_by_progress() -> None:
    """IMG-T08."""
    node = Node()
    node.containerd.reachable = False
    async with node.up():
        gate = node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        await node.clock.advance(3600)

        assert node.states()[A].stage is PullStage.RESOLVING
        assert not ask.done()
        gate.set()
        assert (await ask).is_ok


async def test_a_runtime_that_restarts_in_the_middle_is_waited_for() -> None:
    """The pull goes on where the runtime kept it, and nobody who waits hears of it."""
    async with Node().up() as node:
        node.failures[A] = [Unavailable("PullImage", "Socket closed")]
        gate = node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        node.cri.reachable = False
        gate.set()
        await node.until(lambda: A not in node.running)
        await node.clock.advance(20)
        assert not ask.done()
        node.cri.reachable = True
        await node.clock.advance(1)

        assert (await ask).is_ok
    assert node.pulls_of(A) == 2


SNAPSHOTTER_DOWN = (
    "failed to prepare extraction snapshot: connection error: dial unix /run/stargz.sock: connect: connection refused"
)


async def test_a_snapshotter_that_is_down_makes_the_pull_fail_and_back_off() -> None:
    """FI-2: the runtime answers all the time, so nothing restarts; a pull every half second held its slot for ever."""
    async with Node().up() as node:
        node.failures[A] = [Unavailable("PullImage", SNAPSHOTTER_DOWN, "UNAVAILABLE") for _ in range(1000)]
        ask = node.ask(A)
        await node.clock.advance(5)
        outcome = await ask
        again = node.ask(A)
        await node.until(again.done)

        assert SNAPSHOTTER_DOWN in outcome.message
        assert outcome.error_class is ErrorClass.RUNTIME
        assert (await again).reason == "ImagePullBackOff"
    assert node.pulls_of(A) == 3


async def test_a_pull_that_takes_its_runtime_down_each_time_is_given_up() -> None:
    """FI-2."""
    async with Node().up() as node:

        async def crash(image, auth) -> None:
            node.cri.reachable = False
            raise Unavailable("PullImage", "Socket closed")

        node.cri.while_pulling = crash
        ask = node.ask(A)
        for _ in range(40):
            await node.clock.advance(1)
            node.cri.reachable = True

        assert (await ask).error_class is ErrorClass.RUNTIME
    assert node.pulls_of(A) == 6


def private(name="s", registry="r.io", password=SECRET) -> PullSecret:
    text = json.dumps({"auths": {registry: {"username": name, "password": password}}})
    return PullSecret(
        SecretId("ns", name, f"uid-{name}"), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": SecretText(text)}
    )


async def test_credentials_are_tried_in_turn_and_their_errors_joined() -> None:
    """IMG-C06, B04."""
    async with Node().up() as node:
        node.failures[A] = [
            RuntimeCallFailed("PullImage", "401 Unauthorized"),
            RuntimeCallFailed("PullImage", "403 Forbidden"),
        ]
        two = (private("one"), private("two"))
        refused = await node.ask(A, secrets=two)

        assert refused.message == "[401 Unauthorized, 403 Forbidden]"
        assert refused.error_class is ErrorClass.AUTH
        assert [user for _, user, _ in node.cri.pulls] == ["one", "two"]

        await node.clock.advance(10)

        assert (await node.ask(A, secrets=two)).is_ok
        assert [user for _, user, _ in node.cri.pulls][2:] == ["one"]


async def test_a_privately_pulled_image_is_not_for_everybody() -> None:
    """IMG-V03, S14: another pod has to prove itself, which only checks the manifest."""
    async with Node().up() as node:
        await node.ask(A, "p1", secrets=(private("one"),))
        same = await node.ask(A, "p2", secrets=(private("one"),))
        other = await node.ask(A, "p3", secrets=(private("two", password="q"),))
        stranger = await node.ask(A, "p4", policy=PullPolicy.NEVER)

    assert same.result is PullResult.PRESENT
    assert other.result is PullResult.REVALIDATED
    assert stranger.reason == "ErrImageNeverPull"


async def test_an_image_that_was_there_before_us_is_for_everybody() -> None:
    """IMG-V01: the default policy."""
    node = Node()
    await node.cri.pull_image(A)
    async with node.up():
        assert (await node.ask(A, policy=PullPolicy.NEVER)).is_ok


async def test_an_image_pulled_before_a_crash_could_record_it_has_to_be_verified() -> None:
    """IMG-V02: kill -9 between the pull and its record."""
    node = Node()
    async with node.up():
        node.hold(A)
        ask = node.ask(A, secrets=(private(),))
        await node.until(lambda: A in node.running)
        frozen = dict(node.files.files)
        node.gates[A].set()
        await ask
    node.files.files = frozen
    node.start()
    async with node.up():
        assert (await node.ask(A, "p2", policy=PullPolicy.NEVER)).reason == "ErrImageNeverPull"
        assert (await node.ask(A, "p2", secrets=(private(),))).result is PullResult.REVALIDATED
    assert not [name for name in node.files.files if name.startswith("pulling/")]


async def test_who_waits_for_what_turns_up_is_served_without_a_pull() -> None:
    """IMG-S06."""
    async with Node(max_parallel_pulls=1).up() as node:
        node.hold(A)
        first = node.ask(A)
        await node.until(lambda: A in node.running)
        second = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        await node.cri.pull_image(B)
        pulls = node.pulls_of(B)
        node.gates[A].set()

        assert (await second).result is PullResult.PRESENT
        assert node.pulls_of(B) == pulls
        await first
        await node.until(lambda: node.states()[B].stage is PullStage.DONE)


async def test_a_registry_that_is_away_is_no_reason_not_to_use_what_is_there() -> None:
    """IMG-P11."""
    async with Node(fallback_to_present=True).up() as node:
        await node.ask(A, policy=PullPolicy.ALWAYS)
        node.failures[A] = [
            RuntimeCallFailed("PullImage", "no such host"),
            RuntimeCallFailed("PullImage", "401 Unauthorized"),
        ]
        away = await node.ask(A, "p2", policy=PullPolicy.ALWAYS)
        denied = await node.ask(A, "p3", policy=PullPolicy.ALWAYS)

    assert (away.result, away.notes) == (PullResult.PRESENT, ("no such host",))
    assert denied.reason == "ErrImagePull"


async def test_the_same_check_is_not_repeated_within_its_time() -> None:
    """IMG-P12."""
    async with Node(always_cache=60.0).up() as node:
        for pod in ("p1", "p2"):
            assert (await node.ask(A, pod, policy=PullPolicy.ALWAYS)).is_ok
        assert node.pulls_of(A) == 1
        await node.clock.advance(61)
        await node.ask(A, "p3", policy=PullPolicy.ALWAYS)
        assert node.pulls_of(A) == 2


async def test_a_rewritten_pull_leaves_the_written_name() -> None:
    """IMG-R03."""
    from agent.model.images.store import ImageRecord

    rule = (("match", r"^r\.io/"), ("replace", "mirror.io/"), ("only", False))
    images = Images()
    node = Node(rewrite=replace(images.rewrite, rules=(rule,)))
    node.offer("mirror.io/a:1")
    node.containerd.records["mirror.io/a:1"] = ImageRecord("mirror.io/a:1", "sha256:d", "m", 1, 0.0)
    async with node.up():
        outcome = await node.ask(A)

        assert outcome.is_ok
        assert node.containerd.records[A].digest == "sha256:d"
        assert node.pulls_of("mirror.io/a:1") == 1

        assert (await node.ask(B, "p2")).is_ok
    assert [name for name, _, _ in node.cri.pulls][1:] == ["mirror.io/b:1", B]


async def test_a_rewritten_pull_uses_the_credentials_of_its_target_and_on_request_those_of_the_written_name() -> None:
    """IMG-R05."""
    rule = (("match", r"^r\.io/"), ("replace", "mirror.io/"), ("only", True))
    secrets = (registry_secret("target", "mirror.io", "theirs"), registry_secret("written", "r.io", "ours"))
    users = []
    for auth in ("target", "original"):
        node = Node(rewrite=replace(Images().rewrite, rules=(rule,), auth=auth))
        async with node.up():
            await node.ask(A, secrets=secrets)
        users.append([user for _, user, _ in node.cri.pulls])

    assert users == [["theirs"], ["theirs", "ours"]]


def registry_secret(name: str, registry: str, user: str) -> PullSecret:
    document = json.dumps({"auths": {registry: {"username": user, "password": SECRET}}})
    return PullSecret(
        SecretId("ns", name), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": SecretText(document)}
    )


async def test_the_handler_of_a_pod_goes_to_the_runtime_and_the_runtimes_id_comes_back() -> None:
    """IMG-P08, P10."""
    async with Node().up() as node:
        outcome = await node.ask(A, handler="kata")
        image = await node.cri.image_status(A)

    assert node.cri.pulls == [(A, "", "kata")]
    assert outcome.image_id == image.id


async def test_an_image_without_id_or_size_is_an_error_and_not_there() -> None:
    """IMG-P05."""
    node = Node()
    node.offer(A, 0)
    await node.cri.pull_image(A)
    node.cri.pulls.clear()
    async with node.up():
        outcome = await node.ask(A)

    assert outcome.reason == "ImageInspectError"
    assert outcome.message == f'Failed to inspect image "{A}": Id or size of image "{A}" is not set'
    assert node.cri.pulls == []


async def test_the_kubelet_profile_shares_nothing_and_cancels_nothing() -> None:
    """IMG-S02."""
    async with Node(profile="kubelet", max_parallel_pulls=2).up() as node:
        gate = node.hold(A)
        asks = [node.ask(A, "p1"), node.ask(A, "p2")]
        await node.until(lambda: node.puller.limits()[0].running == 2)
        node.puller.pod_gone("p1")
        gate.set()

        assert [(await ask).is_ok for ask in asks] == [True, True]
        assert node.pulls_of(A) == 2


async def test_the_kubelet_profile_fails_a_pull_when_the_rate_is_used_up() -> None:
    """PQ-22 through the whole plane."""
    async with Node(profile="kubelet", registry_pull_qps=1.0, registry_burst=1).up() as node:
        gates = [node.hold(name) for name in (A, B)]
        first = node.ask(A)
        await node.until(lambda: A in node.running)
        outcome = await node.ask(B, "p2")

        assert outcome.message == "pull QPS exceeded"
        for gate in gates:
            gate.set()
        await first


async def test_a_defect_in_one_pull_ends_that_pull_alone() -> None:
    """STY-31 is for the plane; one image must not restart it."""
    async with Node().up() as node:
        node.failures[A] = [ZeroDivisionError("a defect")]
        with capture_logs() as logs:
            broken = await node.ask(A)
        assert (await node.ask(B, "p2")).is_ok

    assert broken.message == "internal error: ZeroDivisionError"
    assert "image_pull_broke" in [line["event"] for line in logs]


async def test_who_still_waits_at_the_end_is_told_so() -> None:
    node = Node()
    async with node.up():
        node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)

    assert (await ask).message == "rpc error: code = Unavailable desc = kepd is shutting down"
    assert not node.running


async def test_a_plane_that_is_started_again_works_again() -> None:
    """STY-31."""
    node = Node()
    for image in (A, B):
        async with node.up():
            assert (await node.ask(image)).is_ok


async def test_a_full_disk_makes_room_first_and_then_goes_on() -> None:
    """IMG-B06: class nospace."""
    async with Node().up() as node:
        await node.cri.pull_image("r.io/c:1")
        node.failures[A] = [RuntimeCallFailed("PullImage", "write /x: no space left on device")]
        outcome = await node.ask(A)
        await node.until(lambda: "ListImages" in node.cri.calls)

        assert (outcome.error_class, outcome.reason) == (ErrorClass.NO_SPACE, "ErrImagePull")
        assert (await node.ask(B, "p2")).is_ok
        again = await node.ask(A)

        assert again.reason == "ImagePullBackOff", "FI-6: the same pull waits, whatever room there is"
        assert node.cri.pulls.count((A, "", "")) == 1


async def test_sizes_are_remembered_over_a_restart() -> None:
    """IMG-S10."""
    node = Node()
    async with node.up():
        node.offer(A, 12345)
        await node.ask(A)
        await node.clock.advance(11)
    node.start()
    node.cri._images.clear()
    async with node.up():
        node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.states())
        assert node.states()[A].size_bytes == 12345
        node.gates[A].set()
        await ask


class Probe:
    """Knows all sizes."""

    def __init__(self) -> None:
        self.asked = []

    async def size_bytes(self, reference, credential) -> int:
        self.asked.append(reference)
        return 777


async def test_sizes_are_asked_for_only_while_a_pull_waits_anyway() -> None:
    """IMG-S10: sizeProbe auto."""
    node = Node(max_parallel_pulls=1)
    probe = Probe()
    node.extra = {"probe": probe}
    node.offer("docker.io/library/x:1")
    node.start()
    async with node.up():
        gates = [node.hold(name) for name in (A, B)]
        asks = [node.ask(A), node.ask(B, "p2"), node.ask("docker.io/library/x:1", "p3")]
        await node.until(lambda: probe.asked and node.states()[B].size_bytes == 777)

        assert probe.asked == [B]
        for gate in gates:
            gate.set()
        for ask in asks:
            await ask


async def test_no_secret_is_in_any_state_event_log_or_file() -> None:
    """IMG-C10, B08: one grep over everything the plane lets out."""
    with capture_logs() as logs:
        node = Node()
        async with node.up():
            node.failures[A] = [
                RuntimeCallFailed("PullImage", f"denied for https://one:{SECRET}@r.io?sig={SECRET} {SECRET}")
            ]
            failed = await node.ask(A, secrets=(private("one"),))
            paused = await node.ask(A, secrets=(private("one"),))
            await node.clock.advance(300)
            done = await node.ask(A, secrets=(private("one"),))
            await node.clock.advance(11)
            explained = await node.plane.node.explain(A)
            metrics = [str(family) for family in node.plane.metrics.families(node.puller.gauges())]
            everything = [
                *map(repr, (failed, paused, done, explained, metrics, node.puller.pulls.items, node.plane.told.events)),
                repr(logs), repr(node.puller.plan), repr(node.plane.board.lines()),
                *(content.decode("latin-1") for content in node.files.files.values()),
            ]  # fmt: skip

    assert done.is_ok
    assert not [text for text in everything if SECRET in text]


async def test_the_feed_shows_a_pull_from_queue_to_end() -> None:
    """IMG-T05."""
    async with Node(max_parallel_pulls=1).up() as node:
        seen: list[tuple[str, str]] = []

        async def follow() -> None:
            async for change in node.puller.pulls.follow():
                if change.item is not None and (not seen or seen[-1] != (change.item.image, change.item.stage)):
                    seen.append((change.item.image, change.item.stage))

        follower = node.group.create_task(follow())
        gate = node.hold(A)
        asks = [node.ask(A), node.ask(B, "p2")]
        await node.until(lambda: len(node.states()) == 2)
        gate.set()
        for ask in asks:
            await ask
        await node.until(lambda: node.states()[B].stage is PullStage.DONE)
        await asyncio.sleep(0.01)
        follower.cancel()

    stages = [stage for image, stage in seen if image == B]

    assert (stages[0], stages[-1]) == ("queued", "done")
    assert all(state.percent == 100 for state in node.states().values())


async def test_long_waits_are_told_to_the_pod() -> None:
    """IMG-T07."""
    async with Node(max_parallel_pulls=1).up() as node:
        gate = node.hold(A)
        first = node.ask(A)
        await node.until(lambda: A in node.running)
        second = node.ask(B, "p2")
        await node.until(lambda: B in node.states())
        await node.clock.advance(30)
        gate.set()
        await first
        await second

    assert node.plane.told.reasons("p2") == ["Pulling", "PullQueued", "Pulled"]
    assert f'Waiting to pull image "{B}": position 1, 1 of 1 slots busy' in node.plane.told.texts()


async def test_what_is_over_leaves_the_feed_after_a_while() -> None:
    async with Node().up() as node:
        await node.ask(A)
        assert A in node.states()
        await node.clock.advance(601)
        node.hold(B)
        ask = node.ask(B, "p2")
        await node.until(lambda: B in node.running)
        await node.clock.advance(2)

        assert A not in node.states()
        node.gates[B].set()
        await ask


@pytest.mark.parametrize("number", range(3))
async def test_a_crash_at_any_time_loses_nothing_and_repeats_nothing_that_was_whole(number) -> None:
    """kill -9 after `number` pulls, then a restart: the rest is pulled, nothing twice."""
    node = Node()
    async with node.up():
        for image in (A, B, C)[:number]:
            await node.ask(image, f"p-{image}")
        if number < 3:
            node.hold((A, B, C)[number])
            node.ask((A, B, C)[number], "doomed")
            await node.until(lambda: (A, B, C)[number] in node.running)
        frozen = dict(node.files.files)
    node.gates.clear()
    node.files.files = frozen
    node.start()
    async with node.up():
        assert all([(await node.ask(image, f"p-{image}")).is_ok for image in (A, B, C)])

    assert [node.pulls_of(image) for image in (A, B, C)][:number] == [1] * number
    assert not [name for name in node.files.files if name.startswith("pulling/")]


async def test_what_runs_when_kepd_ends_has_its_time_and_what_waits_is_told() -> None:
    """IMG-X10, X04: `images.drain`; nothing new is taken on."""
    node = Node(drain=30.0, max_parallel_pulls=1)
    async with asyncio.TaskGroup() as node.group:
        task = node.group.create_task(node.puller.run(node.plane.report))
        gate = node.hold(A)
        running = node.ask(A)
        waiting = node.ask(B, "p2")
        await node.until(lambda: A in node.running and len(node.states()) == 2)
        task.cancel()
        refused = await waiting
        late = await node.ask(C, "p3")
        gate.set()

        assert (await running).is_ok
        assert refused.message == late.message == "rpc error: code = Unavailable desc = kepd is shutting down"


async def test_what_takes_longer_than_the_drain_is_given_up() -> None:
    """IMG-X10."""
    node = Node(drain=30.0)
    async with asyncio.TaskGroup() as node.group:
        task = node.group.create_task(node.puller.run(node.plane.report))
        node.hold(A)
        running = node.ask(A)
        await node.until(lambda: A in node.running)
        task.cancel()
        await asyncio.sleep(0.01)
        await node.clock.advance(29)

        assert not running.done()

        await node.clock.advance(2)

        assert (await running).result is PullResult.CANCELLED
        assert node.running == set()


async def test_without_a_runtime_the_plane_is_not_ready() -> None:
    """CL-15: nothing can be pulled then."""
    async with Node().up() as node:
        watch = RuntimeWatch(node.cri, "fake", node.clock.now_s)
        watch.listeners.append(node.puller.note_runtime)
        report = Board(node.clock.wall_s).add("runtime", State.STARTING)

        def line():
            return node.plane.board.line("images")

        await node.until(lambda: line().state is State.READY)
        node.cri.reachable = False
        await watch._look(report)
        await node.until(lambda: line().state is State.DEGRADED)
        message = line().message
        node.cri.reachable = True
        await watch._look(report)
        await node.until(lambda: line().state is State.READY)

    assert message.startswith("the container runtime does not answer: ")
    assert message.endswith("; 0 pulling, 0 waiting")


async def test_what_a_long_line_says_grows_with_it_and_not_with_its_square() -> None:
    """All that wait move up with each pull that ends; 200 images in one call were 20 300 messages."""

    async def changes(count: int) -> int:
        names = [f"r.io/many:{number}" for number in range(count)]
        async with Node().up() as node:
            before = node.puller.pulls.version
            for name in names:
                node.offer(name)
            asks = [node.ask(name, "") for name in names]
            await node.until(lambda: all(ask.done() for ask in asks))
            return node.puller.pulls.version - before

    few, many = await changes(20), await changes(160)

    assert many <= 10 * few


async def test_places_in_the_line_are_shown_once_a_second() -> None:
    async with Node().up() as node:
        for name in (A, B, C):
            node.hold(name)
        node.offer("r.io/d:1")
        names = (A, B, C, "r.io/d:1")
        for name in names:
            node.ask(name, "")
        await node.until(lambda: len(node.states()) == len(names))
        running = {name for name in names if node.states()[name].stage is not PullStage.QUEUED}
        last = max((state.position, name) for name, state in node.states().items())[1]
        first = node.states()[last].position
        for name in running:
            node.gates[name].set()
        await node.until(lambda: all(node.states()[name].stage is PullStage.DONE for name in running))
        await node.clock.advance(1.0)
        await node.until(lambda: node.states()[last].position < first)
