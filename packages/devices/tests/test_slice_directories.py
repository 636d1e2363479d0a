# SPDX-License-Identifier: Apache-2.0
"""Slices that drivers leave in directories: one update at a time, whole or not at all. DVM-28."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kepd_devices.manifest.documents import Reader
from kepd_devices.run.drivers.slice_directories import MOST_FILES, SliceDirectories
from packages.devices.tests.test_claims import NodeOfLives, held, shared_pod

DRIVER = "gpu.example.com"


class Driver:
    """Writes a version, and lets `current` lead to it."""

    def __init__(self, place: Path, name: str = DRIVER) -> None:
        self.folder = place / name
        self.folder.mkdir(mode=0o700)
        self.version = 0

    def publish(self, *devices: str, driver: str = DRIVER, **more: Any) -> Path:
        self.version += 1
        place = self.folder / f"v{self.version}"
        place.mkdir()
        pool = {"name": "here", "generation": self.version, "resourceSliceCount": 1}
        spec = {"driver": driver, "pool": pool, "devices": [{"name": one} for one in devices]}
        document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
        (place / "a.json").write_text(json.dumps({**document, "spec": {**spec, **more}}))
        link = self.folder / ".current"
        link.symlink_to(place.name)
        link.rename(self.folder / "current")
        return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def read(place: Path) -> SliceDirectories:
    found = SliceDirectories(place, Reader("here"), os.geteuid())
    found.look()
    return found


def names(found: SliceDirectories) -> list[str]:
    return [device.name for one in found.slices() for device in one.spec.devices or ()]


def test_an_update_is_one_rename(place: Path) -> None:
    """DVM-28: a slice is for this node unless it says otherwise."""
    driver = Driver(place)
    found = read(place)
    assert (names(found), found.findings) == ([], ())
    driver.publish("gpu-0")
    assert found.look() is True
    assert found.look() is False
    first = names(found), [one.spec.node_name for one in found.slices()]
    driver.publish("gpu-0", "gpu-1")
    found.look()
    second = names(found)
    (driver.folder / "current").unlink()
    found.look()

    assert first == (["gpu-0"], ["here"])
    assert second == ["gpu-0", "gpu-1"]
    assert (names(found), found.findings) == ([], ())


def test_an_update_with_a_fault_changes_nothing_and_is_told(place: Path) -> None:
    """DVV-12: also for other drivers."""
    driver, other = Driver(place), Driver(place, "nic.example.com")
    driver.publish("gpu-0")
    other.publish("nic-0", driver="nic.example.com")
    found = read(place)
    for given, complaint in (
        ({"devices": [{"name": "GPU 1"}]}, "'GPU 1'"),
        ({"colour": "red"}, "colour: not supported"),
        ({"driver": "nic.example.com"}, "'nic.example.com' is not gpu.example.com"),
    ):
        driver.publish("gpu-1", **given)
        found.look()
        assert names(found) == ["gpu-0", "nic-0"]
        assert complaint in str(found.findings[0])
    driver.publish("gpu-2")
    found.look()

    assert (names(found), found.findings) == (["gpu-2", "nic-0"], ())


def test_only_what_root_alone_can_write_counts(place: Path) -> None:
    """DVF-1: nor links out of the directory, floods, or what is no file."""
    driver = Driver(place)
    made = driver.publish("gpu-0")
    found = read(place)
    cases = []

    def told() -> str:
        found.look()
        return " ".join(map(str, found.findings))

    driver.folder.chmod(0o750)
    cases.append(("is open to others", told()))
    driver.folder.chmod(0o700)
    (driver.folder / "current").unlink()
    (driver.folder / "current").symlink_to("/etc")
    cases.append(("current leads to '/etc'", told()))
    made = driver.publish("gpu-1")
    (made / "b.json").symlink_to("/etc/passwd")
    cases.append(("cannot be read", told()))
    made = driver.publish("gpu-1")
    os.mkfifo(made / "b.json")
    cases.append(("b.json is no regular file", told()))
    made = driver.publish("gpu-1")
    for number in range(MOST_FILES):
        (made / f"b{number}.json").touch()
    cases.append((f"has {MOST_FILES + 1} files", told()))
    made = driver.publish("gpu-1")
    (made / "b.json").write_bytes(b" " * ((1 << 20) + 1))
    cases.append(("has more than 1048576 bytes", told()))
    (place / "no driver").mkdir()
    cases.append(("expected a directory with the name of a driver", told()))
    alien = SliceDirectories(place, Reader("here"), os.geteuid() + 1)
    alien.look()

    for complaint, text in cases:
        assert complaint in text
    assert names(found) == ["gpu-0"]
    assert any("expected root" in str(one) for one in alien.findings)


async def test_pods_get_what_a_directory_publishes(place: Path) -> None:
    """DVM-27, DVM-28: the pool of a directory hides that of the manifests."""
    node = NodeOfLives(0)
    manager = await node.manager()
    node.driver.published = []
    driver = Driver(place)
    driver.publish("gpu-0")
    found = read(place)
    manager.publishers.append(found.slices)

    assert await held(manager, shared_pod("one")) == ""
    assert [one.device for record in manager.records.values() for one in record.results] == ["gpu-0"]
