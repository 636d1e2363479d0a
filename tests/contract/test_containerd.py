# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake and the real containerd."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.containerd.driver import Containerd, task_event
from agent.model.images.platform import node_platform
from agent.model.images.store import BlobInfo, ImageRecord, StoreEvent, StoreEventKind
from agent.model.runtime.error import AlreadyExists, NotFound, NotImplementedByRuntime, RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.wire.containerd import eventtypes_pb2
from tests.fakes.containerd import FakeContainerd


@pytest.fixture(params=["fake", pytest.param("containerd", marks=pytest.mark.node)])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "fake":
        yield FakeContainerd()
        return
    driver = Containerd(request.getfixturevalue("lab").endpoint)
    yield driver
    await driver.close()


async def test_who_it_is(subject: Any) -> None:
    version = await subject.version()

    assert all(part.isdecimal() for part in version.split(".")[:2])


async def test_leases_are_made_listed_and_given_up_once(subject: Any) -> None:
    lease = f"kepd-test-{uuid.uuid4().hex}"
    await subject.create_lease(lease, {"containerd.io/gc.expire": "2040-01-01T00:00:00Z"})

    assert (await subject.list_leases())[lease] == {"containerd.io/gc.expire": "2040-01-01T00:00:00Z"}
    with pytest.raises(AlreadyExists):
        await subject.create_lease(lease, {})

    await subject.delete_lease(lease)

    assert lease not in await subject.list_leases()
    with pytest.raises(NotFound):
        await subject.delete_lease(lease)


async def test_at_rest_nothing_is_being_written(subject: Any) -> None:
    """A download that broke off stays half-written, by design; tests that ran before may have left such ones."""
    for left in await subject.list_ingests():
        await subject.abort_ingest(left.ref)

    assert await subject.list_ingests() == []


@pytest.fixture(params=["fake", pytest.param("containerd", marks=pytest.mark.node)])
async def stocked(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, str]]:
    """A subject that has one image, and its name."""
    if request.param == "fake":
        fake = FakeContainerd()
        name = "registry/contract:1"
        content = b'{"config": {"digest": "sha256:bb"}, "layers": []}'
        fake.put_blob(BlobInfo("sha256:bb", 2, 1.0, {"containerd.io/gc.ref.snapshot.overlayfs": "sha256:cc"}))
        labels = {"containerd.io/distribution.source.registry": "contract"}
        fake.put_blob(BlobInfo("sha256:" + "a" * 64, len(content), 1.0, labels), content)
        fake.records[name] = ImageRecord(name, "sha256:" + "a" * 64, "m", len(content), 1.0, {"a": "b"})
        yield fake, name
        return
    from agent.drivers.cri.driver import CriRuntime
    from tests.lab import Image

    lab = request.getfixturevalue("lab")
    name = lab.push(Image(name="contract/store"))
    cri = CriRuntime(lab.endpoint)
    await cri.pull_image(name)
    driver = Containerd(lab.endpoint)
    yield driver, name
    await cri.remove_image(name)
    await cri.close()
    await driver.close()


async def record_of(subject: Any, name: str) -> ImageRecord:
    return next(one for one in await subject.image_records() if one.name == name)


async def test_names_lead_to_blobs_and_blobs_can_be_read(stocked: Any) -> None:
    """IMG-T02: progress begins here."""
    subject, name = stocked
    record = await record_of(subject, name)
    blob = await subject.blob_info(record.digest)
    content = await subject.read_blob(record.digest, 1 << 20)
    host = name.partition("/")[0].partition(":")[0]
    listed = await subject.list_blobs(f"containerd.io/distribution.source.{host}")

    assert blob is not None
    assert blob.size_bytes == len(content) == record.size_bytes
    assert {"config", "layers"} <= set(json.loads(content))
    assert record.created_at_s > 0
    assert blob in listed
    assert await subject.list_blobs("containerd.io/distribution.source.nobody") == []
    assert await subject.blob_info("sha256:" + "0" * 64) is None
    with pytest.raises(NotFound):
        await subject.read_blob("sha256:" + "0" * 64, 10)
    with pytest.raises(RuntimeCallFailed, match="more than 10 bytes"):
        await subject.read_blob(record.digest, 10)


async def test_where_things_are_kept_and_who_unpacked_an_image_can_be_asked(stocked: Any) -> None:
    """FSY-01, FSY-03: the labels of an image's configuration name the snapshotters that have its layers."""
    subject, name = stocked
    roots = await subject.store_roots()
    manifest = json.loads(await subject.read_blob((await record_of(subject, name)).digest, 1 << 20))
    unpacked = [
        snapshotter
        for snapshotter in roots.snapshotters
        for blob in await subject.list_blobs(f"containerd.io/gc.ref.snapshot.{snapshotter}")
        if blob.digest == manifest["config"]["digest"]
    ]

    assert roots.content.startswith("/")
    assert all(path.startswith("/") for path in roots.snapshotters.values())
    assert len(unpacked) == 1


async def test_single_labels_of_a_name_are_set_and_taken_away(stocked: Any) -> None:
    """IMG-F03: others' labels stay."""
    subject, name = stocked
    before = (await record_of(subject, name)).labels
    await subject.label_image(name, {"kepd.dev/pinned-by": "kepd", "io.cri-containerd.pinned": "pinned"})
    pinned = (await record_of(subject, name)).labels
    await subject.label_image(name, {"kepd.dev/pinned-by": "", "io.cri-containerd.pinned": ""})

    assert pinned == {**before, "kepd.dev/pinned-by": "kepd", "io.cri-containerd.pinned": "pinned"}
    assert (await record_of(subject, name)).labels == before
    with pytest.raises(NotFound):
        await subject.label_image("registry/none:1", {"a": "b"})


async def test_an_image_can_have_a_second_name(stocked: Any) -> None:
    """IMG-R03."""
    subject, name = stocked
    record = await record_of(subject, name)
    second = replace(record, name="registry.invalid/second:1", labels={})
    await subject.create_image(second)

    assert (await record_of(subject, second.name)).digest == record.digest
    with pytest.raises(AlreadyExists):
        await subject.create_image(second)

    # CRI takes note of a new name and writes the record once more; a name deleted before that comes back.
    for _ in range(100):
        if isinstance(subject, FakeContainerd) or (await record_of(subject, second.name)).labels:
            break
        await asyncio.sleep(0.02)
    await subject.delete_image(second.name)

    assert second.name not in [one.name for one in await subject.image_records()]
    with pytest.raises(NotFound):
        await subject.delete_image(second.name)


async def test_what_does_not_exist_is_not_added_to_a_lease_nor_aborted(subject: Any) -> None:
    """IMG-S18."""
    lease = f"kepd-test-{uuid.uuid4().hex}"
    with pytest.raises(NotFound):
        await subject.add_to_lease(lease, "ingests", "layer-x")
    with pytest.raises(NotFound):
        await subject.abort_ingest("layer-x")

    await subject.create_lease(lease, {})
    await subject.add_to_lease(lease, "ingests", "layer-x")
    await subject.delete_lease(lease)


@pytest.mark.node
async def test_a_pull_of_the_real_one_shows_in_the_store_events(lab: Any) -> None:
    """IMG-T03."""
    from agent.drivers.cri.driver import CriRuntime
    from tests.lab import Image

    name = lab.push(Image.sized("contract/store-events", 64 * 1024))
    driver, cri = Containerd(lab.endpoint), CriRuntime(lab.endpoint)
    seen: list[StoreEvent] = []

    async def follow() -> None:
        async for event in driver.store_events():
            seen.append(event)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.3)
        await cri.pull_image(name)
        await asyncio.sleep(0.3)
        task.cancel()
    await cri.remove_image(name)
    await cri.close()
    await driver.close()
    unpacked = {event.name for event in seen if event.kind is StoreEventKind.UNPACKED}
    begun = {event.name.rpartition(" ")[2] for event in seen if event.kind is StoreEventKind.UNPACKING}

    assert unpacked
    assert unpacked <= begun
    assert StoreEvent(StoreEventKind.NAMED, name) in seen


@pytest.mark.node
async def test_a_container_of_the_real_one_shows_in_the_task_events(lab: Any) -> None:
    from tests.lab import Image

    image = lab.preload(Image(name="contract/events"))
    driver = Containerd(lab.endpoint)
    seen: list[RuntimeEvent] = []

    async def follow() -> None:
        async for event in driver.task_events():
            seen.append(event)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.3)
        pod = await asyncio.to_thread(lab.run_pod, "events")
        container = await asyncio.to_thread(pod.run, "main", image)
        await asyncio.to_thread(container.exec, ["true"])
        await asyncio.to_thread(container.stop)
        await asyncio.sleep(0.3)
        task.cancel()
    await asyncio.to_thread(pod.remove)
    await driver.close()
    kinds = [event.kind for event in seen if event.container_id == container.id]

    assert kinds == [EventKind.CREATED, EventKind.STARTED, EventKind.STOPPED, EventKind.DELETED]


def test_the_end_of_an_exec_is_no_news_of_the_container() -> None:
    ended = eventtypes_pb2.TaskExit(container_id="c", id="exec-1", exit_status=3)
    whole = eventtypes_pb2.TaskExit(container_id="c", id="c", exit_status=3)

    assert task_event("containerd.events.TaskExit", ended.SerializeToString()) is None
    assert task_event("containerd.events.TaskExit", whole.SerializeToString()) == RuntimeEvent(
        EventKind.STOPPED, "c", exit_code=3
    )
    assert task_event("containerd.events.TaskPaused", b"") is None


def test_a_kill_for_want_of_memory_is_news_of_its_container() -> None:
    """OOM-03."""
    killed = eventtypes_pb2.TaskOOM(container_id="c").SerializeToString()

    assert task_event("containerd.events.TaskOOM", killed) == RuntimeEvent(EventKind.OOM, "c")


async def test_only_an_old_containerd_has_no_transfer_service(subject: Any) -> None:
    """IMG-F04: 1.6 says so; a later one asks the registry, which is not there."""
    is_old = (await subject.version()).startswith("1.6.")
    with pytest.raises(NotImplementedByRuntime if is_old else RuntimeCallFailed):
        await subject.fetch_content("127.0.0.1:1/a:1", node_platform("x86_64"), hosts_folder="/nowhere", labels={})
