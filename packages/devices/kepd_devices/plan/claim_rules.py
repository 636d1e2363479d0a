# SPDX-License-Identifier: Apache-2.0
"""What a claim may have that a search is not asked about. Raises DevicesNotReady."""

from collections.abc import Collection

from agent.model.devices.problem import DevicesNotReady
from kepd_devices.manifest.objects import Claim
from kepd_devices.plan.holdings import Holdings
from kepd_devices.plan.pools import gather
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.search import Question

UNALLOCATABLE, CLAIM_ERROR = "ClaimUnallocatable", "ClaimError"


def check_given(question: Question) -> None:
    """Accepts the devices that a status names, unless another claim holds one that cannot be shared."""
    holdings = Holdings(question.existing, gather(question.slices, question.node))
    for claim in question.claims:
        for one in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
            device = DeviceId(one.driver, one.pool, one.device)
            if not one.admin_access and (holder := holdings.holder(device)):
                text = f"the status of claim {claim.key} has device {device}, which claim {holder} has"
                raise DevicesNotReady(UNALLOCATABLE, text)


def check_admin(claim: Claim, namespaces: Collection[str]) -> None:
    wishes = [one.exactly for one in claim.spec.devices.requests if one.exactly is not None]
    if any(one.admin_access for one in wishes) and claim.metadata.namespace not in namespaces:
        text = f"claim {claim.key} asks for adminAccess; devices.manager.adminNamespaces does not name its namespace"
        raise DevicesNotReady(CLAIM_ERROR, text)
