# SPDX-License-Identifier: Apache-2.0
"""A request that cannot be carried out, with the reason."""

from collections.abc import Sequence

from agent.model.finding import Finding


class Refused(Exception):
    """Nothing was done."""

    def __init__(self, kind: str, text: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(text)
        self.kind = kind
        self.findings = tuple(findings)
