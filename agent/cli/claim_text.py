# SPDX-License-Identifier: Apache-2.0
"""An explanation of a claim as people read it."""

from collections.abc import Iterator

from agent.cli.table import Grid, Paragraph
from agent.devices.view.explained import Explanation

OUTCOMES = {"allocated": "gets its devices", "waits": "waits", "error": "cannot be allocated"}


def explanation_blocks(subject: str, found: Explanation) -> Iterator[Grid | Paragraph]:
    yield Paragraph(f"{subject}  {OUTCOMES[found.outcome]}: {found.end}")
    for claim in found.claims:
        for request in claim.requests:
            title = f"CLAIM {claim.key}  REQUEST {request.name}  {request.wants}"
            if not request.verdicts:
                yield Paragraph(f"{title}: no driver publishes any device")
                continue
            yield Paragraph(title)
            yield Grid(("DEVICE", "REASON"), [(str(one.device), str(one.reason)) for one in request.verdicts])
    for change in found.changes:
        yield Paragraph(f"- {change}")
