# SPDX-License-Identifier: Apache-2.0
"""A disk that takes no records."""

from pathlib import Path

from agent.model.component import State
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
        disk.failure = None
        (keeper,) = plane.runner.keepers.values()
        keeper.run.save_soon()
        await plane.until_ready()

    assert state is State.DEGRADED
    assert "No space left on device" in message
