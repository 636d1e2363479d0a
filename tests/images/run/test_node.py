# SPDX-License-Identifier: Apache-2.0
"""Collector, prefetcher and watcher on fakes, and what people are told about the images of a node."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.config.sections.images import Images
from agent.images.collect.plan import CollectMode
from agent.images.prefetch.plan import PodImage
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.settings import image_settings
from agent.model.images.pull import ListedImage, PodIdentity, PullPolicy, PullRequest
from agent.model.images.reference import parse_reference
from agent.model.images.state import LayerStage
from agent.model.images.store import BlobInfo, Filesystem, ImageRecord, Ingest, StoreEvent, StoreEventKind, StoreRoots
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri
from tests.fakes.state_files import FakeStateFiles
from tests.images.harness import build_plane

A, B, C = (f"r.io/{name}:1" for name in "abc")
GIB = 2**30


class Host:
    """A node with images."""

    def __init__(self, **changes) -> None:
        self.clock = FakeClock()
        self.cri = FakeCri()
        self.containerd = FakeContainerd()
        self.files = FakeStateFiles()
        self.settings = replace(image_settings(Images(drain=0.0)), **changes)
        self.pods = None
        self.contents = None
        for name in (A, B, C):
            self.cri.registry.add(name)
            self.cri.sizes[name] = 5 * GIB
        self.build()

    def build(self) -> None:
        self.plane = build_plane(
            self.cri, self.containerd, self.files, self.clock, settings=self.settings, pods=self.pods,
            contents=self.contents,
        )  # fmt: skip

    async def put(self, *names) -> None:
        for name in names:
            await self.cri.pull_image(name)
            record = ImageRecord(name, f"sha256:{name}", "m", 1, self.clock.wall_s())
            self.containerd.records.setdefault(name, record)

    def names(self) -> set[str]:
        return {name for image in self.cri._images.values() for name in image.repo_tags}

    def fill(self, available_gib: int) -> None:
        self.files.disk = Filesystem(capacity_bytes=100 * GIB, available_bytes=available_gib * GIB)

    @asynccontextmanager
    async def up(self):
        async with asyncio.TaskGroup() as group:
            parts = [self.plane.puller, self.plane.collector, self.plane.prefetcher]
            reports = [self.plane.report, self.plane.report2, self.plane.report3]
            tasks = [group.create_task(part.run(report)) for part, report in zip(parts, reports, strict=True)]
            yield self
            for task in tasks:
                task.cancel()

    async def until(self, is_true) -> None:
        async with asyncio.timeout(30):
            while not is_true():
                await asyncio.sleep(0.001)


# collection


async def test_a_run_stops_when_the_disk_really_has_room() -> None:
    """IMG-G09: sizes of the runtime are wrong both ways, so the disk is measured after each removal."""
    host = Host()
    await host.put(A, B, C)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.fill(10)
    remove = host.cri.remove_image

    async def removing(image: str) -> None:
        await remove(image)
        host.fill(25)

    host.cri.remove_image = removing
    state = await host.plane.collector.collect(is_forced=False)

    assert [one.is_removed for one in state.images] == [True]
    assert len(host.names()) == 2
    assert state.freed_bytes == 15 * GIB
    assert host.plane.told.events == []


async def test_a_run_goes_on_until_low() -> None:
    """IMG-G02, G09: 88 % used and 4 % an image; at 84 % a run would not begin, this one goes on to 80 %."""
    host = Host()
    await host.put(A, B, C)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.fill(12)
    remove = host.cri.remove_image

    async def removing(image: str) -> None:
        await remove(image)
        host.fill(host.files.disk.available_bytes // GIB + 4)

    host.cri.remove_image = removing
    state = await host.plane.collector.collect(is_forced=False)

    assert len(state.images) == 2
    assert state.usage_percent == 80
    assert host.plane.told.events == []


async def test_a_run_that_cannot_free_enough_says_so() -> None:
    """IMG-G12."""
    host = Host()
    await host.put(A)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.fill(5)
    for _ in range(2):
        await host.plane.collector.collect(is_forced=False)

    assert host.plane.told.reasons() == ["FreeDiskSpaceFailed", "FreeDiskSpaceFailed", "ImageGCFailed"]
    assert "95% of" in host.plane.told.texts()[0]


async def test_an_image_that_cannot_be_removed_does_not_hold_the_others_up() -> None:
    """IMG-G11."""
    host = Host()
    await host.put(A, B)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.cri.failures["RemoveImage"] = RuntimeCallFailed("RemoveImage", "busy")
    state = await host.plane.collector.collect()

    assert [(one.is_removed, one.error) for one in state.images] == [(False, "busy"), (True, "")]


async def test_a_dry_run_removes_nothing_and_tells_the_order() -> None:
    """IMG-G13."""
    host = Host()
    await host.put(A, B)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    state = await host.plane.collector.collect(dry_run=True)

    assert [one.is_removed for one in state.images] == [False, False]
    assert host.names() == {A, B}


async def test_containers_in_any_state_sandboxes_and_the_queue_protect_their_images() -> None:
    """IMG-G04, G05."""
    host = Host()
    await host.put(A, B, C)
    host.cri.pause_image = B
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="p", uid="u", namespace="ns"))
    sandbox = await host.cri.run_sandbox(config)
    container = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"), image=pb.ImageSpec(image=A),
        labels={"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop"},
    )  # fmt: skip
    container_id = await host.cri.create_container(sandbox, container, config)
    await host.cri.start_container(container_id)
    host.cri.exit(container_id, 1)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    await host.plane.collector.collect()
    states = {state.names[0]: state for state in await host.plane.collector.refresh()}

    assert host.names() == {A, B}
    assert states[A].kept_because == "used by shop/web"
    assert states[B].kept_because == "used by sandboxes"


async def test_an_image_volume_protects_its_image_as_long_as_its_container_is_there() -> None:
    """IMG-P09, G04."""
    host = Host()
    await host.put(A, B)
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="p", uid="u", namespace="ns"))
    sandbox = await host.cri.run_sandbox(config)
    container = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image=A),
        mounts=[pb.Mount(container_path="/data", image=pb.ImageSpec(image=B))],
    )
    container_id = await host.cri.create_container(sandbox, container, config)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    await host.plane.collector.collect()

    assert host.names() == {A, B}
    assert host.cri.calls.count("ContainerStatus") == 1

    await host.cri.remove_container(container_id)
    await host.plane.collector.collect()

    assert host.names() == set()


async def test_half_written_blobs_without_a_byte_for_a_day_are_dropped() -> None:
    """IMG-G16."""
    host = Host()
    now_s = host.clock.wall_s()
    ages = {"layer-old": 86401.0, "layer-young": 86000.0}
    host.containerd.ingests = [Ingest(ref, 5, 10, now_s - age_s) for ref, age_s in ages.items()]
    host.containerd.ingests.append(Ingest("layer-untold", 5, 10))
    await host.plane.collector.collect(is_forced=False)

    assert [one.ref for one in host.containerd.ingests] == ["layer-young", "layer-untold"]


async def test_ages_count_over_a_restart() -> None:
    """IMG-G08: the kubelet would wait its maximum age anew."""
    host = Host()
    host.settings = replace(
        host.settings, collect=replace(host.settings.collect, max_age_s=3600.0, mode=CollectMode.AGE)
    )
    host.build()
    await host.put(A)
    async with host.up():
        await host.until(lambda: len(host.plane.collector.images.items) == 1)
    host.containerd.records.clear()
    await host.clock.advance(3500)
    host.build()
    async with host.up():
        await host.clock.advance(90)
        assert host.names() == {A}
        await host.clock.advance(300)
        await host.until(lambda: not host.names())


async def test_records_and_stale_leases_are_tidied_up() -> None:
    """IMG-V06, G16."""
    host = Host()
    await host.put(A)
    await host.plane.records.load()
    await host.plane.records.begin("r.io/gone:1")
    await host.plane.records.succeed("r.io/gone:1", "r.io/gone", "sha256:gone", None, 0.0)
    await host.containerd.create_lease("kepd-hold-x", {"containerd.io/gc.expire": "2001-01-01T00:00:00Z"})
    await host.containerd.create_lease("kepd-hold-y", {"containerd.io/gc.expire": "2099-01-01T00:00:00Z"})
    await host.containerd.create_lease("other", {"containerd.io/gc.expire": "2001-01-01T00:00:00Z"})
    await host.clock.advance(10)
    await host.plane.collector.collect(is_forced=False)

    assert not [name for name in host.files.files if name.startswith("pulled/")]
    assert sorted(await host.containerd.list_leases()) == ["kepd-hold-y", "other"]


async def test_a_runtime_that_is_away_degrades_the_collector_until_it_is_back() -> None:
    host = Host()
    host.cri.reachable = False
    async with host.up():
        await host.until(lambda: host.plane.board.line("collector").state == "degraded")
        host.cri.reachable = True
        await host.clock.advance(6)
        await host.until(lambda: host.plane.board.line("collector").state == "ready")


def two_disks(host: Host, here: int, there: int) -> None:
    """Two snapshotters apart, and downloads with the first."""
    for path, available, device in (("/a", here, 1), ("/b", there, 2), ("/c", here, 1)):
        host.files.disks[path] = Filesystem(
            capacity_bytes=100 * GIB, available_bytes=available * GIB, device_number=device
        )


async def host_with_two_disks(here: int, there: int) -> Host:
    """A and C lie on the first, B on the second and its download on the first."""
    host = Host()
    host.cri.image_places = ("/a", "/b")
    host.containerd.roots = StoreRoots(content="/c", snapshotters={"one": "/a", "two": "/b", "unused": "/z"})
    await host.put(A, B, C)
    for name, snapshotter in ((A, "one"), (B, "two"), (C, "one")):
        image = await host.cri.image_status(name)
        host.containerd.put_blob(BlobInfo(image.id, 1, 0.0, {f"containerd.io/gc.ref.snapshot.{snapshotter}": "x"}))
    two_disks(host, here, there)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    return host


async def test_only_the_file_system_that_is_full_is_collected() -> None:
    """FSY-03: until it is below the low threshold, measured after each removal."""
    host = await host_with_two_disks(50, 10)
    before = await host.plane.collector.on_disks()
    remove = host.cri.remove_image

    async def removing(image: str) -> None:
        await remove(image)
        two_disks(host, 50, 30)

    host.cri.remove_image = removing
    state = await host.plane.collector.collect(is_forced=False)
    after = await host.plane.collector.on_disks()

    assert host.names() == {A, C}
    assert state.freed_bytes == 20 * GIB
    assert [(one.paths, one.collects_at, one.is_collecting, one.next) for one in before] == [
        (("/a", "/c"), 85, False, A), (("/b",), 85, True, f"{B}, 5.0GiB"),
    ]  # fmt: skip
    assert [one.is_collecting for one in after] == [False, False]
    assert after[1].next == ""


async def test_one_file_system_alone_can_be_cleared_and_the_others_are_told_apart() -> None:
    """FSY-02, FSY-04: what is short and cannot be helped is named; a read-only one is told once and degrades."""
    host = await host_with_two_disks(50, 10)
    host.cri.image_places = ("/a", "/b", "/r")
    host.files.disks["/r"] = Filesystem(
        capacity_bytes=GIB, available_bytes=0, device_number=3, is_read_only=True
    )  # fmt: skip
    await host.plane.collector.collect(only=(2,))
    assert host.names() == {A, C}
    for _ in range(2):
        await host.plane.collector.collect(is_forced=False)

    assert host.names() == {A, C}
    assert host.plane.told.reasons().count("FilesystemFailed") == 1
    failed = [text for text in host.plane.told.texts() if text.startswith("Failed to garbage collect")]
    assert failed
    assert all("90% of 107374182400 bytes used on /b, freed 0 bytes" in text for text in failed)
    async with host.up():
        await host.until(lambda: "read-only" in str(host.plane.board.line("collector").message))


async def test_a_pull_makes_room_where_it_writes() -> None:
    """FSY-03, IMG-B06: where layers and downloads lie, and by how much each of them takes."""
    host = await host_with_two_disks(50, 10)
    host.files.disks["/c"] = Filesystem(capacity_bytes=10 * GIB, available_bytes=2 * GIB, device_number=9)

    assert await host.plane.collector.make_room("r.io/new:1", GIB) == ""
    assert host.names() == {A, B, C}
    why = await host.plane.collector.make_room("r.io/new:1", 2 * GIB)
    assert why.startswith("about 2.4GiB are needed, 2.0GiB are free")
    # All images have their downloads there.
    assert host.names() == set()


async def test_room_is_made_when_a_pull_found_the_disk_full() -> None:
    """IMG-B06."""
    host = Host()
    await host.put(A, B)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.fill(0)
    remove = host.cri.remove_image

    async def removing(image: str) -> None:
        await remove(image)
        host.fill(5)

    host.cri.remove_image = removing

    assert await host.plane.collector.make_room(C, GIB) == ""
    assert len(host.names()) == 1
    why = "about 42.0GiB are needed, 5.0GiB are free; everything else is in use, pinned or too new to be removed"
    assert await host.plane.collector.make_room(C, 10 * GIB) == why
    assert host.plane.told.reasons() == ["FreeDiskSpaceFailed"]


@pytest.mark.parametrize(("mode", "left"), [(CollectMode.OFF, 3), (CollectMode.AGE, 2), (CollectMode.FULL, 0)])
async def test_a_full_disk_takes_what_the_mode_lets_go(mode: CollectMode, left: int) -> None:
    """FI-6: ENOSPC of one pull removed images that a kubelet counts on, although the mode said off or age. The size is
    unknown, which freed nothing."""
    host = Host()
    await host.put(A)
    await host.plane.collector.refresh()
    await host.clock.advance(5000)
    await host.put(B, C)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.fill(1)
    rules = replace(host.settings.collect, mode=mode, max_age_s=3600.0)
    host.plane.collector.apply(replace(host.settings, collect=rules))
    why = await host.plane.collector.make_room("r.io/new:1", None)

    assert len(host.names()) == left
    assert why.startswith("about 2.0GiB are needed, 1.0GiB are free; ")
    if mode is not CollectMode.FULL:
        assert f"images.gc.mode is {mode}" in why


async def test_room_is_made_neither_blindly_nor_where_collection_is_off() -> None:
    """IMG-G03, B06."""
    host = Host()
    await host.put(A, B)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.cri.failures["ImageFsInfo"] = RuntimeCallFailed("ImageFsInfo", "unknown")

    assert "cannot be measured" in await host.plane.collector.make_room(C, GIB)
    assert host.names() == {A, B}

    host.cri.failures.clear()
    host.fill(0)
    off = replace(host.settings.collect, mode=CollectMode.OFF)
    host.plane.collector.apply(replace(host.settings, collect=off))

    assert "images.gc.mode is off" in await host.plane.collector.make_room(C, GIB)
    assert host.names() == {A, B}


# prefetch


async def test_what_is_listed_is_fetched_and_pinned_and_unpinned_when_it_leaves_the_list() -> None:
    """IMG-F02, F03."""
    host = Host(listed=(ListedImage(image=A, is_pinned=True), ListedImage(image=B)))
    host.containerd.records[A] = ImageRecord(A, "sha256:a", "m", 1, 0.0, {"other": "label"})
    host.containerd.records[C] = ImageRecord(C, "sha256:c", "m", 1, 0.0, {"io.cri-containerd.pinned": "pinned"})
    async with host.up():
        await host.until(lambda: host.names() == {A, B})
        await host.until(lambda: "kepd.dev/pinned-by" in host.containerd.records[A].labels)

        assert host.containerd.records[A].labels == {
            "other": "label", "io.cri-containerd.pinned": "pinned", "kepd.dev/pinned-by": "kepd",
        }  # fmt: skip

        # An image is there a moment before its pull has ended, and what leaves the list then is cancelled.
        await host.until(lambda: all(one.stage.is_over for one in host.plane.puller.pulls.items.values()))
        host.plane.prefetcher.apply(replace(host.settings, listed=()))
        await host.until(lambda: host.containerd.records[A].labels == {"other": "label"})

        assert host.containerd.records[C].labels == {"io.cri-containerd.pinned": "pinned"}
        assert {state.source for state in await host.plane.collector.refresh()} == {"prefetched"}


async def test_a_list_by_hand_is_fetched_too_and_replaces_the_last_one() -> None:
    host = Host()
    await host.put(B)
    async with host.up():
        answers = await host.plane.prefetcher.prefetch([ListedImage(image=A), ListedImage(image=B)])
        assert [(one.image, one.state) for one in answers] == [(A, "queued"), (B, "present")]
        await host.until(lambda: A in host.names())
        assert await host.plane.prefetcher.prefetch([]) == []


async def test_an_image_that_is_not_fetched_ahead_says_why_everywhere() -> None:
    """FI-25: the command answered as if all were well, and neither log nor event nor list had anything."""
    host = Host()
    host.fill(24)
    why = "76% of the disk used, more than 75%"
    async with host.up():
        await host.plane.collector.refresh()
        answers = await host.plane.prefetcher.prefetch([ListedImage(image=A), ListedImage(image="Not A Name")])
        await host.until(lambda: len(host.plane.puller.pulls.items) == 2)
        pulls = {one.image: one for one in host.plane.puller.pulls.items.values()}
        explained = await host.plane.node.explain(A)
        await host.clock.advance(600)
        reasons = host.plane.told.reasons()
        host.fill(80)
        await host.plane.collector.refresh()
        await host.clock.advance(61)
        await host.until(lambda: A in host.names())
        left = {one.image for one in host.plane.puller.pulls.items.values() if one.stage == "skipped"}

    assert [(one.image, one.state, one.why) for one in answers] == [
        (A, "skipped", why),
        ("Not A Name", "skipped", "it is not an image name"),
    ]
    assert (pulls[A].stage, pulls[A].wait_text) == ("skipped", why)
    assert f"skip {A}: {why}" in explained.sentences
    assert explained.pull is None
    assert reasons == ["PrefetchSkipped"] * 2, "once each, however long it holds"
    assert left == {"Not A Name"}


async def test_a_prefetch_that_failed_says_when_it_is_tried_again() -> None:
    """FI-25."""
    host = Host()
    async with host.up():
        await host.plane.prefetcher.prefetch([ListedImage(image="r.io/late:1")])
        await host.until(lambda: host.plane.prefetcher._retry_at)
        (answer,) = await host.plane.prefetcher.prefetch([ListedImage(image="r.io/late:1")])

    assert (answer.state, answer.why) == ("queued", "its last pull failed; the next begins in 30s")


async def test_what_would_fill_the_disk_is_not_fetched_ahead() -> None:
    """IMG-F06: by the size that an earlier pull told."""
    host = Host(listed=(ListedImage(image=A),))
    strict = replace(host.settings, prefetch=replace(host.settings.prefetch, low=78))
    async with host.up():
        prefetcher = host.plane.prefetcher
        await host.until(lambda: [one.stage for one in host.plane.puller.pulls.items.values()] == ["done"])
        await host.cri.remove_image(A)
        host.fill(24)
        await host.plane.collector.refresh()
        prefetcher.apply(host.settings)
        await host.until(lambda: str(prefetcher.plan) == f"skip {A}: 76% of the disk used, more than 75%")
        host.fill(25)
        await host.plane.collector.refresh()
        prefetcher.apply(strict)
        await host.until(lambda: str(prefetcher.plan) == f"skip {A}: it would bring the disk above 78%")

        assert host.names() == set()


class Pods:
    """Pods of a test."""

    trouble = ""

    def __init__(self, *snapshots) -> None:
        self.given = snapshots

    async def snapshots(self):
        for snapshot in self.given:
            yield snapshot
        await asyncio.Event().wait()


async def test_images_of_bound_pods_are_fetched_and_held() -> None:
    """IMG-F01, F06; the switch works without a restart."""
    host = Host()
    wanted = replace(host.settings, prefetch=replace(host.settings.prefetch, is_for_pods=True))
    host.pods = Pods([PodImage(pod=PodIdentity("u", "ns", "p"), image=A)])
    host.containerd.records[A] = ImageRecord(A, "sha256:a", "m", 1, 0.0)
    host.build()
    async with host.up():
        await host.clock.advance(100)

        assert host.names() == set()

        host.plane.prefetcher.apply(wanted)
        await host.until(lambda: A in host.names())
        await host.until(lambda: host.containerd.records[A].labels)
        await host.clock.advance(3700)
        await host.until(lambda: not host.containerd.records[A].labels)


async def test_for_a_pod_that_runs_nothing_is_fetched_ahead() -> None:
    """FI-14: it is followed for its priority alone."""
    host = Host()
    host.settings = replace(host.settings, prefetch=replace(host.settings.prefetch, is_for_pods=True))
    host.pods = Pods(
        [
            PodImage(pod=PodIdentity("u", "ns", "p"), image=A, is_started=True),
            PodImage(pod=PodIdentity("v", "ns", "q"), image=B),
        ]
    )
    host.build()
    async with host.up():
        await host.until(lambda: B in host.names())

        assert host.names() == {B}


async def test_pods_that_cannot_be_followed_are_told_and_keep_nobody_from_being_ready() -> None:
    host = Host()
    host.pods = Pods([])
    host.pods.trouble = "403: pods is forbidden"
    host.build()
    async with host.up():
        host.plane.prefetcher.apply(replace(host.settings, prefetch=replace(host.settings.prefetch, is_for_pods=True)))
        told = "0 fetching; pods are not followed: 403: pods is forbidden"
        await host.until(lambda: host.plane.board.line("prefetcher").message == told)

        assert host.plane.board.line("prefetcher").state == "ready"


async def test_what_only_pods_wanted_that_are_gone_is_fetched_no_longer() -> None:
    """IMG-S17: neither what runs nor what waits; what a list names too is."""
    host = Host(listed=(ListedImage(image=C),))
    wanted = replace(host.settings, prefetch=replace(host.settings.prefetch, is_for_pods=True))
    news: asyncio.Queue[list[PodImage]] = asyncio.Queue()
    stuck = asyncio.Event()

    class Following:
        trouble = ""

        async def snapshots(self):
            while True:
                yield await news.get()

    async def pulling(_image, _auth) -> None:
        await stuck.wait()

    host.pods, host.cri.while_pulling = Following(), pulling
    host.build()
    async with host.up():
        host.plane.prefetcher.apply(wanted)
        news.put_nowait([PodImage(pod=PodIdentity("u", "ns", "p"), image=one) for one in (A, B, C)])
        await host.until(lambda: len(host.plane.puller.wanted_images()) == 3)
        news.put_nowait([PodImage(pod=PodIdentity("v", "ns", "q"), image=B)])
        await host.until(lambda: host.plane.puller.wanted_images() == {B, C})
        news.put_nowait([])
        await host.until(lambda: host.plane.puller.wanted_images() == {C})
        stuck.set()
        await host.until(lambda: host.names() == {C})

        # and it is fetched when somebody wants it again
        news.put_nowait([PodImage(pod=PodIdentity("w", "ns", "r"), image=A)])
        await host.until(lambda: host.names() == {A, C})


async def test_a_prefetch_that_fails_is_tried_again_later() -> None:
    host = Host(listed=(ListedImage(image="r.io/late:1"),))
    async with host.up():
        await host.until(lambda: "PullImage" in host.cri.calls)
        host.cri.registry.add("r.io/late:1")
        await host.clock.advance(20)
        assert host.names() == set()
        await host.clock.advance(100)
        await host.until(lambda: host.names() == {"r.io/late:1"})


async def test_what_somebody_deletes_again_and_again_is_given_up() -> None:
    """IMG-F06."""
    host = Host(listed=(ListedImage(image=A),))
    async with host.up():
        for number in (1, 2, 3):
            await host.until(lambda number=number: len(host.plane.prefetcher._fetched_at.get(A, ())) == number)
            await host.cri.remove_image(A)
            await host.clock.advance(61)
        await host.clock.advance(300)

        assert host.names() == set()
        assert host.plane.told.reasons().count("PrefetchThrashing") == 1


# the watcher

LAYERS = [f"sha256:{letter * 64}" for letter in "12"]
CONFIG = f"sha256:{'c' * 64}"


def manifest(*layers) -> bytes:
    listed = [{"digest": digest, "size": 100} for digest in layers]
    return json.dumps({"config": {"digest": CONFIG, "size": 10}, "layers": listed}).encode()


def label(path: str) -> dict[str, str]:
    return {"containerd.io/distribution.source.r.io": path}


@asynccontextmanager
async def watching():
    clock, containerd = FakeClock(), FakeContainerd()
    watcher = ProgressWatcher(containerd, clock=clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await clock.advance(100)
        yield watcher, containerd, clock
        task.cancel()


async def test_a_pull_is_followed_from_its_manifest_to_its_last_layer() -> None:
    """IMG-T01 to T04."""
    async with watching() as (watcher, containerd, clock):
        containerd.put_blob(BlobInfo(LAYERS[0], 100, 0.0, label("b")))
        watcher.follow(1, parse_reference(A))
        await clock.advance(1)
        content = manifest(*LAYERS)
        containerd.put_blob(BlobInfo("sha256:m", len(content), clock.wall_s(), label("other,a")), content)
        config = json.dumps({"rootfs": {"diff_ids": ["sha256:d1", "sha256:d2"]}}).encode()
        containerd.put_blob(BlobInfo(CONFIG, len(config), clock.wall_s()), config)
        containerd.ingests = [Ingest(f"layer-{LAYERS[1]}", 40, 100)]
        await clock.advance(2)
        progress = watcher.progress(1)

        assert [layer.stage for layer in progress.layers] == [LayerStage.CACHED, LayerStage.DOWNLOADING]
        assert progress.layers[1].done_bytes == 40

        containerd.ingests = []
        containerd.put_blob(BlobInfo(LAYERS[1], 100, clock.wall_s()))
        await clock.advance(2)

        assert watcher.progress(1).is_downloaded

        containerd.emit_store(StoreEvent(StoreEventKind.UNPACKING, f"extract-1 {watcher.progress(1).chains[1]}"))
        await clock.advance(6)
        assert watcher.progress(1).layers[1].stage is LayerStage.UNPACKING
        containerd.emit_store(StoreEvent(StoreEventKind.UNPACKED, watcher.progress(1).chains[1]))
        await clock.advance(6)

        assert watcher.progress(1).layers[1].stage is LayerStage.DONE
        assert watcher.leave(1).unpacked_layers == 1
        assert watcher.progress(1) is None


async def test_two_manifests_that_could_be_meant_are_neither() -> None:
    """IMG-T02: never a guess; but movement counts for the deadline."""
    async with watching() as (watcher, containerd, clock):
        watcher.follow(1, parse_reference(A))
        for name in ("m1", "m2"):
            content = manifest(LAYERS[0]) + b" " * len(name)
            containerd.put_blob(BlobInfo(f"sha256:{name}", len(content), clock.wall_s(), label("a")), content)
        await clock.advance(30)
        still = watcher.progress(1)
        containerd.ingests = [Ingest(f"layer-{LAYERS[0]}", 40, 100)]
        await clock.advance(5)

        assert still.manifest is None
        assert watcher.progress(1).done_bytes == 0
        assert watcher.progress(1).moved_s > still.moved_s


async def test_a_digest_names_its_manifest() -> None:
    """IMG-T02."""
    digest = f"sha256:{'f' * 64}"
    async with watching() as (watcher, containerd, clock):
        content = manifest(LAYERS[0])
        containerd.put_blob(BlobInfo(digest, len(content), 0.0, label("a")), content)
        containerd.put_blob(BlobInfo("sha256:other", len(content), clock.wall_s(), label("a")), content)
        watcher.follow(1, parse_reference(f"r.io/a@{digest}"))
        await clock.advance(2)

        assert watcher.progress(1).manifest.digest == digest


async def test_a_store_that_cannot_be_watched_only_switches_progress_off() -> None:
    """IMG-T08."""
    async with watching() as (watcher, containerd, clock):
        watcher.follow(1, parse_reference(A))
        await clock.advance(2)
        assert watcher.is_visible
        containerd.reachable = False
        with capture_logs() as logs:
            await clock.advance(5)

        assert not watcher.is_visible
        assert [line["event"] for line in logs].count("image_progress_lost") == 1

        containerd.reachable = True
        await clock.advance(5)

        assert watcher.is_visible


async def test_nothing_is_polled_while_nothing_is_pulled() -> None:
    """IMG-T01."""
    clock, containerd = FakeClock(), FakeContainerd()
    calls = 0
    list_ingests = containerd.list_ingests

    async def counting():
        nonlocal calls
        calls += 1
        return await list_ingests()

    containerd.list_ingests = counting
    watcher = ProgressWatcher(containerd, clock=clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await clock.advance(100)
        assert calls == 0
        watcher.follow(1, parse_reference(A))
        await clock.advance(3)
        assert calls > 0
        watcher.leave(1)
        await clock.advance(2)
        rest = calls
        await clock.advance(100)
        assert calls == rest
        task.cancel()


# what people are told


async def test_an_explanation_says_what_bears_on_an_image() -> None:
    """API-06."""
    host = Host()
    await host.put(A)
    async with host.up():
        present = await host.plane.node.explain(A)
        absent = await host.plane.node.explain("r.io/none")
        bad = await host.plane.node.explain("Not:A:Name")

    assert present.is_present
    assert any("is on the node" in sentence for sentence in present.sentences)
    assert absent.reference == "r.io/none:latest"
    assert "r.io/none:latest is not on the node" in absent.sentences
    assert any("`kepctl pull r.io/none:latest` would" in sentence for sentence in absent.sentences)
    assert bad.sentences[0].startswith("couldn't parse image name")


async def test_mirrors_are_shown_for_what_is_here_and_what_is_configured(tmp_path) -> None:
    """IMG-R01; FX-10: without the login that a URL may have."""
    from agent.images.run.node_images import NodeImages

    host = Host()
    await host.put(A)
    (tmp_path / "r.io").mkdir()
    (tmp_path / "r.io" / "hosts.toml").write_text('[host."http://u:pa/ss@mirror:5000"]\n')
    await host.plane.collector.refresh()
    plane = host.plane
    node = NodeImages(plane.puller, plane.collector, plane.prefetcher, lambda: tmp_path, plane.inspector)
    rows = [(one.registry, one.url) for one in await node.mirrors()]

    assert rows == [("r.io", "http://***@mirror:5000"), ("r.io", "https://r.io")]


@pytest.mark.parametrize("is_present", [True, False])
async def test_gauges_are_there_for_a_scrape(is_present) -> None:
    """IMG-M03, M05."""
    host = Host()
    if is_present:
        await host.put(A)
    await host.plane.collector.refresh()

    assert host.plane.collector.counts() == {"used": 0, "unused": int(is_present), "pinned": 0}
    assert host.plane.puller.gauges().limits[0].limit == 3


# content that is fetched and not unpacked


class Contents:
    """A place for content; a fetch ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held: list[str] = []
        self.gate = asyncio.Event()
        self.failures: list[RuntimeCallFailed] = []
        self.why_not = ""

    async def obstacle(self, reference) -> str:
        return self.why_not

    async def fetch(self, reference, credential, server) -> int:
        del credential, server
        self.asked.append(reference)
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        self.held.append(reference)
        return 100

    async def drop(self, reference) -> None:
        self.held = [one for one in self.held if one != reference]


def content_host() -> tuple[Host, Contents]:
    contents = Contents()
    host = Host(listed=(ListedImage(image=A, is_content_only=True),))
    host.contents = contents
    host.build()
    return host, contents


async def test_content_is_fetched_under_the_limit_without_an_image_and_dropped_with_its_line() -> None:
    """IMG-F04, F05: nothing in the runtime's list of images; held anew before a day is over."""
    host, contents = content_host()
    async with host.up():
        await host.until(lambda: contents.asked == [A])
        contents.gate.set()
        await host.until(lambda: contents.held == [A])
        await host.until(lambda: [one.stage for one in host.plane.puller.pulls.items.values()] == ["done"])

        assert host.names() == set()
        assert host.cri.calls.count("PullImage") == 0

        for _ in range(13):
            await host.clock.advance(3600)
        await host.until(lambda: contents.held == [A, A])
        contents.held.pop()
        host.plane.prefetcher.apply(replace(host.settings, listed=()))
        await host.until(lambda: contents.held == [])


async def test_content_that_this_node_cannot_fetch_is_refused_once_with_its_reason() -> None:
    """IMG-F04: on containerd 1.6, or without containerd; nothing else is affected."""
    host, contents = content_host()
    contents.why_not = "content without its image needs containerd 1.7"
    async with host.up():
        await host.until(lambda: "PrefetchRefused" in host.plane.told.reasons())
        for _ in range(3):
            await host.clock.advance(60)
        explained = await host.plane.node.explain(A)

    assert contents.asked == []
    assert host.plane.told.reasons() == ["PrefetchRefused"]
    assert f"skip {A}: {contents.why_not}" in explained.sentences


async def test_a_pod_that_wants_the_image_meanwhile_gets_it_from_the_same_pull() -> None:
    """IMG-F04, S16: the pull becomes the pod's; it ends when the image can be used."""
    host, contents = content_host()
    async with host.up():
        await host.until(lambda: contents.asked == [A])
        wish = asyncio.create_task(host.plane.puller.request(pod_request(A)))
        await host.until(lambda: [len(one.requesters) for one in host.plane.puller.pulls.items.values()] == [2])
        contents.gate.set()
        outcome = await wish

    assert outcome.image_id
    assert host.names() == {A}
    assert host.cri.calls.count("PullImage") == 1


async def test_content_that_cannot_be_fetched_leaves_the_pods_pull_its_own_try() -> None:
    """IMG-F04."""
    host, contents = content_host()
    contents.failures.append(RuntimeCallFailed("Fetch", "content of it: the registry answered with status 500"))
    async with host.up():
        await host.until(lambda: contents.asked == [A])
        wish = asyncio.create_task(host.plane.puller.request(pod_request(A)))
        await host.until(lambda: [len(one.requesters) for one in host.plane.puller.pulls.items.values()] == [2])
        contents.gate.set()

        assert (await wish).image_id


def pod_request(image: str) -> PullRequest:
    return PullRequest(image=image, policy=PullPolicy.IF_NOT_PRESENT, pod=PodIdentity("u", "ns", "p"))
