# SPDX-License-Identifier: Apache-2.0
"""Content without its image, with containerd's services in memory."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.images.attach.content_fetch import NEEDED, ContentFetch, RegistryHosts
from agent.model.images.platform import node_platform
from agent.model.images.store import BlobInfo
from agent.model.runtime.error import NotImplementedByRuntime
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri

IMAGE = "r.io/a:1"


class Node:
    def __init__(self, folder: Path, version: str) -> None:
        self.clock = FakeClock()
        self.store: Any = FakeContainerd()
        self.store.version_text = version
        hosts = RegistryHosts(FakeCri(), clock=self.clock)  # type: ignore[arg-type]
        hosts.folder = folder
        self.contents = ContentFetch(self.store, node_platform("x86_64"), hosts, clock=self.clock)


@pytest.mark.parametrize(
    ("version", "has_mirrors", "expected"),
    [
        ("1.6.20", False, f"{NEEDED}; this is 1.6.20"),
        ("1.7.0", False, ""),
        ("1.7.27", True, "the Transfer service of containerd 1.7.27 does not read {file}; 2.0 does"),
        ("2.0.1", True, ""),
        ("of our own", True, ""),
    ],
)  # fmt: skip
async def test_a_node_that_cannot_says_why(tmp_path: Path, version: str, has_mirrors: bool, expected: str) -> None:
    """IMG-F04, R01: containerd 1.7 would ask the registry itself in place of its mirror."""
    file = tmp_path / "r.io" / "hosts.toml"
    if has_mirrors:
        file.parent.mkdir()
        file.write_text('[host."http://mirror:5000"]\n')
    node = Node(tmp_path, version)

    assert await node.contents.obstacle(IMAGE) == expected.format(file=file)


async def test_the_size_is_that_of_all_that_is_held_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "1.7.27")
    await node.contents.fetch(IMAGE, None, "")
    top = node.store.records[IMAGE].digest
    links = {"containerd.io/gc.ref.content.m.0": "sha256:m", "containerd.io/gc.ref.content.m.1": "sha256:elsewhere"}
    node.store.put_blob(replace(await node.store.blob_info(top), labels=links))
    node.store.put_blob(
        BlobInfo("sha256:m", 10, 0.0, {f"containerd.io/gc.ref.content.l.{n}": "sha256:l" for n in "01"})
    )
    node.store.put_blob(BlobInfo("sha256:l", 1000, 0.0))

    assert await node.contents._size(IMAGE) == 1110


async def test_a_name_is_held_for_a_day_and_dropped_with_its_line(tmp_path: Path) -> None:
    """IMG-F04: 1.7 does not collect by itself what is over."""
    node = Node(tmp_path, "1.7.27")
    await node.contents.fetch(IMAGE, None, "")
    await node.clock.advance(86000)
    await node.contents.fetch("r.io/b:1", None, "")
    assert sorted(node.store.records) == [IMAGE, "r.io/b:1"]
    await node.clock.advance(500)
    await node.contents.fetch("r.io/c:1", None, "")
    await node.contents.drop("r.io/b:1")
    await node.contents.drop("r.io/b:1")

    assert sorted(node.store.records) == ["r.io/c:1"]


async def test_a_service_that_is_switched_off_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedByRuntime, match="needs the Transfer service"):
        await Node(tmp_path, "1.6.20").contents.fetch(IMAGE, None, "")
