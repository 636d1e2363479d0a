# SPDX-License-Identifier: Apache-2.0
"""Parts of a manifest that may have faults: what is not there, or of another kind, is empty."""

from collections.abc import Mapping
from typing import Any


def part(made: object, *names: str) -> dict[str, Any]:
    """A map inside of a manifest, which may be one with faults; an empty one for anything else."""
    for name in names:
        made = made.get(name) if isinstance(made, Mapping) else None
    return dict(made) if isinstance(made, Mapping) else {}


def items(made: object, *names: str) -> list[dict[str, Any]]:
    """The maps in a list."""
    listed = part(made, *names[:-1]).get(names[-1])
    return [dict(one) for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def created(made: object) -> str:
    """When; empty for what does not say it."""
    return str(part(made, "metadata").get("creationTimestamp") or "")
