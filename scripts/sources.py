# SPDX-License-Identifier: Apache-2.0
"""Where the code of the product lies: the core, and the planes that are packages of their own."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "agent", *sorted(ROOT.glob("packages/*/kepd_*")))


def modules() -> list[Path]:
    """Without those that are generated."""
    generated = FOLDERS[0] / "wire"
    return [path for folder in FOLDERS for path in sorted(folder.rglob("*.py")) if not path.is_relative_to(generated)]
