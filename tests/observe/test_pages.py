# SPDX-License-Identifier: Apache-2.0
"""Pages as the library's own parsers read them, and what leaves them where there is too much."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from agent.model.pods.space import PodSpace, VolumeSpace
from agent.observe.pages.cadvisor_page import FileSystem, Wishes, cadvisor_families, fitting_families
from agent.observe.pages.exposition import labels, page
from agent.observe.pages.families import DROP_ORDER
from agent.observe.pages.pod_spaces import space_families
from agent.observe.pages.resource_page import resource_families
from agent.observe.run.pages import MOST_BYTES, PageSettings
from tests.observe.kubelets_families import CADVISOR, LEFT_OUT, OURS_ALONE
from tests.observe.samples import container, figures, pod, sample

DISK = FileSystem("/dev/vda", 100, 10, 5)
Parse = Callable[[str], Iterable[Metric]]
FORMATS = [(False, text_string_to_metric_families), (True, open_families)]


def parsed(is_open: bool, parse: Parse, *pods: object) -> dict[str, Metric]:
    wishes = Wishes(is_open=is_open, devices={"8:0": "/dev/sda"}, layers=DISK)
    text = b"".join(page(cadvisor_families(sample(*pods), wishes), is_open=is_open)).decode()  # type: ignore[arg-type]
    found = list(parse(text))
    assert len({one.name for one in found}) == len(found), "each family is there once"
    return {one.name: one for one in found}


@pytest.mark.parametrize(("is_open", "parse"), FORMATS)
def test_the_page_has_the_families_of_a_kubelet(is_open: bool, parse: Parse) -> None:
    """CMX-04, OBS-12."""
    found = parsed(is_open, parse, pod())
    recorded = dict(line.split() for line in CADVISOR.split("\n") if line)

    assert set(recorded) - set(found) == set()
    assert set(found) - set(recorded) - set(OURS_ALONE) == set()
    assert set(found) & set(LEFT_OUT) == set()
    assert {name for name, kind in recorded.items() if found[name].type not in (kind, "unknown")} == set()


def test_what_is_left_out_is_in_the_docs_with_its_reason() -> None:
    text = (Path(__file__).parents[2] / "docs/observation.md").read_text()

    assert [name for name in LEFT_OUT if f"`{name}`" not in text] == []


@pytest.mark.parametrize(("is_open", "parse"), FORMATS)
def test_levels_are_told_apart_by_their_labels(is_open: bool, parse: Parse) -> None:
    found = parsed(is_open, parse, pod())
    rows = {
        (one.labels["container"], one.labels["name"], one.labels["pod"], one.labels["id"])
        for one in found["container_memory_usage_bytes"].samples
    }
    network = {one.labels["name"] for one in found["container_network_receive_bytes"].samples}

    assert rows == {
        ("", "", "", "/"), ("", "", "", "/kepd"), ("", "", "web", "/kepd/pod1"),
        ("", "s-web", "web", "/kepd/pod1/s-web"), ("main", "id-main", "web", "/kepd/pod1/id-main"),
    }  # fmt: skip
    assert network == {"", "s-web"}, "of a pod only its sandbox, and the node"


@pytest.mark.parametrize(("is_open", "parse"), FORMATS)
def test_units_are_seconds_and_bytes_and_names_of_devices(is_open: bool, parse: Parse) -> None:
    found = parsed(is_open, parse, pod())

    def value(name: str, **more: str) -> float:
        wanted = {"container": "main", **more}
        samples = [one for family in found.values() for one in family.samples if one.name == name]
        (only,) = [one.value for one in samples if wanted.items() <= one.labels.items()]
        return only

    assert value("container_cpu_usage_seconds_total", cpu="total") == 1.5
    assert value("container_cpu_cfs_throttled_seconds_total") == 0.25
    assert value("container_pressure_memory_waiting_seconds_total") == 2.0
    assert value("container_fs_writes_bytes_total", device="/dev/sda") == 2
    assert value("container_fs_usage_bytes", device="/dev/vda") == 4096
    assert value("container_fs_limit_bytes") == 100
    assert value("container_start_time_seconds") == 1000.5
    assert value("container_last_seen") == 2000.25


def test_a_figure_that_is_missing_has_no_line() -> None:
    bare = container(figures=figures(periods=None, kernel=None), layer_bytes=None)
    text = b"".join(page(cadvisor_families(sample(pod(containers=(bare,))), Wishes()), is_open=False)).decode()
    lines = [line for line in text.splitlines() if 'container="main"' in line]

    assert not [line for line in lines if line.startswith(("container_cpu_cfs_periods", "container_memory_kernel"))]
    assert not [line for line in lines if line.startswith("container_fs_usage")]


def test_one_that_ended_keeps_counters_alone() -> None:
    """OBS-10, CMX-03."""
    ended = container(ended_s=5.0)
    text = b"".join(page(cadvisor_families(sample(pod(containers=(ended,))), Wishes()), is_open=False)).decode()
    names = {line.partition("{")[0] for line in text.splitlines() if 'container="main"' in line}

    assert "container_cpu_usage_seconds_total" in names
    assert "container_oom_events_total" in names
    assert "container_memory_usage_bytes" not in names
    assert "container_start_time_seconds" not in names


@pytest.mark.parametrize(("is_open", "parse"), FORMATS)
def test_logs_and_volumes_have_lines_of_what_is_known(is_open: bool, parse: Parse) -> None:
    """VSU-02, VSU-03."""
    volume = VolumeSpace(
        name="cache", used_bytes=4096, used_inodes=2, capacity_bytes=100, available_bytes=50, limit_bytes=8192
    )
    space = PodSpace(namespace="shop", name="web", uid="u1", logs={"main": 12}, volumes=(volume,))
    found = {
        one.name: one
        for one in parse(b"".join(page(space_families([space], is_open=is_open), is_open=is_open)).decode())
    }
    (log,) = found["kubelet_container_log_filesystem_used_bytes"].samples
    sizes = {one.labels["kind"]: one.value for one in found["kepd_pod_volume_bytes"].samples}

    assert log.labels == {"namespace": "shop", "pod": "web", "container": "main", "uid": "u1"}
    assert log.value == 12
    assert sizes == {"used": 4096, "capacity": 100, "available": 50, "limit": 8192}
    assert "kepd_pod_volume_inodes" not in found, "a file system without a number of inodes"


def test_labels_are_escaped_and_cut() -> None:
    assert labels([("a", 'x"y\\z\n')]) == b'a="x\\"y\\\\z\\n"'
    assert len(labels([("a", "é" * 5000)])) <= 1024 + 4


def many(count: int) -> list[object]:
    return [pod(f"p{number}", containers=tuple(container(f"c{one}") for one in range(3))) for number in range(count)]


def test_above_the_bound_whole_families_go_in_order_and_the_most_important_stay() -> None:
    """OBS-11."""
    node = sample(*many(40))  # type: ignore[arg-type]
    whole = sum(one.series for one in cadvisor_families(node, Wishes()))
    groups: list[list[str]] = []
    for share in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.4, 0.01):
        kept, dropped = fitting_families(node, Wishes(), int(whole * share), 1 << 40)
        groups.append([one for one in DROP_ORDER if one in dropped])
        names = {one.name for one in kept}
        assert {
            "container_cpu_usage_seconds_total",
            "container_memory_usage_bytes",
            "container_oom_events_total",
        } <= names

    assert groups[0] == []
    assert groups[-1] == [one for one in DROP_ORDER if one in groups[-1]]
    assert all(first == second[: len(first)] for first, second in pairwise(groups))


def test_two_thousand_containers_stay_within_the_bound() -> None:
    """OBS-11, OBS-13: by what the configuration has without a word of anybody."""
    node = sample(*many(667))  # type: ignore[arg-type]
    settings = PageSettings()
    kept, dropped = fitting_families(node, Wishes(), settings.most_series, MOST_BYTES)

    assert sum(one.series for one in cadvisor_families(node, Wishes())) > settings.most_series
    assert sum(one.series for one in kept) <= settings.most_series
    assert sum(map(len, page(kept, is_open=False))) <= MOST_BYTES
    assert dropped
    assert next(one for one in kept if one.name == "container_cpu_usage_seconds_total").series >= 2001


def test_a_page_is_bound_in_bytes_too() -> None:
    """OBS-13."""
    node = sample(*many(40))  # type: ignore[arg-type]
    whole = sum(map(len, page(cadvisor_families(node, Wishes()), is_open=False)))
    kept, dropped = fitting_families(node, Wishes(), 1 << 40, whole // 2)

    assert dropped
    assert sum(map(len, page(kept, is_open=False))) < whole * 0.6


@pytest.mark.parametrize(("is_open", "parse"), FORMATS)
def test_the_page_for_metrics_servers_has_times(is_open: bool, parse: Parse) -> None:
    """CMX-05, OBS-10."""
    text = b"".join(page(resource_families(sample(pod()), is_open=is_open), is_open=is_open)).decode()
    found = {one.name: one.samples for one in parse(text)}

    (used,) = found["container_cpu_usage_seconds"]
    assert (used.labels, used.value) == ({"container": "main", "namespace": "default", "pod": "web"}, 1.5)
    assert float(str(used.timestamp)) == 2000.25
    assert found["pod_memory_working_set_bytes"][0].value == 7000
    assert found["node_memory_working_set_bytes"][0].value == 5000
    assert found["container_swap_limit_bytes"][0].value == 32 << 20
    assert found["resource_scrape_error"][0].value == found["scrape_error"][0].value == 0


def test_a_pod_without_a_group_is_the_sum_of_what_runs_in_it() -> None:
    """CMX-06."""
    foreign = pod(figures=None, containers=(container("a"), container("b"), container("c", ended_s=1.0)))
    text = b"".join(page(resource_families(sample(foreign), is_open=False), is_open=False)).decode()

    assert 'pod_memory_working_set_bytes{namespace="default",pod="web"} 21000 2000250' in text
