# SPDX-License-Identifier: Apache-2.0
"""Every command block of the README and the tutorial is run, or says why it is only read (DOC-01)."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.daemon.setup.contents import drop_in
from tests.daemon.process import PROGRAMS, ROOT, Kepd
from tests.deploy.documents import Block, blocks, languages
from tests.lab import Image, Lab

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MUST_RUN = [ROOT / "README.md", ROOT / "docs/tutorial.md"]
SYNTAX_ONLY = [block for page in PAGES for block in blocks(page)]
BUSYBOX = "docker.io/library/busybox:1.37"
STARTS = "the test starts kepd itself here"
WITHIN_S = 30.0


@pytest.mark.parametrize("page", MUST_RUN, ids=str)
def test_every_block_says_whether_it_is_run(page: Path) -> None:
    """DOC-01."""
    found = list(blocks(page))

    assert [str(one) for one in found if one.is_run == bool(one.reason)] == []
    assert [str(one) for one in found if one.is_run]
    assert languages(page) <= {"sh", "text", "yaml"}


@pytest.mark.parametrize("block", SYNTAX_ONLY, ids=str)
def test_a_shell_can_read_every_block(block: Block) -> None:
    done = subprocess.run(["sh", "-n"], input=block.text, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_readme_keeps_its_word(short_path: Path) -> None:
    """DOC-01: what it shows is what its commands do."""
    for block in blocks(ROOT / "README.md"):
        if block.is_run:
            run(block, {**os.environ, "TMPDIR": str(short_path)})


@pytest.fixture
def kepd(lab: Lab, short_path: Path) -> Iterator[Kepd]:
    lab.preload(Image(name="node/busybox"), BUSYBOX)
    # On a node the default route leads packets for Services into the kernel's hooks.
    lab.netns.run(["ip", "route", "replace", "10.96.0.0/16", "dev", "lo"])
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    )
    # What `kepd setup` of the tutorial writes; on this machine it would find other addresses.
    (short_path / "config.d").mkdir()
    written = drop_in(addresses=(), subnets=("10.85.0.0/16",), is_with_pods=True)
    (short_path / "config.d" / "00-node.yaml").write_bytes(written)
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(short_path, 10943, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        if daemon.process is not None:
            daemon.wait(lambda: not daemon.json("get", "pods")["items"], "all pods gone", 20.0)
    lab.netns.run(["nft", "flush", "ruleset"])


@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_tutorial_leads_to_where_it_says(kepd: Kepd) -> None:
    """DOC-01: on real containers and in a network namespace, with the node's directories elsewhere."""
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KEPD_ENDPOINT": str(kepd.socket)}
    for block in blocks(ROOT / "docs/tutorial.md"):
        if STARTS in block.reason:
            kepd.start()
            kepd.wait(kepd.socket.exists, "its socket")
        elif block.is_run:
            elsewhere = block.text.replace("/etc/kepd/", f"{kepd.folder}/").replace("/tmp/kepd-", f"{kepd.folder}/")
            moved = Block(block.page, block.line, block.mark, elsewhere)
            try:
                run(moved, environment, *kepd.prefix)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{kepd.log.read_text() if kepd.log.exists() else ''}") from None


def run(block: Block, environment: dict[str, str], *prefix: str) -> None:
    """Once, or until it shows what it should, as somebody would who looks again."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        done = subprocess.run(
            [*prefix, "sh", "-euc", block.text],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        is_shown = done.returncode == 0 and block.shows in done.stdout + done.stderr
        if is_shown or not block.shows or time.monotonic() > deadline_s:
            break
        time.sleep(0.3)
    assert is_shown, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
