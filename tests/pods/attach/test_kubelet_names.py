# SPDX-License-Identifier: Apache-2.0
"""Figures under a kubelet's names (CMX-08)."""

from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.api.metrics import FamilyPage
from agent.config.document import Configuration
from agent.kit.plane import compatible
from agent.pods.attach.kubelet_names import kubelet_families
from agent.pods.run.metrics import PodMetrics
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, manifest, running


def samples(metrics: PodMetrics, plane_pods: object = ()) -> dict[tuple[str, tuple[str, ...]], float]:
    page = FamilyPage(lambda: kubelet_families(metrics, plane_pods, 2))  # type: ignore[arg-type]
    text = page.page({}, {}).body.decode()
    return {
        (one.name, tuple(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.startswith("kubelet_")
    }


def test_starts_are_those_that_were_tried() -> None:
    """CMX-08: with errors beside them; sidecars are init containers for a kubelet."""
    metrics = PodMetrics()
    for kind in ("main", "main", "init", "sidecar", "ephemeral"):
        metrics.container_started(kind, 1.0, 0.5)
    metrics.start_failed("main", "ErrImagePull")
    metrics.start_failed("main", "RunContainerError")
    for kind in ("hard", "soft"):
        metrics.evicted("memory.available", kind)
    found = samples(metrics)

    assert {labels: value for (name, labels), value in found.items() if name == "kubelet_started_containers_total"} == {
        ("container",): 4, ("init_container",): 2, ("ephemeral_container",): 1,
    }  # fmt: skip
    assert found["kubelet_started_containers_errors_total", ("ErrImagePull", "container")] == 1
    assert found["kubelet_evictions", ("memory.available",)] == 2
    assert found["kubelet_cgroup_version", ()] == 2


async def test_what_runs_is_counted_by_its_state(tmp_path: Path) -> None:
    """CMX-08."""
    cri, manifests = (
        Slow(),
        FakeManifestDirectory({"/m/w.yaml": manifest("web", "i"), "/m/b.yaml": manifest("b", "no")}),
    )
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running", b="Pending")
        await plane.until(lambda: any(plane.metrics.start_errors), "the error")
        found = samples(plane.metrics, plane.runner.pods.items.values())
        assert found["kubelet_running_pods", ()] == 1
        assert found["kubelet_running_containers", ("running",)] == 1
        assert found["kubelet_running_containers", ("exited",)] == 0
        assert found["kubelet_pod_start_sli_duration_seconds_count", ()] == 1
        assert found["kubelet_pod_start_total_duration_seconds_count", ()] == 1
        assert found["kubelet_started_containers_errors_total", ("ErrImagePull", "container")] >= 1


def test_they_are_shown_while_they_are_asked_for() -> None:
    """CMX-08: also after a reload."""
    plain = Configuration()
    current = [plain]
    families = compatible(lambda: current[-1], "kubelet", lambda: kubelet_families(PodMetrics(), (), 1))
    before = list(families())
    current.append(replace(plain, telemetry=replace(plain.telemetry, metrics_compat=("coredns", "kubelet"))))

    assert before == []
    assert "kubelet_running_pods" in [one.name for one in families()]
