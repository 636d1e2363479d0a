# SPDX-License-Identifier: Apache-2.0
"""What is in force after looks at files, one after the other."""

from collections.abc import Mapping

from agent.kinds.registry import MANIFEST_KINDS
from agent.objects.admitting import NOTHING, InForce, admit
from agent.objects.reading import Reading, Readings


def after(reading: Reading, *looks: Mapping[str, bytes], before: InForce = NOTHING) -> InForce:
    in_force = before
    for files in looks:
        in_force = admit(files, {}, in_force, Readings([reading]), MANIFEST_KINDS)
    return in_force
