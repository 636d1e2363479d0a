# SPDX-License-Identifier: Apache-2.0
"""A new kind is one file: it is written, checked, kept, shown and watched, and kubectl explains it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import take_port

PROGRAM = (sys.executable, "-m", "tests.kinds.with_teapots")
WITHIN_S = 60.0


def teapot(name: str, cups: object) -> str:
    kind = {"apiVersion": "tea.example.com/v1", "kind": "Teapot"}
    return json.dumps({**kind, "metadata": {"name": name, "namespace": "default"}, "spec": {"cups": cups}})


class TeaNode:
    def __init__(self, folder: Path) -> None:
        http, door = take_port(), take_port()
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.socket, config = folder / "kepd.sock", folder / "config.yaml"
        config.write_text(
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
            f"node: {{name: n1, stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
            f"manifests: {{directory: {self.manifests}, debounce: 20ms}}\n"
            f"api: {{socket: {self.socket}, httpAddress: '127.0.0.1:{http}', readGroup: '',"
            f" door: {{address: '127.0.0.1:{door}'}}}}\n"
        )
        self._log = folder / "kepd.log"
        self.command = (*PROGRAM, "kepd", "run", "--config", str(config), "--planes", "")
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(self.command, stdout=log, stderr=log)

    def ctl(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = (*PROGRAM, "kepctl", "--endpoint", str(self.socket), *arguments)
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=WITHIN_S, check=False)

    def until(self, is_so: Callable[[], object]) -> None:
        end_s = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < end_s
            time.sleep(0.05)

    def cups(self) -> dict[str, str]:
        lines = self.ctl("get", "teapots", "--no-headers").stdout.splitlines()
        return {line.split()[1]: line.split()[2] for line in lines if len(line.split()) > 2}

    def again(self) -> None:
        self.end()
        self.process = self._begin()
        self.until(lambda: self.ctl("get", "teapots").returncode == 0)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(WITHIN_S)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TeaNode]:
    made = TeaNode(tmp_path)
    try:
        made.until(lambda: made.ctl("get", "teapots").returncode == 0)
        yield made
    finally:
        made.end()


def test_a_new_kind_is_one_file(node: TeaNode) -> None:
    applied = node.ctl("apply", "-f", "-", given=teapot("brown", 4))
    refused = node.ctl("apply", "-f", "-", given=teapot("cracked", 0))
    (file,) = node.manifests.iterdir()
    node.until(lambda: node.cups() == {"brown": "4"})
    broken = teapot("brown", "many")
    file.write_text(broken)
    (node.manifests / "z.yaml").write_text(teapot("brown", 9) + "\n---\n" + teapot("blue", 2))
    node.until(lambda: "blue" in node.cups())
    kept = node.cups()
    node.again()
    after = node.cups()
    listed = json.loads(node.ctl("get", "tp", "blue", "-o", "json").stdout)

    assert (applied.returncode, applied.stdout) == (0, "teapot/default/brown created\n"), applied.stderr
    assert refused.returncode != 0
    assert "spec.cups: 0 is no number of cups; expected one from 1 on" in refused.stderr
    assert kept == after == {"brown": "4", "blue": "2"}, "the last good one stays, also over a restart; a rival waits"
    assert (listed["kind"], listed["spec"]) == ("Teapot", {"cups": 2})


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kubectl_knows_it_too(node: TeaNode, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(node.ctl("kubeconfig", "--level", "operate").stdout)

    def kubectl(*arguments: str, given: str = "") -> str:
        environment = {**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)}
        command = ("kubectl", *arguments)
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, env=environment, timeout=WITHIN_S, check=False
        )
        return done.stdout + done.stderr

    created = kubectl("create", "-f", "-", given=teapot("white", 6))
    watch = subprocess.Popen(
        ("kubectl", "--kubeconfig", str(config), "get", "teapots", "--watch", "--no-headers"),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with watch:
        assert watch.stdout is not None
        first = watch.stdout.readline()
        patched = kubectl("patch", "teapot", "white", "--type=merge", "-p", '{"spec":{"cups":7}}')
        second = watch.stdout.readline()
        watch.terminate()

    assert "teapot.tea.example.com/white created" in created
    assert "patched" in patched
    assert (first.split()[:3], second.split()[:3]) == (["default", "white", "6"], ["default", "white", "7"]) or (
        first.split()[:2],
        second.split()[:2],
    ) == (["white", "6"], ["white", "7"])
    assert "tea.example.com" in kubectl("explain", "teapots")
    assert "deleted" in kubectl("delete", "teapot", "white")
