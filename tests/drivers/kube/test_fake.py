# SPDX-License-Identifier: Apache-2.0
"""What the fake has beyond the contract: faults on demand, and that it costs no aiohttp."""

import subprocess
import sys

import pytest

from agent.drivers.kube import errors
from agent.drivers.kube.resource import NODES, SERVICES, Bookmark, Changed, Disconnected, Malformed, Replaced, Resumed
from tests.drivers.kube.fake import FakeKube
from tests.drivers.kube.fake_objects import KINDS, StoreRefusal, read_selection
from tests.drivers.kube.following import feeding, service

NODE = {"metadata": {"name": "n", "labels": {"zone": "a"}}}


async def test_relist_and_bookmark_reach_everybody() -> None:
    fake = FakeKube()
    async with feeding(fake.follow(SERVICES)) as one, feeding(fake.follow(NODES)) as other:
        for feed in (one, other):
            await feed.until(Replaced)
        fake.bookmark()
        for feed in (one, other):
            await feed.until(Bookmark)
        fake.relist()
        for feed in (one, other):
            await feed.until(Replaced, count=2)


async def test_outage_has_the_error_the_test_asks_for() -> None:
    fake = FakeKube()
    async with feeding(fake.follow(SERVICES)) as feed:
        await feed.until(Replaced)
        fake.break_off(errors.Denied("list services: 403", 403))
        told = await feed.until(Disconnected)
        fake.restore()
        await feed.until(Resumed)

    assert isinstance(told.error, errors.Denied)
    assert len(feed.of(Disconnected)) == 1


async def test_unreadable_objects_are_reported_as_by_the_client() -> None:
    fake = FakeKube()
    fake.put("services", service("bad", ports=5))
    async with feeding(fake.follow(SERVICES)) as feed:
        first = await feed.until(Replaced)
        fake.put("services", service("bad", ports=6))
        fake.put("services", service("good"))
        await feed.until(Changed)

    assert len(feed.of(Malformed)) == 1
    assert [key.name for key in first.unreadable] == ["bad"]


async def test_one_failure_can_be_ordered() -> None:
    fake = FakeKube()
    fake.put("nodes", NODE)
    fake.failures["get"] = errors.Unreachable("ordered")
    with pytest.raises(errors.Unreachable):
        await fake.get(NODES, "n")

    assert (await fake.get(NODES, "n")).metadata.labels == {"zone": "a"}
    assert fake.calls == ["get nodes/n", "get nodes/n"]


async def test_patch_the_server_would_refuse_is_refused() -> None:
    fake = FakeKube()
    fake.put("nodes", NODE)
    with pytest.raises(errors.ApiRefused, match="415"):
        await fake.patch(NODES, "n", {}, content_type="text/plain")
    await fake.patch(NODES, "n", {"metadata": {"labels": {"zone": None, "x": "y"}}})

    assert (await fake.get(NODES, "n")).metadata.labels == {"x": "y"}


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("", True),
        ("zone", True),
        ("!zone", False),
        ("zone=a", True),
        ("zone==a", True),
        ("zone!=a", False),
        ("other!=a", True),
        ("zone in (a, b),!other", True),
        ("zone notin (a,b)", False),
    ],
)
def test_label_selectors_are_read_as_the_server_reads_them(selector: str, holds: bool) -> None:
    assert read_selection(KINDS["nodes"], "", selector, "").holds(NODE) is holds


def test_field_the_server_cannot_select_by_is_refused() -> None:
    with pytest.raises(StoreRefusal, match=r"field label not supported: spec\.nodeName"):
        read_selection(KINDS["services"], "", "", "spec.nodeName=n")
    with pytest.raises(StoreRefusal, match="invalid field selector"):
        read_selection(KINDS["services"], "", "", "nonsense")


@pytest.mark.parametrize("module", ["reflector", "resource", "kubeconfig", "errors", "credentials"])
def test_nothing_but_the_connection_costs_aiohttp(module: str) -> None:
    """138 ms and 25 MiB on nodes that have no API server."""
    code = f"import sys, agent.drivers.kube.{module}; sys.exit('aiohttp' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
