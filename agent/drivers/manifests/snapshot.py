# SPDX-License-Identifier: Apache-2.0
"""What a look at the manifests brought.

Owns: the value. Never: reads anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model.finding import Finding

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by path. What can be read no longer stands here with its last content, and in `problems` with the reason.

    `unread` are the files that nobody has read yet, or the directory: what stands there is unknown, not nothing.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()
    unread: frozenset[str] = frozenset()
