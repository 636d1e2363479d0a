# SPDX-License-Identifier: Apache-2.0
"""Prefetch with a real containerd: a list from the configuration, and pods that an API server binds to this node."""

import asyncio
from pathlib import Path

import pytest

from tests.drivers.kube.api_server import serving
from tests.drivers.kube.certificates import make_certificates
from tests.host.process import Kepd
from tests.lab import Image, Lab, Throttle
from tests.node.image_client import ImageClient

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


async def test_images_of_pods_bound_to_this_node_are_there_before_a_kubelet_asks(
    lab: Lab, short_path: Path, free_port: int
) -> None:
    """IMG-F01, through the same watch client that the services plane uses."""
    image = await asyncio.to_thread(lab.push, Image.sized("prefetch/pod", 50_000))
    certificates = make_certificates(short_path)
    async with serving(certificates) as server:
        kubeconfig = short_path / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}', certificate-authority: {certificates.ca}}}}}]\n"
            "users: [{name: u, user: {token: good-token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        )
        extra = f"kubernetes: {{kubeconfig: {kubeconfig}}}\nimages: {{prefetch: {{pods: true}}, gc: {{high: 100}}}}\n"
        with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
            await asyncio.to_thread(kepd.start("--planes", "images").wait_ready)
            server.objects.put(
                "pods",
                {
                    "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
                    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": image}]},
                    "status": {"phase": "Pending"},
                },
            )
            await asyncio.to_thread(kepd.wait, lambda: lab.cri.has_image(image), "the image of the pod", 30)
    lab.cri.remove_image(image)


def test_a_list_in_the_configuration_is_fetched_pinned_and_kept(lab: Lab, short_path: Path, free_port: int) -> None:
    """IMG-F02, IMG-F03: kepctl shows the pin and why the image stays; removing it from the list removes the pin."""
    image = lab.push(Image.sized("prefetch/list", 50_000))
    loose = lab.push(Image.sized("prefetch/loose", 50_000))
    listed = f"images: {{prefetch: {{list: [{{image: '{image}', pin: true}}]}}, gc: {{minAge: 0s, high: 100}}}}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=listed) as kepd:
        kepd.start("--planes", "images").wait_ready()
        client = ImageClient(kepd.socket)
        kepd.wait(lambda: image in client.images() and client.images()[image].is_pinned_by_kepd, "pinned", 30)
        assert client.pull(loose).result()[loose].result == "pulled"
        dry = kepd.ctl("gc", "--dry-run")
        assert "prefetch/loose" in dry.stdout
        assert "prefetch/list" not in dry.stdout
        assert kepd.ctl("gc", "--now").returncode == 0
        assert loose not in client.images()
        assert image in client.images()
        assert "kepd" in kepd.ctl("get", "images", "-o", "wide").stdout
        client.close()

        kepd.write_config(lab.endpoint, "images: {prefetch: {list: []}, gc: {high: 100}}\n")
        assert kepd.ctl("config", "reload").returncode == 0
        client = ImageClient(kepd.socket)
        kepd.wait(lambda: not client.images()[image].is_pinned_by_kepd, "the pin goes with the list", 90)
        client.close()
    lab.cri.remove_image(image)


def test_content_alone_is_fetched_or_refused_with_a_reason(lab: Lab, throttle: Throttle, short_path: Path) -> None:
    """IMG-F04, F05: before 2.0 refused, other lines not; from then on no image until somebody pulls it, and then no
    layer from the registry."""
    image = Image.sized("prefetch/content", 400_000, 300_000)
    lab.push(image)
    content, whole = lab.throttled(image), lab.push(Image.sized("prefetch/whole", 40_000))
    lines = f"[{{image: '{content}', unpack: false}}, {{image: '{whole}'}}]"
    listed = f"images: {{prefetch: {{list: {lines}}}, gc: {{high: 100}}}}\n"
    # In the lab's network, where the registry is.
    with Kepd(short_path, 10941, endpoint=lab.endpoint, extra=listed, prefix=lab.netns.command([])) as kepd:
        kepd.start("--planes", "images")
        kepd.wait(lambda: lab.cri.has_image(whole), "the other line", 30)
        if lab.containerd.version < (2, 0):
            kepd.wait(lambda: "PrefetchRefused" in kepd.ctl("get", "events").stdout, "the event", 30)
            assert "the Transfer service of containerd" in kepd.ctl("explain", "pull", content).stdout
        else:
            look_into_content(lab, throttle, kepd, content)
        assert "Traceback" not in kepd.log.read_text()
    for name in (content, whole):
        lab.cri.remove_image(name)


def look_into_content(lab: Lab, throttle: Throttle, kepd: Kepd, reference: str) -> None:
    blobs = "GET /v2/prefetch/content/blobs/"
    kepd.wait(lambda: "image_content_fetched" in kepd.log.read_text(), "the content", 30)
    fetched = len(throttle.requests(blobs))
    assert fetched >= 3
    assert not lab.cri.has_image(reference)
    assert reference in lab.containerd.ctr("-n", "kepd", "images", "ls", "-q")

    client = ImageClient(kepd.socket)
    assert client.pull(reference).result()[reference].result == "pulled"
    assert len(throttle.requests(blobs)) == fetched
    client.close()

    kepd.write_config(lab.endpoint, "images: {prefetch: {list: []}, gc: {high: 100}}\n")
    assert kepd.ctl("config", "reload").returncode == 0
    kepd.wait(lambda: reference not in lab.containerd.ctr("-n", "kepd", "images", "ls", "-q"), "no name", 90)


def test_a_list_by_hand(lab: Lab, short_path: Path, free_port: int) -> None:
    """kepctl prefetch -f."""
    image = lab.push(Image.sized("prefetch/hand", 50_000))
    wanted = short_path / "list.yaml"
    wanted.write_text(f"- {image}\n- {{image: '{image}x', pin: false}}\n")
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra="images: {gc: {high: 100}}\n") as kepd:
        kepd.start("--planes", "images").wait_ready()
        assert kepd.ctl("prefetch", "-f", str(wanted)).stdout == "2 queued, 0 present\n"
        kepd.wait(lambda: lab.cri.has_image(image), "the image", 30)
        wanted.write_text("- {imag: x}\n")
        wrong = kepd.ctl("prefetch", "-f", str(wanted))
        assert (wrong.returncode, f"{wanted}:1:" in wrong.stderr) == (2, True)
    lab.cri.remove_image(image)
