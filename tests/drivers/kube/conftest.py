# SPDX-License-Identifier: Apache-2.0
"""Fixtures for everything that talks to the test API server."""

from collections.abc import AsyncIterator

import pytest

from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One authority for the whole session."""
    return make_certificates(tmp_path_factory.mktemp("kube-ca"))


@pytest.fixture
async def server(certificates: Certificates) -> AsyncIterator[ApiServer]:
    """A fresh server over TLS."""
    async with serving(certificates) as running:
        yield running
