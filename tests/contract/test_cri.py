# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake runtime and for containerd: whatever a plane may rely on holds for both."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent.drivers.cri.driver import CriRuntime, says_ports_are_mapped, told_to_resolve_cdi, told_to_use_systemd
from agent.model.runtime.error import NotFound, NotImplementedByRuntime, RuntimeCallFailed
from agent.model.runtime.event import EventKind
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.cri import FakeCri

STAY = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]


@dataclass
class Subject:
    """A runtime under test with an image it can run."""

    cri: Any
    image: str
    log_directory: str
    cgroup_parent: str
    let_exit: Callable[[str, int], None]


@pytest.fixture(params=["fake", pytest.param("containerd", marks=pytest.mark.node)])
async def subject(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeCri()
        fake.registry.add("registry/contract:1")
        yield Subject(fake, "registry/contract:1", "/logs", "/x", fake.exit)
        return
    from tests.lab import Image

    lab = request.getfixturevalue("lab")
    image = lab.push(Image(name="contract/busybox"))
    driver = CriRuntime(lab.endpoint)
    logs = lab.place.pod_logs / uuid.uuid4().hex
    logs.mkdir(parents=True)

    def unused(container_id: str, code: int) -> None:
        raise AssertionError("a real container ends by its own command")

    yield Subject(driver, image, str(logs), f"{lab.place.cgroup_parent}/{uuid.uuid4().hex[:8]}", unused)
    for sandbox in await driver.list_sandboxes():
        await driver.stop_sandbox(sandbox.id)
        await driver.remove_sandbox(sandbox.id)
    await driver.close()


def sandbox_config(subject: Subject, name: str = "pod") -> pb.PodSandboxConfig:
    options = pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, uid=name, namespace="contract"),
        hostname=name,
        log_directory=subject.log_directory,
        labels={"app": name},
        annotations={"kepd.dev/instance": "x"},
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=subject.cgroup_parent,
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
        ),
    )


def container_config(subject: Subject, command: list[str], name: str = "main") -> pb.ContainerConfig:
    options = pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=name),
        image=pb.ImageSpec(image=subject.image),
        command=command,
        log_path=f"{name}.log",
        linux=pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(namespace_options=options),
        ),
    )


async def start(subject: Subject, command: list[str] | None = None) -> tuple[str, str]:
    config = sandbox_config(subject)
    await subject.cri.pull_image(subject.image)
    sandbox_id = await subject.cri.run_sandbox(config)
    container_id = await subject.cri.create_container(sandbox_id, container_config(subject, command or STAY), config)
    await subject.cri.start_container(container_id)
    return sandbox_id, container_id


async def test_version_and_status(subject: Subject) -> None:
    version = await subject.cri.version(deadline_s=3)
    status = await subject.cri.status()

    assert version.runtime_api_version == "v1"
    assert {"RuntimeReady", "NetworkReady"} <= {one.type for one in status.conditions if one.status}


async def test_a_pod_goes_through_its_life(subject: Subject) -> None:
    sandbox_id, container_id = await start(subject)
    running = await subject.cri.container_status(container_id)
    sandbox = await subject.cri.sandbox_status(sandbox_id)
    listed = [one for one in await subject.cri.list_sandboxes() if one.id == sandbox_id]

    assert running.state == pb.CONTAINER_RUNNING
    assert running.started_at > 0
    assert sandbox.network.ip
    assert listed[0].annotations["kepd.dev/instance"] == "x"
    assert [one.pod_sandbox_id for one in await subject.cri.list_containers() if one.id == container_id] == [sandbox_id]
    assert container_id in [one.id for one in await subject.cri.list_containers(sandbox_id)]
    assert await subject.cri.list_containers("f" * 64) == []

    await subject.cri.stop_container(container_id, 5)
    stopped = await subject.cri.container_status(container_id)

    assert stopped.state == pb.CONTAINER_EXITED

    await subject.cri.stop_sandbox(sandbox_id)
    await subject.cri.stop_sandbox(sandbox_id)
    await subject.cri.remove_sandbox(sandbox_id)
    await subject.cri.remove_sandbox(sandbox_id)

    assert sandbox_id not in [one.id for one in await subject.cri.list_sandboxes()]
    assert container_id not in [one.id for one in await subject.cri.list_containers()]


async def test_a_container_that_ran_cannot_be_started_again(subject: Subject) -> None:
    """LAB-22."""
    _, container_id = await start(subject)
    await subject.cri.stop_container(container_id, 5)

    with pytest.raises(RuntimeCallFailed) as refused:
        await subject.cri.start_container(container_id)

    assert "CONTAINER_EXITED" in refused.value.details


async def test_what_does_not_exist_is_not_found_or_gone(subject: Subject) -> None:
    """LAB-20: stopping and removing what is gone is no error for us, whatever the runtime's version says."""
    with pytest.raises(NotFound):
        await subject.cri.container_status("nothing")
    with pytest.raises(NotFound):
        await subject.cri.sandbox_status("nothing")
    with pytest.raises(RuntimeCallFailed):
        await subject.cri.start_container("nothing")
    await subject.cri.stop_container("nothing", 1)
    await subject.cri.remove_container("nothing")
    await subject.cri.stop_sandbox("nothing")
    await subject.cri.remove_sandbox("nothing")
    await subject.cri.remove_image("registry/nothing:1")

    assert await subject.cri.image_status("registry/nothing:1") is None


async def test_names_are_reserved(subject: Subject) -> None:
    config = sandbox_config(subject)
    await subject.cri.pull_image(subject.image)
    sandbox_id = await subject.cri.run_sandbox(config)
    await subject.cri.create_container(sandbox_id, container_config(subject, STAY), config)

    with pytest.raises(RuntimeCallFailed, match="reserved"):
        await subject.cri.run_sandbox(config)
    with pytest.raises(RuntimeCallFailed, match="reserved"):
        await subject.cri.create_container(sandbox_id, container_config(subject, STAY), config)


async def test_an_image_that_is_not_there_cannot_be_pulled_or_run(subject: Subject) -> None:
    """LAB-26."""
    config = sandbox_config(subject)
    sandbox_id = await subject.cri.run_sandbox(config)
    missing = container_config(subject, STAY)
    missing.image.image = subject.image.replace("contract", "missing")

    with pytest.raises(NotFound):
        await subject.cri.pull_image(missing.image.image)
    with pytest.raises(RuntimeCallFailed, match="not found"):
        await subject.cri.create_container(sandbox_id, missing, config)


async def test_a_pulled_image_is_known_by_name_and_id(subject: Subject) -> None:
    image_id = await subject.cri.pull_image(subject.image)
    by_name = await subject.cri.image_status(subject.image)

    assert by_name is not None
    assert by_name.id == image_id
    assert (await subject.cri.image_status(image_id)).id == image_id
    assert image_id in [image.id for image in await subject.cri.list_images()]


async def test_the_runtime_says_where_images_are_and_what_sandboxes_are_made_of(subject: Subject) -> None:
    """IMG-G03, G05."""
    images, _ = await subject.cri.file_systems()
    assert (await subject.cri.image_filesystem()) == images[0]
    assert images[0].startswith("/")
    assert set(await subject.cri.image_use()) == set(images)
    assert isinstance(await subject.cri.sandbox_image(), str)


async def test_what_a_container_uses_is_known_or_said_not_to_be(subject: Subject) -> None:
    """RSZ-01."""
    _, container_id = await start(subject)
    used = await subject.cri.memory_used(container_id)
    with pytest.raises(NotFound):
        await subject.cri.memory_used("0" * 64)

    assert used is None or used > 0


async def test_exec_answers_with_the_exit_code(subject: Subject) -> None:
    """LAB-23: a non-zero code is an answer."""
    _, container_id = await start(subject)

    assert (await subject.cri.exec_sync(container_id, ["true"], 5)).exit_code == 0
    assert (await subject.cri.exec_sync(container_id, ["false"], 5)).exit_code == 1


async def test_the_event_stream_tells_life_or_says_that_there_is_none(subject: Subject) -> None:
    """containerd 1.6 has no CRI events; 1.7 and later have."""
    seen: list[EventKind] = []
    over = asyncio.Event()

    async def follow() -> None:
        with contextlib.suppress(NotImplementedByRuntime):
            async for event in subject.cri.events():
                seen.append(event.kind)
                if event.kind is EventKind.STOPPED:
                    break
        over.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.1)
        if not over.is_set():
            _, container_id = await start(subject)
            await subject.cri.stop_container(container_id, 5)
            await asyncio.wait_for(over.wait(), 30)
            assert EventKind.STARTED in seen
            assert seen[-1] is EventKind.STOPPED
        task.cancel()


async def test_without_a_runtime_calls_fail_at_once(short_path: Any) -> None:
    from agent.model.runtime.error import Unavailable

    driver = CriRuntime(f"unix://{short_path}/none.sock")
    with pytest.raises(Unavailable) as refused:
        await driver.version(deadline_s=5)
    await driver.close()

    assert refused.value.details == "No such file or directory"


async def test_a_runtime_says_what_it_can_do(subject: Subject) -> None:
    """RES-04, SEC-07: asked once when it comes; an old one says less, and nothing fails for that."""
    features = await subject.cri.features()
    version = await subject.cri.version()

    assert (features.name, features.version) == (version.runtime_name, version.runtime_version)
    assert features.label == f"{version.runtime_name} {version.runtime_version}"
    assert features.uses_systemd is False, "the lab has plain groups"


async def test_a_runtime_that_does_not_say_it_resolves_cdi_ids_passes_them_over(subject: Subject) -> None:
    """DVC-1: the container starts, and lacks its device; that is why what is not known is no."""
    features = await subject.cri.features()
    sandbox = sandbox_config(subject)
    await subject.cri.pull_image(subject.image)
    sandbox_id = await subject.cri.run_sandbox(sandbox)
    config = container_config(subject, STAY)
    config.CDI_devices.add(name="example.com/gpu=nowhere")
    if features.has_cdi:
        with pytest.raises(RuntimeCallFailed, match="nowhere"):
            await subject.cri.create_container(sandbox_id, config, sandbox)
        return
    container_id = await subject.cri.create_container(sandbox_id, config, sandbox)
    await subject.cri.start_container(container_id)

    assert (await subject.cri.container_status(container_id)).state == pb.CONTAINER_RUNNING


@pytest.mark.parametrize(
    ("told", "resolves"),
    [
        ("", False), ("{", False), ("[]", False), ("{}", False), ('{"enableCDI": "true"}', False),
        ('{"enableCDI": false}', False), ('{"enableCDI": true, "cdiSpecDirs": ["/etc/cdi"]}', True),
    ],
)  # fmt: skip
def test_whether_containerd_resolves_cdi_ids_is_read_from_what_it_shows(told: str, resolves: bool) -> None:
    """DVC-1."""
    assert told_to_resolve_cdi(told) is resolves


async def test_a_runtime_says_whether_its_network_maps_host_ports(subject: Subject) -> None:
    """FP-20: the lab's network has portmap."""
    assert await subject.cri.maps_host_ports() is True


def plugins(*found: dict[str, Any]) -> str:
    loopback = {"Config": {"Plugins": [{"Network": {"type": "loopback"}}]}}
    return json.dumps({"Networks": [loopback, {"Config": {"Plugins": [{"Network": one} for one in found]}}]})


@pytest.mark.parametrize(
    ("told", "maps"),
    [
        ("", None), ("{", None), ("{}", None), ('{"Networks": null}', None), (plugins(), None),
        (plugins({"type": "bridge"}), False),
        (plugins({"type": "bridge"}, {"type": "tuning", "capabilities": {"mac": True}}), False),
        (plugins({"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": False}}), False),
        (plugins({"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": True}}), True),
        (plugins({"type": "another", "capabilities": {"portMappings": True}}), True),
    ],
)  # fmt: skip
def test_the_networks_of_containerd_tell_whether_host_ports_are_mapped(told: str, maps: bool | None) -> None:
    """FP-20."""
    assert says_ports_are_mapped(told) is maps


@pytest.mark.parametrize(
    ("told", "uses_systemd"),
    [
        ("", False), ("{", False), ("[]", False), ('{"containerd": null}', False),
        ('{"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": null}}}}', False),
        ('{"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"SystemdCgroup": false}}}}}',
         False),
        ('{"containerd": {"defaultRuntimeName": "k", "runtimes": {"k": {"options": {"SystemdCgroup": true}}}}}', True),
        ('{"containerd": {"defaultRuntimeName": "k", "runtimes": {"runc": {"options": {"SystemdCgroup": true}}}}}',
         False),
    ],
)  # fmt: skip
def test_the_way_of_an_old_containerd_with_groups_is_read_from_what_it_shows(told: str, uses_systemd: bool) -> None:
    """RES-04: only the handler that pods get by default counts."""
    assert told_to_use_systemd(told) is uses_systemd
