# SPDX-License-Identifier: Apache-2.0
"""Counts of probes under a kubelet's names, which leave with the pod (DUR-05)."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent.api.metrics import FamilyPage
from agent.pods.plan.probe import AnswerKind
from agent.pods.run.metrics import MOST_NAMESPACES, PodMetrics, Probed

ACCEPT = {"accept": "application/openmetrics-text; version=1.0.0"}


def probed(kind: str = "liveness", uid: str = "u1") -> Probed:
    return Probed(kind=kind, container="main", pod=f"pod-{uid}", namespace="default", uid=uid)


def test_results_have_a_kubelets_words_and_go_with_the_pod() -> None:
    figures = PodMetrics().probes
    for kind in AnswerKind:
        figures.ran(probed(), kind, 0.02)
    figures.ran(probed("readiness", "u2"), AnswerKind.SUCCESS, 0.3)
    page = FamilyPage(figures.named_families).page({}, ACCEPT)
    counts = {
        (one.labels["pod"], one.labels["probe_type"], one.labels["result"]): one.value
        for family in text_string_to_metric_families(page.body.decode())
        for one in family.samples
        if one.name == "prober_probe_total"
    }
    figures.forget("u1")
    after = FamilyPage(figures.named_families).page({}, {}).body.decode()

    assert counts == {
        ("pod-u1", "Liveness", "successful"): 2, ("pod-u1", "Liveness", "failed"): 1,
        ("pod-u1", "Liveness", "unknown"): 1, ("pod-u2", "Readiness", "successful"): 1,
    }  # fmt: skip
    assert "prober_probe_duration_seconds_bucket" in page.body.decode()
    assert "pod-u1" not in after
    assert "pod-u2" in after


def test_a_start_is_told_with_and_without_its_image() -> None:
    """DUR-01."""
    metrics = PodMetrics()
    metrics.container_started("main", 3.0, 2.5)
    family = next(one for one in metrics.families() if one.name == "kepd_container_start_duration_seconds")
    sums = {one.labels["pull"]: one.value for one in family.samples if one.name.endswith("_sum")}

    assert sums == {"with": 3.0, "without": 0.5}


def test_on_demand_starts_have_a_namespace_and_of_these_there_is_a_bound() -> None:
    """DUR-02: beyond it they share one series."""
    is_on = [True]
    metrics = PodMetrics(lambda: is_on[-1])
    for number in range(MOST_NAMESPACES + 50):
        metrics.container_started("main", 1.0, 0.0, namespace=f"n{number}")
    metrics.container_started("main", 1.0, 0.0, namespace="n7")

    def counts() -> dict[str | None, float]:
        family = next(one for one in metrics.families() if one.name == "kepd_container_start_duration_seconds")
        return {
            one.labels.get("namespace"): one.value
            for one in family.samples
            if one.name.endswith("_count") and one.labels["pull"] == "with"
        }

    found = counts()
    is_on.append(False)

    assert len(found) == MOST_NAMESPACES + 1
    assert (found["n0"], found["n7"], found[""]) == (1, 2, 50)
    assert counts() == {None: MOST_NAMESPACES + 51}
