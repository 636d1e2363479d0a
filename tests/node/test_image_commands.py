# SPDX-License-Identifier: Apache-2.0
"""Every command about images, as people type it, on a real containerd whose registry is slow or stuck."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.host.process import PROGRAMS
from tests.lab import Fault, Lab, Throttle
from tests.node.image_node import Node, image_node

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]


@pytest.fixture
def node(lab: Lab, throttle: Throttle, short_path: Path, free_port: int) -> Iterator[Node]:
    with image_node(lab, throttle, short_path, free_port) as running:
        yield running


def on_a_terminal(node: Node, *arguments: str, within_s: float = 30.0) -> tuple[int, str]:
    """kepctl with a terminal of its own: the exit code and all that was drawn."""
    controller, terminal = pty.openpty()
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(node.kepd.socket), *arguments]
    child = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    drawn = bytearray()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not select.select([controller], [], [], 0.2)[0]:
            continue
        try:
            drawn += os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
    os.close(controller)
    return child.wait(5), drawn.decode("utf-8", "replace")


@contextmanager
def following(node: Node, *arguments: str) -> Iterator["Followed"]:
    """kepctl with `--watch`."""
    with (node.kepd.folder / "watched").open("w+") as out:
        command = [str(PROGRAMS / "kepctl"), "--endpoint", str(node.kepd.socket), *arguments]
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield Followed(node.kepd.folder / "watched")
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(10)


class Followed:
    """What it has printed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str:
        return self._path.read_text()


def test_pull_draws_a_bar_with_share_size_and_rate_on_a_terminal(node: Node) -> None:
    """IMG-T06: `kepctl pull REF… --wait`."""
    images = [node.image("bar-one", 3_000_000), node.image("bar-two", 2_000_000)]
    node.throttle.limit(total_bytes_s=2_000_000)
    code, drawn = on_a_terminal(node, "pull", "--wait", *images)

    assert code == 0
    assert "━" in drawn
    assert re.search(r"\b[1-9][0-9]?%", drawn)
    assert re.search(r"[0-9.]+ [KM]iB of [0-9.]+ MiB", drawn)
    assert "iB/s" in drawn
    assert "100%" in drawn
    assert drawn.count("pulled in") == 2


def test_pull_without_a_terminal_tells_stages_line_by_line_and_how_each_ended(node: Node) -> None:
    """API-06: lines go to standard error, results to standard output, failures to the exit code."""
    image = node.image("lines", 400_000)
    missing = image.replace("lines", "nothing")
    done = node.kepd.ctl("pull", image, missing)

    assert done.returncode == 1
    assert re.search(rf"^{re.escape(image)}: pulled in [0-9.]+ s", done.stdout, re.MULTILINE)
    assert f"{missing}: failed: ErrImagePull: " in done.stdout
    assert f"{image}: done" in done.stderr
    assert "1 of 2 not pulled" in done.stderr


def test_get_pulls_watch_shows_places_and_reasons_as_they_change(node: Node) -> None:
    """IMG-T05: position and reason of each that waits, then its progress and its end."""
    first, second, third = (node.image(f"watch-{name}", 1_000_000) for name in ("one", "two", "three"))
    assert node.kepd.ctl("set", "pull-limit", "1").returncode == 0
    with following(node, "get", "pulls", "--watch") as watch:
        node.throttle.inject(Fault(kind="hang", pattern="/v2/node/watch-one/blobs/", after_bytes=100_000))
        hanging = node.client.pull(first)
        node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/watch-one/blobs"), "the first")
        others = [node.client.pull(second), node.client.pull(third)]
        node.kepd.wait(lambda: "waiting at 2: 1 of 1 slots busy" in watch.text(), "the place of the last")
        assert "waiting at 1: 1 of 1 slots busy" in watch.text()
        node.throttle.clear()
        for wish in (hanging, *others):
            wish.result()
        node.kepd.wait(lambda: len(re.findall(r"\bdone\b", watch.text())) >= 3, "the ends")


def test_watch_image_pulls_streams_everything_then_changes(node: Node) -> None:
    """API: a watch of pulls begins with what there is, says so, and goes on with changes."""
    image = node.image("stream", 300_000)
    stream = node.client.watch("pulls")
    wish = node.client.pull(image)
    stages = []
    for change in stream:
        pull = json.loads(change.object)["status"] if change.object else {}
        if pull.get("image") == image and (not stages or stages[-1] != pull["stage"]):
            stages.append(pull["stage"])
        if stages[-1:] == ["done"]:
            break
    stream.cancel()

    assert wish.result()[image].result == "pulled"
    assert stages[-1] == "done"


def test_explain_cancel_and_the_limit(node: Node) -> None:
    """IMG-S20, S17: by the client, with exit codes that scripts can use."""
    stuck, waiting = node.image("explain-stuck", 1_000_000), node.image("explain-waiting")
    assert "node: 1, 0 running" in node.kepd.ctl("set", "pull-limit", "1").stdout
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/explain-stuck/blobs/", after_bytes=100_000))
    wish = node.client.pull(stuck)
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/explain-stuck/blobs"), "the first")
    other = node.client.pull(waiting)
    node.kepd.wait(lambda: len(node.client.pulls()) == 2, "both")
    explained = node.kepd.ctl("explain", "pull", waiting)
    pull_id = next(pull.id for pull in node.client.pulls() if pull.image == stuck)
    cancelled = node.kepd.ctl("cancel", "pull", pull_id)

    assert "it waits at position 1: 1 of 1 slots busy" in explained.stdout
    assert (explained.returncode, cancelled.returncode) == (0, 0)
    assert wish.result()[stuck].result == "cancelled"
    assert other.result()[waiting].result == "pulled"
    assert "is on the node as" in node.kepd.ctl("explain", "pull", waiting).stdout

    registry = waiting.partition("/")[0]
    limited = node.kepd.ctl("set", "pull-limit", "1", "--registry", registry)
    assert f"{registry}: 1, 0 running" in limited.stdout


def test_images_and_their_collection(node: Node) -> None:
    """IMG-G13: sizes, users, pins, why each stays; a dry run removes nothing."""
    image = node.image("listed", 300_000)
    node.client.pull(image).result()
    wide = node.kepd.ctl("get", "images", "-o", "wide").stdout
    line = next(line for line in wide.splitlines() if "node/listed" in line)
    dry = node.kepd.ctl("gc", "--dry-run")
    still = image in node.client.images()
    neither = node.kepd.ctl("gc")

    assert re.search(r"IMAGE +ID +SIZE +LAST USED +USED BY +PINNED +KEPT +SOURCE", wide)
    assert "younger than 2m0s" in line
    assert "pulled" in line
    assert (dry.returncode, still, neither.returncode) == (0, True, 2)

    node.kepd.write_config(node.lab.endpoint, "images: {gc: {minAge: 0s}}\n")
    assert node.kepd.ctl("config", "reload").returncode == 0
    assert "node/listed" in node.kepd.ctl("gc", "--dry-run").stdout
    assert image in node.client.images()
    now = node.kepd.ctl("gc", "--now")
    assert "node/listed" in now.stdout
    assert "% full" in now.stdout + now.stderr
    assert image not in node.client.images()


METRICS = (
    "pull_duration_seconds", "pull_active_seconds", "pull_wait_seconds", "pulls_total", "pull_errors_total",
    "pull_queue_length", "pulls_in_flight", "pull_limit", "pull_oldest_wait_seconds", "bytes_downloaded_total",
    "layers_total", "unpack_seconds", "backoff_entries", "gc_removed_total", "gc_freed_bytes_total",
    "gc_last_run_timestamp_seconds", "fs_bytes", "fs_inodes",
)  # fmt: skip


def test_every_metric_is_on_the_page_with_its_labels(node: Node) -> None:
    """IMG-M01 to M06."""
    image = node.image("metrics", 300_000)
    node.client.pull(image).result()
    node.client.pull(image.replace("metrics", "nothing")).result()
    page = node.kepd.get("/metrics")[1]
    families = set(re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE))
    wanted = {f"kepd_image_{name}" for name in METRICS} | {"kepd_images"}
    wanted |= {"kepd_credential_provider_seconds", "kepd_credential_provider_errors_total"}

    assert wanted - families - {f"{name}_total" for name in families} == set()
    assert 'kepd_image_pulls_total{class="pod",result="pulled"} 1.0' in page
    assert re.search(r'kepd_image_pull_errors_total\{error_class="notfound",registry="127.0.0.1:\d+"\} 1.0', page)
    assert 'kepd_image_pull_limit{scope="node"} 2.0' in page
    assert image not in page


def test_help_names_every_command(node: Node) -> None:
    """Those for pulls and images."""
    del node
    for command in (
        ("pull",), ("cancel", "pull"), ("prefetch",), ("retry",), ("set", "pull-limit"), ("gc",), ("explain", "pull"),
    ):  # fmt: skip
        done = subprocess.run([PROGRAMS / "kepctl", *command, "--help"], capture_output=True, check=False)
        assert done.returncode == 0, command


def test_inspect_shows_what_an_image_is_made_of_and_who_may_use_it(node: Node) -> None:
    """By name and by the beginning of its id; one that is not there has its own exit code."""
    image = node.image("inspected", 300_000, 40_000)
    assert node.client.pull(image).result()[image].result == "pulled"
    found = node.kepd.json("inspect", "image", image)
    shown = node.kepd.ctl("inspect", "image", found["image"]["id"].removeprefix("sha256:")[:16]).stdout

    assert found["reference"] == image
    assert len(found["layers"]) == 3
    assert all(one["isPresent"] and int(one["sizeBytes"]) > 1000 for one in found["layers"])
    assert int(found["totalBytes"]) > 340_000
    assert found["mayUse"] == ["every pod: it was pulled without credentials, or with those of the node"]
    assert f"image     {image}" in shown
    assert "used by   no container" in shown
    assert all(one["digest"] in shown for one in found["layers"])
    missing = node.kepd.ctl("inspect", "image", "registry.example/none:1")
    assert missing.returncode == 3, missing
    assert 'no image "registry.example/none:1" on this node' in missing.stderr


def test_an_image_that_a_verifier_refuses_is_named_nowhere_but_among_the_pulls(node: Node) -> None:
    """`images.verify.signatures`, set while it runs: programs as containerd 2.1 calls them."""
    programs = node.kepd.folder / "verifiers"
    programs.mkdir()
    script = programs / "by-name"
    script.write_text('#!/bin/sh\ncase "$2 $4" in *signed-not*) echo "no signature for $4"; exit 1;; esac\necho fine\n')
    script.chmod(0o755)
    config = node.kepd.config.read_text()
    node.kepd.config.write_text(config + f"  verify: {{signatures: {programs}}}\n")
    assert node.kepd.ctl("config", "reload").returncode == 0
    good, bad = node.image("signed"), node.image("signed-not")
    accepted, refused = node.client.pull(good).result()[good], node.client.pull(bad).result()[bad]

    assert accepted.result == "pulled"
    assert (refused.result, refused.error_class) == ("failed", "verifier")
    assert "by-name blocked pull of " in refused.message
    assert "exit code 1: no signature for sha256:" in refused.message
    assert "no signature for sha256:" in node.kepd.ctl("get", "pulls", "--all", "-o", "wide").stdout
    names = node.kepd.ctl("get", "images").stdout
    assert good in names
    assert bad not in names
