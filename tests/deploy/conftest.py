# SPDX-License-Identifier: Apache-2.0
"""One installation for all tests of a run: it takes the best part of a minute."""

from pathlib import Path

import pytest

from tests.deploy.installing import install

__all__ = ["installed"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything below this directory, as below / on a node. Nobody changes it."""
    destination = tmp_path_factory.mktemp("root")
    install(destination)
    destination.chmod(0o755)
    return destination
