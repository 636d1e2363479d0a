# SPDX-License-Identifier: Apache-2.0
"""What pods and people are told of pulls and of the disk, beside success and failure."""

from agent.model.images.store import BlobInfo, Filesystem, Ingest
from tests.images.run.test_node import LAYERS, Host, label, manifest
from tests.images.run.test_providers import plugin, provider
from tests.images.run.test_puller import A, Node


async def test_a_long_pull_tells_its_pod_how_far_it_is() -> None:
    """IMG-T07, FH-5."""
    async with Node().up() as node:
        gate = node.hold(A)
        ask = node.ask(A)
        await node.until(lambda: A in node.running)
        content = manifest(*LAYERS)
        node.containerd.put_blob(BlobInfo("sha256:m", len(content), node.clock.wall_s(), label("a")), content)
        for done_bytes in (10, 40, 70, 90):
            node.containerd.ingests = [Ingest(f"layer-{LAYERS[1]}", done_bytes, 100)]
            await node.clock.advance(60)
        gate.set()
        assert (await ask).is_ok

    assert "PullProgress" in node.plane.told.reasons("p1")
    assert any(text.startswith(f'Pulling image "{A}": ') for text in node.plane.told.texts())


async def test_a_credential_plugin_that_fails_is_told_to_the_pod_whose_image_it_was_asked_for(tmp_path) -> None:
    """IMG-C24, FH-5: the pull goes on without its credentials."""
    plugin(tmp_path, "import sys; sys.exit(3)")
    node = Node()
    node.extra = {"providers": (provider(patterns=("r.io",)),), "plugin_folder": tmp_path}
    node.start()
    async with node.up():
        assert (await node.ask(A)).is_ok

    assert "CredentialProviderFailed" in node.plane.told.reasons("p1")
    assert any("ended with exit code 3" in text for text in node.plane.told.texts())


async def test_a_disk_without_capacity_is_told_and_nothing_is_removed() -> None:
    """IMG-G12, FH-5."""
    host = Host()
    await host.put(A)
    await host.plane.collector.refresh()
    await host.clock.advance(200)
    host.files.disk = Filesystem()
    await host.plane.collector.collect(is_forced=False)

    assert "InvalidDiskCapacity" in host.plane.told.reasons()
    assert host.names() == {A}
