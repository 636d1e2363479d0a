# SPDX-License-Identifier: Apache-2.0
"""Decides about a request before any queue: use the image on the node, refuse, or pull.

Owns: the pull policy against presence and access.
Never: looks anything up; presence and verdict are handed in, the verdict only on demand.
Source of behaviour: IMG-P02, S05, C25.
"""

from enum import StrEnum

from agent.model.image_pull import PullPolicy

__all__ = ["Admission", "admit", "is_verdict_needed"]


class Admission(StrEnum):
    USE = "use"
    REFUSE = "refuse"
    PULL = "pull"


def is_verdict_needed(policy: PullPolicy, *, is_present: bool) -> bool:
    """Whether it matters who may use the image. Credentials are looked up only then, or for a pull."""
    return is_present and policy is not PullPolicy.ALWAYS


def admit(policy: PullPolicy, *, is_present: bool, may_use: bool) -> Admission:
    """The way on. Never gives the same answer for absent and forbidden, so that presence is not revealed."""
    if policy is PullPolicy.ALWAYS:
        return Admission.PULL
    if is_present and may_use:
        return Admission.USE
    return Admission.REFUSE if policy is PullPolicy.NEVER else Admission.PULL
