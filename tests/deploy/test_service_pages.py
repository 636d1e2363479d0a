# SPDX-License-Identifier: Apache-2.0
"""The commands of the page about Services, on a kepd with their manifests and rules in a kernel (CL-16, DOC-01)."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.documents import blocks
from tests.deploy.test_documents import environment_of, run
from tests.host.process import ROOT, Kepd
from tests.lab.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

PORT = 10944
PAGE = ROOT / "docs/services.md"
EXTRA = (
    "images: {enabled: false}\nservices: {enabled: true, healthzAddress: '', conntrack: {maxPerCore: 0}, "
    "serviceCIDRs: [10.96.0.0/16], detectLocal: {clusterCIDRs: [10.1.0.0/16]}}\n"
)
FIRST = next(one.text for one in blocks(PAGE, language="yaml"))
OTHER = FIRST.replace("name: web", "namespace: shop, name: web").replace("10.96.0.10", "10.96.0.11")


@pytest.fixture
def kepd(short_path: Path) -> Iterator[Kepd]:
    with Namespace() as node:
        # On a node there is a default route, which leads packets into the kernel's hooks.
        node.run("ip", "route", "add", "default", "dev", "lo")
        with Kepd(short_path, PORT, extra=EXTRA, prefix=node.command()) as daemon:
            (daemon.manifests / "web.yaml").write_text(FIRST)
            daemon.start()
            daemon.wait(daemon.socket.exists, "its socket")
            daemon.wait(lambda: "  ok" in daemon.ctl("get", "services").stdout, "its rules", 20.0)
            yield daemon


def test_what_the_page_prints_is_what_is_printed(kepd: Kepd) -> None:
    for block in blocks(PAGE, language="console"):
        for command, printed in block.transcript:
            said = ""

            def is_so(command: str = command, printed: list[str] = printed) -> bool:
                nonlocal said
                done = subprocess.run(
                    [*kepd.prefix, "sh", "-euc", command],
                    env=environment_of(kepd), capture_output=True, text=True, check=False, timeout=30,
                )  # fmt: skip
                said = done.stdout + done.stderr
                return done.returncode == 0 and has_all(printed, said.splitlines())

            try:
                kepd.wait(is_so, f"{block}: {command}", 10.0)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{said}") from None


def has_all(printed: list[str], said: list[str]) -> bool:
    """In their order, with spaces as they are needed for columns."""
    rest = iter(said)
    return all(any(pattern(line).fullmatch(" ".join(one.split())) for one in rest) for line in printed)


def pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, " ".join(line.split()).split("…"))))


def test_the_other_commands_work_as_they_stand(kepd: Kepd) -> None:
    (kepd.manifests / "shop.yaml").write_text(OTHER)
    kepd.wait(lambda: "shop" in kepd.ctl("get", "services", "-A").stdout, "the other Service", 20.0)
    for block in blocks(PAGE):
        if block.is_run:
            run(block, environment_of(kepd), *kepd.prefix, folder=kepd.folder)
