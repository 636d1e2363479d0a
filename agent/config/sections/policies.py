# SPDX-License-Identifier: Apache-2.0
"""The section for NetworkPolicies."""

from dataclasses import dataclass

from agent.config.keys import restart
from agent.config.kinds import BOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    enabled: bool = restart(BOOL, True, "Enforce NetworkPolicies of pods from files, where such pods run.")
