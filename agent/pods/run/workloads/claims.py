# SPDX-License-Identifier: Apache-2.0
"""Directories that pods of a StatefulSet have in place of PersistentVolumeClaims: made before a pod, removed where its
manifest says so.

Each is written down before it is made, and struck out only once it is gone, so none is forgotten by a kepd that dies.
Only what is written down is ever removed, and nothing that another StatefulSet has too. Blocking; called in threads.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from agent.pods.run.disk.atomic_files import make_directory
from agent.pods.run.disk.trees import remove_tree
from agent.pods.workloads.stateful import StatefulRules
from agent.pods.workloads.workload import Workload, ordinal_of

# Whoever a pod runs as may write into its own; nobody gets there but by a mount.
CLAIM_MODE, ABOVE_MODE = 0o777, 0o700


def claims_for(workload: Workload, ordinals: Collection[int]) -> tuple[str, ...]:
    return tuple(
        claim.directory(workload.namespace, f"{workload.name}-{ordinal}")
        for ordinal in sorted(ordinals)
        for claim in workload.claims
    )


def make_claims(directories: Sequence[str]) -> None:
    """Raises OSError."""
    for one in directories:
        with suppress(FileExistsError):
            make_directory(Path(one), CLAIM_MODE, above_mode=ABOVE_MODE)


def to_remove(rules: StatefulRules, claims: Collection[str], there: Collection[int]) -> tuple[str, ...]:
    """Of ordinals that are wanted no more; `there` have a pod still."""
    if not rules.ends_claims_of_scaled:
        return ()
    kept = {*rules.ordinals, *there}
    return tuple(one for one in claims if ordinal_of(one) not in kept)


def remove_claims(directories: Sequence[str]) -> None:
    """Raises OSError."""
    for one in directories:
        with suppress(FileNotFoundError):
            remove_tree(Path(one))
