# SPDX-License-Identifier: Apache-2.0
"""Every command block of a page is run, or says why it is only read (DOC-01): all that need containers, or nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.host.setup.contents import drop_in
from scripts.recording import shape
from tests.deploy.documents import COMMANDS, Block, blocks, languages
from tests.host.process import PROGRAMS, ROOT, Kepd
from tests.lab import Image, Lab

KUBE = "agent/drivers/kube/README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", KUBE)),
    *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md")),
]  # fmt: skip
ALL = [block for page in PAGES for language in sorted(COMMANDS) for block in blocks(page, language=language)]
BUSYBOX = "docker.io/library/busybox:1.37"
STARTS = "kepd setup --yes --now"
PORT, PORT_THERE = 10943, 10241
WITHIN_S = 30.0
WITH_CONTAINERS = (
    "docs/tutorial.md",
    "docs/workloads.md",
    "docs/policies.md",
    "docs/devices.md",
    "docs/planes/pods.md",
    "docs/planes/images.md",
    "docs/planes/api.md",
)
ELSEWHERE = ("README.md", "docs/services.md", "docs/topology.md", "docs/what-if.md")


def test_every_block_says_whether_it_is_run() -> None:
    """DOC-01."""
    assert [str(one) for one in ALL if one.is_run_in_a_machine == bool(one.reason)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_block_hides_its_commands_in_another_language(page: Path) -> None:
    assert languages(page) <= {*COMMANDS, "text", "yaml"}


def test_every_page_with_blocks_to_run_has_a_test_that_runs_them() -> None:
    assert {one.page for one in ALL if one.is_run and one.language != "python"} == {*WITH_CONTAINERS, *ELSEWHERE}


@pytest.mark.parametrize("block", [one for one in ALL if one.language != "python"], ids=str)
def test_a_shell_can_read_every_block(block: Block) -> None:
    texts = [command for command, _ in block.transcript] if block.language == "console" else [block.text]
    done = subprocess.run(["sh", "-n"], input="\n".join(texts), capture_output=True, text=True, check=False)

    assert texts
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [one for one in ALL if one.language == "python"], ids=str)
def test_a_program_of_a_page_does_what_it_says(block: Block) -> None:
    code = block.text if block.is_run else f"compile({block.text!r}, 'page', 'exec')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert block.shows in done.stdout


@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_readme_keeps_its_word(short_path: Path) -> None:
    """DOC-01: what it shows is what its commands do."""
    for block in blocks(ROOT / "README.md"):
        if block.is_run:
            said = run(block, {**os.environ, "TMPDIR": str(short_path)}, folder=ROOT)
            (text,) = blocks(ROOT / "README.md", language="text")
            assert shape(said) == shape(text.text), "run python -m scripts.recording"


@pytest.fixture
def kepd(lab: Lab, short_path: Path) -> Iterator[Kepd]:
    lab.preload(Image(name="node/busybox"), BUSYBOX)
    # On a node the default route leads packets for Services into the kernel's hooks.
    lab.netns.run(["ip", "route", "replace", "10.96.0.0/16", "dev", "lo"])
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
        f"devices: {{manager: {{registry: '', slices: ''}}, podResources: '',\n"
        f"  cdi: {{directories: [{lab.place.cdi}], output: {lab.place.cdi}}}}}\n"
    )
    # What `kepd setup` of the tutorial writes; on this machine it would find other addresses.
    (short_path / "config.d").mkdir()
    written = drop_in(service_ranges=("10.96.0.0/16",), subnets=("10.85.0.0/16",), is_with_pods=True)
    (short_path / "config.d" / "00-node.yaml").write_bytes(written)
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(short_path, PORT, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        if daemon.process is not None:
            daemon.wait(lambda: not daemon.json("get", "pods")["items"], "all pods gone", 20.0)
    lab.netns.run(["nft", "flush", "ruleset"])


@pytest.mark.node
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_CONTAINERS)
def test_a_page_leads_to_where_it_says(page: str, kepd: Kepd) -> None:
    """DOC-01: on real containers and in a network namespace, with the node's directories elsewhere."""
    found = list(blocks(ROOT / page))
    if not any(STARTS in block.text for block in found):
        start(kepd)
    for block in found:
        if STARTS in block.text:
            start(kepd)
        elif block.is_run:
            text = block.text.replace("/etc/kepd/", f"{kepd.folder}/").replace(f":{PORT_THERE}/", f":{PORT}/")
            moved = Block(block.page, block.line, block.mark, text)
            try:
                run(moved, environment_of(kepd), *kepd.prefix, folder=kepd.folder)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{kepd.log.read_text() if kepd.log.exists() else ''}") from None


def start(kepd: Kepd) -> None:
    kepd.start()
    kepd.wait(kepd.socket.exists, "its socket")


def environment_of(kepd: Kepd) -> dict[str, str]:
    return {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "KEPD_ENDPOINT": str(kepd.socket)}


def run(block: Block, environment: Mapping[str, str], *prefix: str, folder: Path) -> str:
    """Once, or until it shows what it should, as somebody would who looks again; what it printed."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        done = subprocess.run(
            [*prefix, "sh", "-euc", block.text],
            env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        is_shown = done.returncode == 0 and block.shows in done.stdout + done.stderr
        if is_shown or not block.shows or time.monotonic() > deadline_s:
            break
        time.sleep(0.3)
    assert is_shown, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
