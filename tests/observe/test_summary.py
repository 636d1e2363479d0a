# SPDX-License-Identifier: Apache-2.0
"""/stats/summary as a reader of a kubelet's finds it."""

import json
from typing import Any

import msgspec

from agent.model.nodes.file_system import FileSystemReport
from agent.model.pods.space import PodSpace, VolumeSpace
from agent.observe.kernel.group_text import GroupFigures
from agent.observe.kernel.node_text import read_boot_time
from agent.observe.pages.summary_page import Around, summary
from tests.observe.samples import container, figures, pod, sample

DISK = FileSystemReport(
    mount="/", roles=("node", "image", "logs"), paths=("/",), size_bytes=1000, used_bytes=400, available_bytes=500,
    inodes=100, inodes_free=60,
)  # fmt: skip
VOLUMES = (
    VolumeSpace(name="cache", used_bytes=70, used_inodes=2, capacity_bytes=1000, available_bytes=500),
    VolumeSpace(name="memory", used_bytes=9000, used_inodes=2, capacity_bytes=9999, is_memory=True),
)
SPACE = PodSpace(namespace="default", name="web", uid="1", logs={"main": 30}, volumes=VOLUMES)


def made(before: Any = None, after: Any = None, **around: Any) -> Any:
    after = after or sample(pod(created_at_s=1500.0))
    return json.loads(msgspec.json.encode(summary(before, after, Around(node="n1", **around))))


def test_a_node_and_its_pods_have_the_fields_of_a_kubelet() -> None:
    found = made(disks=[DISK], spaces=[SPACE])
    node, (web,) = found["node"], found["pods"]
    (main,) = web["containers"]

    assert node["nodeName"] == "n1"
    assert node["memory"]["availableBytes"] == (1 << 30) - 5000
    assert node["fs"] == node["runtime"]["imageFs"] == node["runtime"]["containerFs"]
    assert (node["fs"]["capacityBytes"], node["fs"]["usedBytes"], node["fs"]["inodesUsed"]) == (1000, 400, 40)
    assert (node["network"]["name"], node["network"]["rxBytes"]) == ("eth0", 10)
    assert web["podRef"] == {"name": "web", "namespace": "default", "uid": "1"}
    assert (web["startTime"], web["cpu"]["time"]) == ("1970-01-01T00:25:00Z", "1970-01-01T00:33:20Z")
    assert main["cpu"] == {"time": "1970-01-01T00:33:20Z", "usageCoreNanoSeconds": 1_500_000_000}
    assert main["memory"]["availableBytes"] == (64 << 20) - 7000
    assert main["rootfs"]["usedBytes"] == 4096
    assert main["logs"]["usedBytes"] == 30
    assert [one["name"] for one in web["volume"]] == ["cache", "memory"]
    assert web["ephemeral-storage"]["usedBytes"] == 4096 + 30 + 70
    assert web["process_stats"] == {"process_count": 4}


def test_rates_follow_from_two_samples() -> None:
    later = sample(pod(containers=(container(figures=figures(cpu_ns=2_500_000_000)),)), taken_s=12.0)
    (web,) = made(sample(pod()), later)["pods"]

    assert web["containers"][0]["cpu"]["usageNanoCores"] == 500_000_000
    assert web["cpu"]["usageNanoCores"] == 0


def test_processor_and_memory_alone_are_short() -> None:
    found = made(disks=[DISK], spaces=[SPACE], is_short=True)
    (web,) = found["pods"]

    assert set(found["node"]) == {"nodeName", "cpu", "memory"}
    assert set(web) == {"podRef", "startTime", "containers", "cpu", "memory"}
    assert set(web["containers"][0]) == {"name", "startTime", "cpu", "memory"}


def test_what_is_unknown_or_has_ended_is_left_out() -> None:
    bare = container(figures=GroupFigures(), layer_bytes=None)
    gone = container("gone", ended_s=1.0)
    (web,) = made(after=sample(pod(figures=None, interfaces=(), containers=(bare, gone))))["pods"]

    assert [one["name"] for one in web["containers"]] == ["main"]
    assert set(web["containers"][0]["memory"]) == {"time"}
    assert {"cpu", "memory", "network", "volume", "ephemeral-storage"} & set(web) == set()


def test_the_nodes_start_is_the_kernels() -> None:
    assert read_boot_time(b"cpu  1 2\nbtime 1700000000\nprocesses 3\n") == 1_700_000_000
    assert read_boot_time(b"cpu  1 2\n") is None
