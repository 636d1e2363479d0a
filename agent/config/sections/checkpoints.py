# SPDX-License-Identifier: Apache-2.0
"""The section of the configuration about checkpoints of containers, as document.py has the others."""

from dataclasses import dataclass

from agent.config.keys import key
from agent.config.kinds import SIZE, duration, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCheckpoints:
    keep: int = key(integer(1), 3, "Checkpoints of one container that are kept, the newest.")
    max_age: float = key(duration(60.0), 168 * 3600.0, "How long a checkpoint is kept.")
    max_bytes: int = key(SIZE, 10 << 30, "Space for all checkpoints; the newest stays, however large it is.")
