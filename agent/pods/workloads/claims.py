# SPDX-License-Identifier: Apache-2.0
"""What each pod of a StatefulSet claims, and when that goes: as PersistentVolumeClaims, which outlive their pods.

A StatefulSet remembers its claims by `ROOT/NAMESPACE/CLAIM`, where the directories are that serve most of them.
"""

from collections.abc import Collection

from agent.pods.storage.objects import WantedClaim
from agent.pods.workloads.stateful import StatefulRules
from agent.pods.workloads.workload import Workload, ordinal_of


def claims_for(workload: Workload, ordinals: Collection[int]) -> tuple[WantedClaim, ...]:
    return tuple(
        WantedClaim(
            namespace=workload.namespace, name=claim.of(f"{workload.name}-{ordinal}"), spec=claim.spec,
            labels=claim.labels, maker=workload.text,
        )
        for ordinal in sorted(ordinals)
        for claim in workload.claims
    )  # fmt: skip


def remembered(claims: Collection[WantedClaim], root: str) -> set[str]:
    return {f"{root}/{claim.namespace}/{claim.name}" for claim in claims}


def to_remove(rules: StatefulRules, claims: Collection[str], there: Collection[int]) -> tuple[str, ...]:
    """Of ordinals that are wanted no more; `there` have a pod still."""
    if not rules.ends_claims_of_scaled:
        return ()
    kept = {*rules.ordinals, *there}
    return tuple(one for one in claims if ordinal_of(one) not in kept)
