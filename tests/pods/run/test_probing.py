# SPDX-License-Identifier: Apache-2.0
"""Probes of a pod at work: who is asked when, and what follows."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.pods.plan.work import Probing
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.jumping import by_the_wall, jumps
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, running

__all__ = ["jumps"]

READINESS = "readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}"
LIVENESS = "livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 1}"
STARTUP = "startupProbe: {tcpSocket: {port: 82}, periodSeconds: 1, failureThreshold: 100}"
PORTS = "ports: [{name: web, containerPort: 80}]"


@pytest.fixture
def cri() -> Slow:
    made = Slow()
    made.registry.add("i:1")
    # Containers that began before kepd are asked at some moment of their period, not at once.
    made._now_ns = time.time_ns
    return made


def manifests(*fields: str, sidecar: str = "", spec: str = "") -> FakeManifestDirectory:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  {spec}\n"
    if sidecar:
        text += f'  initContainers: [{{name: net, image: "i:1", restartPolicy: Always, {sidecar}}}]\n'
    text += f'  containers: [{{name: app, image: "i:1", {", ".join(fields)}}}]\n'
    return FakeManifestDirectory({"/m/f.yaml": text.encode()})


def one(plane: Plane, name: str = "app"):
    return next(one for one in plane.pod().containers if one.name == name)


def told(plane: Plane, reason: str) -> list[tuple[str, str]]:
    return [(event.container, event.message) for event in plane.events if event.reason == reason]


def probes(plane: Plane) -> set[str]:
    run = plane.runner.keeper("default", "web-n").run  # type: ignore[union-attr]
    return {work.kind.value for work in run.tasks if isinstance(work, Probing)}


async def test_a_port_is_found_by_its_name_and_readiness_only_marks(cri: Slow, tmp_path: Path) -> None:
    """PRB-13, PRB-15; PRB-06: each failing run is told."""
    async with running(cri, manifests(READINESS, PORTS), tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: told(plane, "Unhealthy"), "it is told")
        assert not one(plane).is_ready
        plane.probe_client.answers[80] = 200
        await plane.until(lambda: one(plane).is_ready, "ready")

    assert told(plane, "Unhealthy")[0] == (
        "app",
        "Readiness probe failed: dial tcp 10.0.0.2:80: connect: connection refused",
    )
    assert cri.stops == []


async def test_nothing_else_is_asked_before_a_container_has_started(cri: Slow, tmp_path: Path) -> None:
    """PRB-04: and nothing is asked about its start afterwards."""
    given = manifests(STARTUP, LIVENESS, READINESS, PORTS)
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: told(plane, "Unhealthy"), "the start is asked for")
        assert probes(plane) == {"startup"}
        plane.probe_client.answers.update({80: 200, 81: 200, 82: 200})
        await plane.until(lambda: one(plane).is_started, "it has started")
        await plane.until(lambda: probes(plane) == {"liveness", "readiness"}, "the others are asked")
        await plane.until(lambda: one(plane).is_ready, "ready")

    assert {message.split()[0] for _, message in told(plane, "Unhealthy")} == {"Startup"}


async def test_a_sidecar_that_fails_its_liveness_restarts_alone(cri: Slow, tmp_path: Path) -> None:
    """PRB-11, PRB-12: it is held back by no main, and mains stay up."""
    given = manifests(PORTS, sidecar=f"{LIVENESS}, lifecycle: {{preStop: {{exec: {{command: [flush]}}}}}}")
    async with running(cri, given, tmp_path) as plane:
        plane.probe_client.answers[81] = 200
        await plane.until_phases(web="Running")
        app = one(plane).id
        cri.may_stop.clear()
        del plane.probe_client.answers[81]
        await plane.until(lambda: cri.stopping, "it is ended")
        plane.probe_client.answers[81] = 200
        cri.may_stop.set()
        await plane.until(lambda: one(plane, "net").restart_count == 1, "and started again")

        assert one(plane).id == app
    assert {name for name, _ in cri.stops} == {"net"}
    assert "ExecSync" in cri.calls
    assert told(plane, "Killing") == [("net", "Container net failed liveness probe, will be restarted")]


async def test_what_will_not_be_restarted_is_not_said_to_be(cri: Slow, tmp_path: Path) -> None:
    """PRB-11 with policy Never."""
    async with running(cri, manifests(LIVENESS, spec="restartPolicy: Never"), tmp_path) as plane:
        await plane.until_phases(web="Failed")

    assert told(plane, "Killing")[0] == ("app", "Container app failed liveness probe")


async def test_while_a_pod_ends_readiness_goes_on_and_liveness_does_not(cri: Slow, tmp_path: Path) -> None:
    """TRM-26."""
    given = manifests(LIVENESS, READINESS, PORTS)
    async with running(cri, given, tmp_path) as plane:
        plane.probe_client.answers.update({80: 200, 81: 200})
        await plane.until(lambda: plane.phases and one(plane).is_ready, "ready")
        cri.may_stop.clear()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: cri.stopping == {"app"}, "it ends")
        await plane.until(lambda: probes(plane) == {"readiness"}, "one kind of probe is left")
        del plane.probe_client.answers[80]
        await plane.until(lambda: not one(plane).is_ready, "Ready follows")
        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")


# The runtime tells when a container started by the wall, and one from before this process is asked later.
@by_the_wall
async def test_who_was_ready_before_a_restart_of_kepd_stays_so_until_its_own_word(cri: Slow, tmp_path: Path) -> None:
    """PRB-17."""
    given = manifests(READINESS.replace("periodSeconds: 1", "periodSeconds: 3600"), PORTS)
    async with running(cri, given, tmp_path) as plane:
        plane.probe_client.answers[80] = 200
        await plane.until(lambda: plane.phases and one(plane).is_ready, "ready")
        run = plane.runner.keeper("default", "web-n").run  # type: ignore[union-attr]
        await plane.until(lambda: run.saved_memory == run.memory, "it is written down")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.rounds()

        assert one(plane).is_ready


async def test_commands_of_probes_wait_for_a_free_place(cri: Slow, tmp_path: Path) -> None:
    """PRB-18: how many run at once is bounded for the whole node."""
    most, at_once, may_end = [0], [0], asyncio.Event()

    async def slow(_container_id: str, _command: list[str], _timeout_s: int) -> pb.ExecSyncResponse:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        await may_end.wait()
        at_once[0] -= 1
        return pb.ExecSyncResponse()

    cri.exec_sync = slow  # type: ignore[method-assign]
    probe = "readinessProbe: {exec: {command: [x]}, periodSeconds: 1}"
    given = manifests(probe, sidecar=probe)
    other = manifests(probe)._files["/m/f.yaml"].replace(b"name: web", b"name: other")
    given.put("/m/g.yaml", other)
    async with running(cri, given, tmp_path, exec_probe_concurrency=2) as plane:
        await plane.until(lambda: at_once[0] == 2, "two run")
        await plane.rounds()
        assert most[0] == 2
        may_end.set()
        pods = plane.runner.pods.items
        await plane.until(lambda: all(each.is_ready for pod in pods.values() for each in pod.containers), "all asked")

    assert most[0] == 2


async def test_commands_that_hang_in_one_pod_hold_no_other_pods_probes_up(cri: Slow, tmp_path: Path) -> None:
    """FP-15, PRB-18: a pod has a share of the places, however many of its probes wait."""
    hung: list[str] = []

    async def exec_sync(_container_id: str, command: list[str], _timeout_s: int) -> pb.ExecSyncResponse:
        if command == ["hang"]:
            hung.append(command[0])
            await asyncio.Event().wait()
        return pb.ExecSyncResponse()

    cri.exec_sync = exec_sync  # type: ignore[method-assign]
    hanging = "readinessProbe: {exec: {command: [hang]}}"
    given = manifests(hanging, sidecar=hanging)
    async with running(cri, given, tmp_path, exec_probe_concurrency=2) as plane:
        await plane.until(lambda: hung, "a command hangs")
        quick = manifests("readinessProbe: {exec: {command: [x]}}")._files["/m/f.yaml"]
        given.put("/m/g.yaml", quick.replace(b"name: web", b"name: other"))
        await plane.until(lambda: "other-n" in plane.phases, "the other one is known")
        await plane.until(lambda: plane.pod("other-n").containers[0].is_ready, "the other one is ready")

    assert hung == ["hang"]


async def test_what_probes_say_of_a_container_that_stands_still_counts_for_nothing(cri: Slow, tmp_path: Path) -> None:
    """CKP-11: while a checkpoint of it is made, also for one that was asked before."""
    asks = "readinessProbe: {httpGet: {port: web}, periodSeconds: 1}"
    async with running(cri, manifests(asks, PORTS), tmp_path) as plane:
        plane.probe_client.answers[80] = 200
        await plane.until_phases(web="Running")
        await plane.until(lambda: one(plane).is_ready, "ready")
        pauses = plane.runner._context.pauses
        asked = len(plane.probe_client.asked)
        with pauses.of(one(plane).id):
            del plane.probe_client.answers[80]
            await plane.until(lambda: len(plane.probe_client.asked) >= asked + 2, "two more probes")
            assert one(plane).is_ready
            assert told(plane, "Unhealthy") == []
        await plane.until(lambda: not one(plane).is_ready, "it counts again")
