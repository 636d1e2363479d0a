# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake and the real containerd."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.drivers.containerd.driver import Containerd, task_event
from agent.drivers.containerd.fake import FakeContainerd
from agent.model.runtime_error import AlreadyExists, NotFound
from agent.model.runtime_event import EventKind, RuntimeEvent
from agent.wire.containerd import eventtypes_pb2


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
    assert uuid.UUID(await subject.server_uuid())


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
    assert await subject.list_ingests() == []
    assert isinstance(await subject.image_labels(), dict)


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
    assert task_event("containerd.events.TaskOOM", b"") is None
