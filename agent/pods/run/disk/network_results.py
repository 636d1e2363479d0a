# SPDX-License-Identifier: Apache-2.0
"""What CNI wrote down of the network of each sandbox, after a power cut.

CNI does not sync these files, so a power cut leaves empty ones, and by an empty one no network can be ended: the
runtime refuses to stop the sandbox, for ever. Without the file it ends the network from its configuration. Blocking.
"""

import json
from pathlib import Path

RESULTS = Path("/var/lib/cni/results")
ASIDE = "unreadable"


def unreadable_results(results: Path, of: str = "") -> list[Path]:
    """Those that do not parse; `of` is the id of a sandbox."""
    return [path for path in sorted(results.glob(f"*{of}?*")) if path.is_file() and not _parses(path)]


def set_aside(results: Path, sandbox_id: str) -> list[Path]:
    """Move the unreadable ones of a sandbox that is being stopped; answers with their new paths."""
    moved = []
    for path in unreadable_results(results, sandbox_id):
        aside = results.parent / ASIDE
        aside.mkdir(mode=0o700, exist_ok=True)
        moved.append(path.replace(aside / path.name))
    return moved


def _parses(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return isinstance(error, FileNotFoundError)
    return True
