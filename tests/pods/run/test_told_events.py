# SPDX-License-Identifier: Apache-2.0
"""What the plane tells of manifests, containers, hooks and probes while pods run on."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.pods.http_question import HttpAnswer, HttpQuestion
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, manifest, running

FILE = "/m/f.yaml"


@pytest.fixture
def cri() -> Slow:
    return Slow()


def reasons(plane: Plane) -> set[str]:
    return {event.reason for event in plane.events}


def pod_with(app: str = "", net: str = "") -> FakeManifestDirectory:
    """With fields of its main, and of its sidecar if it has one."""
    sidecar = f"  initContainers: [{{name: net, image: i, restartPolicy: Always{net}}}]\n" if net else ""
    head = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"
    return FakeManifestDirectory({FILE: f"{head}{sidecar}  containers: [{{name: app, image: i{app}}}]\n".encode()})


async def test_each_container_that_is_made_is_told(cri: Slow, tmp_path: Path) -> None:
    """FH-5."""
    async with running(cri, pod_with(), tmp_path) as plane:
        await plane.until_phases(web="Running")

    told = [event.container for event in plane.events if event.reason == "Created"]
    assert told == ["app"]


async def test_a_manifest_that_breaks_is_told_and_its_pod_runs_on(cri: Slow, tmp_path: Path) -> None:
    """FH-5: it is told to the pod, and once."""
    given = pod_with()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        given.put(FILE, b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: 5}\n")
        await plane.until(lambda: "ManifestStale" in reasons(plane), "told")
        await plane.rounds()

        assert plane.phases == {"web-n": "Running"}
    assert [event.reason for event in plane.events].count("ManifestStale") == 1


async def test_a_second_manifest_of_a_pod_is_told_and_the_first_counts(cri: Slow, tmp_path: Path) -> None:
    """FH-5."""
    given = FakeManifestDirectory({"/m/a.yaml": manifest(), "/m/b.yaml": manifest()})
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: "ManifestDuplicate" in reasons(plane), "told")

        assert len(plane.phases) == 1


async def test_a_probe_that_is_sent_elsewhere_is_told_and_counts_as_success(cri: Slow, tmp_path: Path) -> None:
    """PRB-08, FH-5."""
    probe = ", readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}"
    async with running(cri, pod_with(probe), tmp_path) as plane:
        plane.probe_client.answers[80] = HttpAnswer(status=302, body=b"bye", is_redirect_elsewhere=True)
        await plane.until(lambda: plane.phases and plane.pod().containers[0].is_ready, "ready")
        await plane.until(lambda: "ProbeWarning" in reasons(plane), "told")


async def test_a_hook_that_is_answered_in_plain_http_is_told(cri: Slow, tmp_path: Path) -> None:
    """HOK-08, FH-5."""
    given = pod_with(", lifecycle: {preStop: {httpGet: {port: 80, scheme: HTTPS}}}")
    async with running(cri, given, tmp_path) as plane:

        async def answer(question: HttpQuestion) -> HttpAnswer:
            if question.is_tls:
                raise ValueError("http: server gave HTTP response to HTTPS client")
            return HttpAnswer(status=200)

        plane.probe_client.http_get = answer  # type: ignore[method-assign]
        await plane.until_phases(web="Running")
        given.put(FILE, None)
        await plane.until(lambda: not plane.phases, "gone")

    assert "LifecycleHTTPFallback" in reasons(plane)


async def test_a_log_link_that_cannot_be_made_is_told_and_the_container_runs(
    cri: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FH-5."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.pods.run.disk.logs.LogDirectories.link", full)
    async with running(cri, pod_with(), tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: "FailedSync" in reasons(plane), "told")

    assert "log link of app: No space left on device" in {event.message for event in plane.events}


async def test_a_sidecar_that_ends_before_its_turn_is_told_to_be_restarted(cri: Slow, tmp_path: Path) -> None:
    """TRM-15, FH-5."""
    given = pod_with(net=", env: []")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        cri.may_stop.clear()
        given.put(FILE, None)
        await plane.until(lambda: cri.stopping == {"app"}, "its main ends")
        cri.exit(next(one.id for one in plane.pod().containers if one.name == "net"), 1)
        plane.runner.rounds.due.set()
        await plane.until(lambda: "SidecarRestartedWhileTerminating" in reasons(plane), "told")
        cri.may_stop.set()
        await plane.until(lambda: not plane.phases, "gone")
