# SPDX-License-Identifier: Apache-2.0
"""`kepd run --manifests DIR` before anything runs: what it takes, and what it says where it cannot."""

import os
import subprocess
from pathlib import Path

import pytest

from agent.config.sources import Sources, host_facts, load
from agent.host.by_hand import by_hand
from agent.host.plane_checks import PLANE_CHECKS
from agent.model.exit_codes import NOT_FOUND, NOT_PERMITTED, UNREACHABLE
from tests.host.process import PROGRAMS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAMS / "kepd"), "run", "--manifests", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_all_that_it_writes_lies_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    sources = by_hand(Sources(environment={}), tmp_path / "manifests", tmp_path / "own")
    checked = load(sources, host_facts({}), PLANE_CHECKS)

    assert checked.configuration is not None, checked.findings
    made = checked.configuration
    assert [made.pods.enabled, made.images.enabled, made.services.enabled, made.proxy.enabled] == [True] * 3 + [False]
    assert str(tmp_path / "manifests") == made.manifests.directory
    for path in (
        made.node.state_directory, made.node.run_directory, made.api.socket, made.pods.directory,
        made.pods.log_directory,
    ):  # fmt: skip
        assert Path(path).is_relative_to(tmp_path / "own")
    assert (made.api.http_address, made.services.healthz_address) == ("", "")


def test_a_setting_of_ones_own_counts_more(tmp_path: Path) -> None:
    given = Sources(environment={}, settings=("pods.eviction.mode=on",), planes="pods")
    checked = load(by_hand(given, tmp_path, tmp_path), host_facts({}), PLANE_CHECKS)

    assert checked.configuration is not None, checked.findings
    assert checked.configuration.pods.eviction.mode == "on"
    assert not checked.configuration.services.enabled


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_says_that_there_are_no_manifests(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.touch()

    missing, no_folder = run(str(tmp_path / "none")), run(str(file))

    assert (missing.returncode, no_folder.returncode) == (NOT_FOUND, NOT_FOUND)
    assert "does not exist; expected a directory of manifests" in missing.stderr
    assert "is no directory" in no_folder.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="asks for root first")
def test_a_directory_of_another_user_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    os.chown(manifests, 1000, 1000)

    done = run(str(manifests))

    assert done.returncode == NOT_PERMITTED
    assert "user 1000 owns it" in done.stderr
    assert "chown root" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="asks for root first")
def test_without_a_runtime_it_names_the_script_that_starts_one(tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/none.sock"
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    done = run(str(manifests), "--set", f"runtime.endpoint={endpoint}")

    assert done.returncode == UNREACHABLE
    assert f"no container runtime answers at {endpoint}" in done.stderr
    assert "`scripts/run DIR`" in done.stderr
    assert [manifests] == list(tmp_path.iterdir())
