# SPDX-License-Identifier: Apache-2.0
"""A registry behind TLS: trusted by the machine's authorities or not spoken to."""

import asyncio
import os
import sys
from pathlib import Path

from agent.drivers.registry.driver import RegistrySizes
from agent.model.images.credential import Credential, SecretText
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.registry.registry_server import manifest_of, serving
from tests.fakes.clock import FakeClock

# A process of its own: aiohttp reads the authorities once, when it is imported.
PROBE = """
import asyncio, sys
from agent.drivers.clock.driver import SystemClock
from agent.drivers.registry.driver import RegistrySizes
from agent.model.images.credential import Credential, SecretText

async def probe():
    sizes = RegistrySizes(machine="x86_64", clock=SystemClock(), base_url=lambda name: f"https://{name}")
    print(await sizes.size_bytes(sys.argv[1], Credential(username="paul", password=SecretText("right"))))
    await sizes.close()

asyncio.run(probe())
"""


async def test_trusted_registry_and_its_token_service_get_the_login(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with serving(certificates.server_context()) as registry:
        registry.asks, registry.login = "bearer", ("paul", "right")
        registry.realm = f"https://{registry.address}/token"
        registry.put("web", "1", manifest_of(10, 500))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROBE, f"{registry.address}/web:1"),
            env=os.environ | {"SSL_CERT_FILE": str(certificates.ca)},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(child.communicate(), 30)

    assert said.decode().strip() == "510"


async def test_registry_that_nobody_vouches_for_gets_nothing(tmp_path: Path, clock: FakeClock) -> None:
    async with serving(make_certificates(tmp_path).server_context()) as registry:
        registry.put("web", "1", manifest_of(10, 500))
        driver = RegistrySizes(machine="x86_64", clock=clock, base_url=lambda name: f"https://{name}")
        credential = Credential(username="paul", password=SecretText("right"))
        size_bytes = await driver.size_bytes(f"{registry.address}/web:1", credential)
        await driver.close()

    assert size_bytes is None
    assert registry.seen == []
