# SPDX-License-Identifier: Apache-2.0
"""One installation for all tests of a run, in whatever process: it takes half a minute."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.deploy.installing import install

__all__ = ["installed"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything below this directory, as below / on a node. No test changes it."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root, done = common / "installed", common / "installed.done"
    with (common / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            install(root)
            root.chmod(0o755)
            done.touch()
    return root
