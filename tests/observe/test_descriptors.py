# SPDX-License-Identifier: Apache-2.0
"""What containers have open: counted where it is asked for, within bounds (CMX-04)."""

import errno
import os
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.drivers.kernel_files.driver import KernelFiles
from agent.observe.run import descriptors
from agent.observe.run.pages import PageSettings
from tests.observe.test_collector import Observed

LIMITS = b"""Limit                     Soft Limit           Hard Limit           Units
Max processes             100                  unlimited            processes
Max open files            %s            1048576              files
"""


@pytest.fixture(params=[1, 2])
def observed(tmp_path: Path, request: pytest.FixtureRequest) -> Observed:
    found = Observed(tmp_path, request.param)
    found.runtime.add_pod("web", ("main", "side"))
    found.settings = PageSettings(has_descriptors=True)
    return found


def process(observed: Observed, pid: int, opened: tuple[str, ...], limit: bytes = b"1024") -> None:
    folder = observed.tree.root / f"proc/{pid}/fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(opened):
        (folder / str(number)).symlink_to(target)
    observed.tree.write(f"proc/{pid}/limits", LIMITS % limit)


def inside(observed: Observed, container: str, *pids: int) -> None:
    text = "".join(f"{one}\n" for one in pids).encode()
    observed.tree.group(f"/kepd/pod-web/c-web-{container}-0", cgroup_procs=text)


async def shown(observed: Observed) -> dict[tuple[str, str], float]:
    await observed.later(2)
    page = (await observed.pages.cadvisor({})).body.decode()
    return {
        (one.name.removeprefix("container_"), one.labels["container"]): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
        if one.name in ("container_file_descriptors", "container_sockets", "container_ulimits_soft")
    }


async def test_processes_of_a_container_count_together(observed: Observed) -> None:
    """CMX-04: one that ended meanwhile counts for nothing; without its limit the rest is shown."""
    process(observed, 501, ("/dev/null", "socket:[7]", "pipe:[8]"))
    process(observed, 502, ("socket:[9]",))
    process(observed, 601, ("/x",), b"unlimited")
    inside(observed, "main", 501, 502, 503)
    inside(observed, "side", 601)
    found = await shown(observed)

    assert found == {
        ("file_descriptors", "main"): 4, ("sockets", "main"): 2, ("ulimits_soft", "main"): 1024,
        ("file_descriptors", "side"): 1, ("sockets", "side"): 0, ("ulimits_soft", "side"): -1,
    }  # fmt: skip
    observed.settings = PageSettings()
    assert await shown(observed) == {}


async def test_what_has_too_much_open_has_no_figure(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every object of a tenant has a bound."""
    monkeypatch.setattr(descriptors, "MOST_PROCESSES", 2)
    monkeypatch.setattr(descriptors, "MOST_DESCRIPTORS", 3)
    process(observed, 501, ("/1", "/2", "/3", "/4"))
    inside(observed, "main", 501)
    inside(observed, "side", 601, 602, 603)

    assert await shown(observed) == {}
    assert observed.collector.errors["descriptors"] == 0


async def test_processes_that_may_not_be_looked_at_are_a_fault(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-07: and the page goes on."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(observed.files, "count_open", refused)
    inside(observed, "main", 501)
    inside(observed, "side")

    assert set(await shown(observed)) == {("file_descriptors", "side"), ("sockets", "side")}
    assert observed.collector.errors["descriptors"] == 1


def test_the_kernel_tells_what_this_process_has_open() -> None:
    files = KernelFiles()
    before = files.count_open(os.getpid(), 10_000)
    with socket.socket() as one, socket.socket() as other:
        after = files.count_open(os.getpid(), 10_000)
        few = files.count_open(os.getpid(), 2)
        assert one.fileno() != other.fileno()

    assert before is not None
    assert after == (before[0] + 2, before[1] + 2)
    assert few is not None
    assert few[0] == 2
    assert files.count_open(2**22 + 1, 10) is None
