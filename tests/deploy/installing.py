# SPDX-License-Identifier: Apache-2.0
"""`scripts/install` as a packager runs it."""

import subprocess
from pathlib import Path

from tests.host.process import ROOT

__all__ = ["install", "python_of_tests"]


def install(destination: Path, *arguments: str) -> str:
    """What it says."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "DESTDIR": str(destination),
        "PYTHON": str(python_of_tests()),
    }
    done = subprocess.run(
        [str(ROOT / "scripts/install"), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_of_tests() -> Path:
    """The one that the environment of the tests was made with."""
    return (ROOT / ".venv/bin/python").resolve()
