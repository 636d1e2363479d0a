# SPDX-License-Identifier: Apache-2.0
"""The section for NetworkPolicies."""

from dataclasses import dataclass

from agent.config.keys import restart
from agent.config.kinds import BOOL, either


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    enabled: bool | str = restart(
        either("auto", BOOL), "auto", "Enforce NetworkPolicies of pods from files; `auto`: where such pods run."
    )
