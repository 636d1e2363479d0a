# SPDX-License-Identifier: Apache-2.0
"""A kubelet's pulls through the queue that kepctl's pulls use too, with a real registry behind a throttle."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Fault, Image, Lab, Throttle
from tests.node.image_client import ImageClient
from tests.node.kubelet import Kubelet
from tests.node.test_images import peak_of_images
from tests.ports import take_port

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

SECRET = "swordfish-of-the-kubelet"
LIMIT = 2


class Node:
    """kepd with proxy and images, a kubelet, and the slow door of the registry."""

    def __init__(self, kepd: Kepd, lab: Lab, throttle: Throttle) -> None:
        self.kepd, self.lab, self.throttle = kepd, lab, throttle
        self.kubelet = Kubelet(lab, kepd.folder / "run" / "cri" / "kubelet.sock")
        self.direct = Kubelet(lab, lab.place.containerd_socket)

    def image(self, name: str, size_bytes: int = 1_000_000) -> str:
        image = Image.sized(f"node/{name}", size_bytes)
        self.lab.push(image)
        return self.lab.throttled(image)

    def pull(self, image: str, pod: str = "p", kubelet: Kubelet | None = None, **auth: str):
        config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name=pod, namespace="default", uid=f"uid-{pod}"))
        request = pb.PullImageRequest(image=pb.ImageSpec(image=image), sandbox_config=config)
        if auth:
            request.auth.MergeFrom(pb.AuthConfig(**auth))
        return (kubelet or self.kubelet).later("PullImage", request, None, image)

    def write_kubelet(self, text: str) -> None:
        (self.kepd.folder / "kubelet.yaml").write_text(text)

    def proxy(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.kepd.ctl("api", "CriProxyService/GetProxy", "{}").stdout)["proxy"]
        return found


@pytest.fixture
def node(lab: Lab, throttle: Throttle, short_path: Path, free_port: int) -> Iterator[Node]:
    extra = (
        f"proxy: {{kubeletConfig: {short_path}/kubelet.yaml}}\n"
        f"images: {{maxParallelPulls: {LIMIT}, criticalReserve: 0, perPodMax: 0, sizeProbe: 'off'}}\n"
    )
    (short_path / "kubelet.yaml").write_text("serializeImagePulls: false")
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        kepd.start("--planes", "proxy,images").wait_ready()
        running = Node(kepd, lab, throttle)
        yield running
        throttle.reset()
        running.kubelet.close()
        running.direct.close()
        for one in lab.cri.call("ListImages", pb.ListImagesRequest()).images:
            for name in [tag for tag in one.repo_tags if "/node/" in tag]:
                lab.cri.remove_image(name)
        assert "Traceback" not in kepd.log.read_text(), kepd.log.read_text()


def test_a_kubelet_never_pulls_more_at_once_than_the_node_allows(node: Node) -> None:
    """IMG-S01, as the registry counts it; and every pull works."""
    images = [node.image(f"klimit{number}") for number in range(6)]
    node.throttle.reset()
    node.throttle.limit(total_bytes_s=3_000_000)
    asked = [node.pull(image, f"p{number}") for number, image in enumerate(images)]
    node.kepd.wait(lambda: len(node.proxy().get("holds", [])) >= 3, "pulls wait")  # type: ignore[arg-type]
    refs = [one.result().image_ref for one in asked]

    assert peak_of_images(node.throttle, "klimit") == LIMIT
    assert all(refs)


def test_kepctl_and_the_kubelet_wait_in_one_line(node: Node) -> None:
    """The queue is shared: while kepctl's pulls have the slots, the kubelet's waits, and is seen waiting."""
    slow = [node.image(f"kshared{number}", 3_000_000) for number in range(LIMIT)]
    mine = node.image("kmine")
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kshared.*/blobs/", after_bytes=100_000))
    client = ImageClient(node.kepd.socket)
    wish = client.pull(*slow)
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/kshared") >= LIMIT, "both slots busy")
    asked = node.pull(mine)
    queued = node.kepd.wait(lambda: [one for one in client.pulls() if one.stage == "queued"], "it waits")

    assert mine in queued[0].image
    assert [one["pod"] for one in queued[0].requesters] == ["p"]
    assert not asked.done()
    node.throttle.clear()
    assert asked.result(60).image_ref
    wish.result()
    client.close()


def test_calls_beside_a_waiting_pull_are_answered_at_once(node: Node) -> None:
    """IMG-X01, PXM-02."""
    images = [node.image(f"kheld{number}", 3_000_000) for number in range(LIMIT + 2)]
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kheld.*/blobs/", after_bytes=100_000))
    asked = [node.pull(image, f"p{number}") for number, image in enumerate(images)]
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/kheld") >= LIMIT, "both slots busy")
    for method in ("ImageFsInfo", "ListImages"):
        node.kubelet.call(method, getattr(pb, f"{method}Request")())

        assert node.kubelet.last(method, "").ended_s - node.kubelet.last(method, "").began_s < 1.0
    node.throttle.clear()
    assert all(one.result(60).image_ref for one in asked)


def test_an_error_of_a_pull_is_the_runtime_s_own(node: Node) -> None:
    """IMG-X04: code and text, which the kubelet parses."""
    absent = node.lab.throttled(Image(name="node/kabsent"))
    said = []
    for kubelet in (node.direct, node.kubelet):
        with pytest.raises(grpc.RpcError) as failed:
            node.pull(absent, kubelet=kubelet).result()
        said.append((failed.value.code(), failed.value.details()))

    assert said[0] == said[1]
    assert said[0][0] is grpc.StatusCode.NOT_FOUND


def test_a_credential_reaches_the_registry_and_nothing_else(node: Node) -> None:
    """PullImage's auth passes on; neither log, API, metrics nor files have it."""
    image = node.image("kprivate")
    node.throttle.reset()
    node.pull(image, username="user", password=SECRET).result()
    with (
        node.throttle.fault(Fault(kind="status", pattern="/v2/node/kpublic", status=401)),
        pytest.raises(grpc.RpcError),
    ):
        node.pull(node.image("kpublic"), username="user", password=SECRET).result()
    texts = {
        "log": node.kepd.log.read_text(),
        "metrics": node.kepd.get("/metrics")[1],
        "proxy": node.kepd.ctl("get", "proxy", "-o", "json").stdout,
        "pulls": node.kepd.ctl("get", "pulls", "-o", "json").stdout,
        "events": node.kepd.ctl("get", "events", "-o", "json").stdout,
    }
    for path in (node.kepd.folder / "state").rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode("utf-8", "replace")

    assert [where for where, text in texts.items() if SECRET in text] == []


def test_a_kubelet_that_goes_away_leaves_the_line(node: Node) -> None:
    """IMG-X05."""
    images = [node.image(f"kgone{number}", 3_000_000) for number in range(LIMIT)]
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kgone.*/blobs/", after_bytes=100_000))
    for image in images:
        node.pull(image)
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/kgone") >= LIMIT, "both slots busy")
    node.pull(node.image("klater"))
    node.kepd.wait(lambda: node.proxy().get("holds"), "one waits")
    node.kubelet.channel.close()
    node.kepd.wait(lambda: not node.proxy().get("holds"), "nobody waits")
    kubelet = Kubelet(node.lab, node.kubelet.socket)

    assert node.pull(node.image("kfresh"), kubelet=kubelet).result(20).image_ref
    kubelet.close()


def test_a_kubelet_that_pulls_one_by_one_is_not_held(node: Node) -> None:
    """NOH-7: its one pull that waits would block all others, so it passes beyond the limit; `get proxy` says so."""
    node.write_kubelet("kind: KubeletConfiguration")
    node.kepd.end(signal.SIGTERM)
    node.kepd.start("--planes", "proxy,images").wait_ready()
    images = [node.image(f"kserial{number}", 3_000_000) for number in range(LIMIT + 1)]
    node.throttle.reset()
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kserial.*/blobs/", after_bytes=100_000))
    asked = [node.pull(image, f"p{number}") for number, image in enumerate(images)]
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/kserial") >= LIMIT + 1, "all are under way")

    assert "serializeImagePulls" in str(node.proxy()["note"])
    node.throttle.clear()
    for one in asked:
        one.result(60)


def test_without_the_queue_pulls_pass(lab: Lab, short_path: Path, free_port: int) -> None:
    """IMG-X12: the images plane cannot run here, for another process has it; that is told, and pulls work."""
    folder = short_path / "other"
    folder.mkdir()
    extra = f"proxy: {{kubeletConfig: {short_path}/kubelet.yaml}}\n"
    (short_path / "kubelet.yaml").write_text("serializeImagePulls: false")
    image = lab.push(Image.sized("node/kpass", 100_000))
    with (
        Kepd(folder, take_port(), endpoint=lab.endpoint) as holder,
        Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd,
    ):
        holder.start("--planes", "images").wait_ready()
        kepd.start("--planes", "proxy,images")
        kepd.wait(lambda: "is held by process" in kepd.log.read_text(), "images cannot run")
        kubelet = Kubelet(lab, short_path / "run" / "cri" / "kubelet.sock")
        kepd.wait(lambda: kubelet.socket.exists(), "the proxy runs all the same")
        answer = kubelet.call("PullImage", pb.PullImageRequest(image=pb.ImageSpec(image=image)), None)
        metrics = kepd.get("/metrics")[1]
        kubelet.close()
    lab.cri.remove_image(image)

    assert answer.image_ref
    assert "kepd_proxy_policy_errors_total 1.0" in metrics


def test_kepctl_can_end_a_kubelet_s_pull(node: Node) -> None:
    """IMG-X04: our own words, with CANCELLED."""
    image = node.image("kcancel", 3_000_000)
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kcancel/blobs/", after_bytes=100_000))
    asked = node.pull(image)
    client = ImageClient(node.kepd.socket)
    running = node.kepd.wait(lambda: [one for one in client.pulls() if one.stage == "downloading"], "it runs")
    assert node.kepd.ctl("cancel", "pull", running[0].id).returncode == 0
    with pytest.raises(grpc.RpcError) as failed:
        asked.result(10)
    client.close()

    assert failed.value.code() is grpc.StatusCode.CANCELLED
    assert failed.value.details() == "kepd: the pull was cancelled"
    node.throttle.clear()


def test_the_next_credential_keeps_its_place(node: Node) -> None:
    """IMG-X06: a kubelet with two credentials asks twice; who came meanwhile does not overtake it."""
    with node.throttle.fault(Fault(kind="status", pattern="/v2/node/ktwice", status=401)):
        twice = node.image("ktwice")
        with pytest.raises(grpc.RpcError):
            node.pull(twice, "first", username="a", password="x").result()
    slow = [node.image(f"kblock{number}", 3_000_000) for number in range(LIMIT)]
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/kblock.*/blobs/", after_bytes=100_000))
    blocking = [node.pull(image, f"b{number}") for number, image in enumerate(slow)]
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/kblock") >= LIMIT, "both slots busy")
    other = node.pull(node.image("kother"), "other")
    node.kepd.wait(lambda: len(node.proxy().get("holds", [])) == 1, "one waits")  # type: ignore[arg-type]
    again = node.pull(twice, "first", username="b", password="y")
    client = ImageClient(node.kepd.socket)
    queued = node.kepd.wait(
        lambda: found if len(found := [one for one in client.pulls() if one.stage == "queued"]) == 2 else None, "two"
    )
    client.close()
    places = {one.image.rpartition("/")[2].partition(":")[0]: one.position for one in queued}

    assert places["ktwice"] < places["kother"]
    node.throttle.clear()
    for one in (*blocking, other, again):
        one.result(60)
