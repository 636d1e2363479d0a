# SPDX-License-Identifier: Apache-2.0
"""The linters' own settings: what breaks the rule of the rooms fails, shown by breaking it."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.sources import FOLDERS, modules

ROOT = Path(__file__).resolve().parents[1]
PLANES = ("images", "observe", "pods", "proxy", "services")
WORLD = (
    "aiohttp", "asyncio", "grpc", "os", "pyroute2", "random", "secrets", "shutil", "socket", "structlog", "subprocess",
    "tempfile", "threading", "time",
)  # fmt: skip
MOST_MODULES = 20
TRESPASSES = {
    "cli/commands/knows_a_package": "kepd_rehearsal.run.what_if",
    "drivers/clock/knows_another": "agent.drivers.cgroups.driver",
    "host/knows_what_runs": "agent.pods.run.runner",
    "host/knows_a_rule": "agent.pods.plan.order",
    "kit/knows_a_plane": "agent.images.settings",
    "kit/knows_a_package": "kepd_dns.wire.names",
    "model/opens_files": "os",
    "pods/attach/knows_a_joint": "agent.host.joints.pods_images",
    "pods/attach/knows_another_plane": "agent.images.settings",
    "pods/plan/knows_a_driver": "agent.drivers.clock.driver",
}


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy in which one pure module of each plane does what it must not."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(folder, copy / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in WORLD:
        (copy / f"agent/pods/plan/uses_{name}.py").write_text(f"import {name}\n")
    for plane in PLANES:
        room = next(
            path
            for path in sorted((copy / "agent" / plane).iterdir())
            if path.is_dir() and path.name not in ("attach", "run")
        )
        (room / "knows_what_runs.py").write_text(f"import agent.{plane}.run\n")
    (copy / "kepd_devices/plan/knows_what_runs.py").write_text("import kepd_devices.run\n")
    for place, imported in TRESPASSES.items():
        (copy / f"agent/{place}.py").write_text(f"import {imported}\n")
    for place in ("agent/topology/hints", "kepd_rehearsal/plan"):
        (copy / place / "waits.py").write_text("import asyncio\n")
    (copy / "agent/pods/run/allowed.py").write_text("import asyncio, os, socket\n")
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--no-logo"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", WORLD)
def test_a_pure_room_that_imports_something_of_the_world_fails_lint(contracts: str, name: str) -> None:
    assert f"agent.pods.plan.uses_{name} -> {name} (l.1)" in contracts


@pytest.mark.parametrize("plane", PLANES)
def test_a_pure_room_that_imports_what_runs_fails_lint(contracts: str, plane: str) -> None:
    assert f"Illegal imports of protected package agent.{plane}.run" in contracts


@pytest.mark.parametrize("place", TRESPASSES)
def test_what_knows_too_much_fails_lint(contracts: str, place: str) -> None:
    assert f"agent.{place.replace('/', '.')} -> {TRESPASSES[place]} (l.1)" in contracts


def test_topology_is_pure_as_a_whole_and_run_is_free(contracts: str) -> None:
    assert "agent.topology.hints.waits -> asyncio (l.1)" in contracts
    assert "kepd_rehearsal.plan.waits -> asyncio (l.1)" in contracts
    assert "agent.pods.run.allowed" not in contracts


@pytest.mark.parametrize(
    ("place", "code", "expected"),
    [
        ("agent/pods/plan/one.py", "from pathlib import Path\n", 1),
        ("agent/pods/plan/one.py", "import pathlib\n\nHOME = pathlib.Path()\n", 1),
        ("agent/topology/hints/one.py", "from pathlib import Path\n", 1),
        ("agent/services/ports.py", "from pathlib import Path\n", 1),
        ("agent/pods/plan/one.py", "from pathlib import PurePath\n\nprint(open(PurePath()))\n", 1),
        ("agent/pods/plan/one.py", "from pathlib import PurePath\n", 0),
        ("agent/pods/run/one.py", "from pathlib import Path\n", 0),
        ("agent/host/one.py", "from pathlib import Path\n", 0),
    ],
)
def test_files_are_touched_in_run_alone(place: str, code: str, expected: int) -> None:
    ruff = str(Path(sys.executable).with_name("ruff"))
    ran = subprocess.run(
        [ruff, "check", "-q", "--select", "TID251,PTH123", "--stdin-filename", place, "-"],
        cwd=ROOT, input=code, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == expected, ran.stdout


def test_no_folder_is_too_full_to_look_through() -> None:
    folders = Counter(path.parent for path in modules())
    full = {str(path.relative_to(ROOT)): count - 1 for path, count in folders.items()}

    assert {path: count for path, count in full.items() if count > MOST_MODULES} == {}
