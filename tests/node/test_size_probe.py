# SPDX-License-Identifier: Apache-2.0
"""The size probe against a real registry: what it says is what the image's layout says."""

import asyncio
import json
import platform

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.registry.driver import RegistrySizes
from tests.lab import Fault, Image, Lab, OciImage, Throttle

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]


def layout_bytes(built: OciImage) -> int:
    """Config and layers, by the files that hold them."""
    blobs = built.layout / "blobs" / "sha256"
    manifest = json.loads((blobs / built.digest.removeprefix("sha256:")).read_text("utf-8"))
    digests = {blob["digest"] for blob in (manifest["config"], *manifest["layers"])}
    return sum((blobs / digest.removeprefix("sha256:")).stat().st_size for digest in digests)


def ask(lab: Lab, *references: str) -> list[int | None]:
    """One driver asks for all of them, inside the lab's network."""

    async def probe() -> list[int | None]:
        sizes = RegistrySizes(machine=platform.machine(), clock=SystemClock())
        try:
            return [await sizes.size_bytes(reference, None) for reference in references]
        finally:
            await sizes.close()

    return lab.netns.call(lambda: asyncio.run(probe()))


def test_real_registry_tells_the_size_of_the_layout(lab: Lab, throttle: Throttle) -> None:
    """IMG-S10; by tag, by digest, and without a single blob."""
    image = Image.sized("probe/web", 200_000, 3_000_000)
    built = lab.build(image)
    lab.push(image)
    through = lab.throttled(image)
    by_digest = f"{through.rpartition(':')[0]}@{built.digest}"
    missing = f"{through.rpartition(':')[0]}:missing"

    found = ask(lab, missing, through, by_digest)
    assert found == [None, layout_bytes(built), layout_bytes(built)]
    assert throttle.requests("/blobs/") == []
    assert len(throttle.requests("GET /v2/probe/web/manifests/")) == 3


def test_real_registry_that_is_overloaded_is_asked_once(lab: Lab, throttle: Throttle) -> None:
    image = Image.sized("probe/busy", 100_000)
    lab.push(image)
    with throttle.fault(Fault(kind="status", pattern="/v2/probe/busy", status=429)):
        found = ask(lab, lab.throttled(image), lab.throttled(image))

    assert found == [None, None]
    assert len(throttle.requests("/v2/probe/busy")) == 1
