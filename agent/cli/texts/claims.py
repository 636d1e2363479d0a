# SPDX-License-Identifier: Apache-2.0
"""An explanation of a claim as people read it, from files or from the daemon."""

from collections.abc import Iterator

from agent.kinds.table import Grid, Paragraph
from agent.model.devices.report import ClaimExplanationReport
from agent.wire.kepd.v1 import device_pb2 as pb

OUTCOMES = {"allocated": "gets its devices", "waits": "waits", "error": "cannot be allocated"}


def explanation_blocks(
    subject: str, found: ClaimExplanationReport | pb.ExplainClaimResponse
) -> Iterator[Grid | Paragraph]:
    yield Paragraph(f"{subject}  {OUTCOMES.get(found.outcome, found.outcome)}: {found.end}")
    for request in found.requests:
        title = f"CLAIM {request.claim}  REQUEST {request.name}  {request.wants}"
        if not request.devices:
            yield Paragraph(f"{title}: no driver publishes any device")
            continue
        yield Paragraph(title)
        yield Grid(("DEVICE", "REASON"), [(one.device, one.reason) for one in request.devices])
    for change in found.changes:
        yield Paragraph(f"- {change}")
