# SPDX-License-Identifier: Apache-2.0
"""A disk that takes no records."""

from pathlib import Path

from structlog.testing import capture_logs

from agent.model.component import State
from agent.pods.plan.remembered import record_name
from tests.fakes.clock import FakeClock
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.state_files import FakeStateFiles
from tests.pods.plane import DISKS, Slow, manifest, running


async def test_a_disk_that_takes_no_records_is_told_of_until_it_does(tmp_path: Path) -> None:
    """NP-14: the pods go on; a restart would forget."""
    cri, files = Slow(), FakeManifestDirectory({"/m/f.yaml": manifest("web", "i")})
    disk = DISKS.setdefault(tmp_path, FakeStateFiles())
    disk.failure = OSError(28, "No space left on device")
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: "its record cannot be written" in plane.message, "it is told of")
        state, message = plane.state, plane.message
        (keeper,) = plane.runner.keepers.values()
        refused = keeper.run.saved_memory
        disk.failure = None
        await plane.until_ready()

    assert state is State.DEGRADED
    assert "No space left on device" in message
    assert refused is None
    assert keeper.run.saved_memory == keeper.run.memory


async def test_a_disk_is_asked_again_less_and_less_often(tmp_path: Path) -> None:
    """NP-14: although nothing happens to the pod; the record is there once it can be."""
    clock, cri = FakeClock(), Slow()
    files = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i")})
    disk = DISKS.setdefault(tmp_path, FakeStateFiles())
    disk.failure = OSError(28, "No space left on device")
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await plane.until_phases(web="Running")
        with capture_logs() as logs:
            for _ in range(600):
                await clock.advance(1.0)
        tries = sum(one["event"] == "pod_record_not_saved" for one in logs)
        (uid,) = plane.runner.keepers
        disk.failure = None
        for _ in range(60):
            await clock.advance(1.0)
        found = await disk.read(record_name(uid))

    assert 10 <= tries <= 20
    assert found is not None
