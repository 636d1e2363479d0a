# SPDX-License-Identifier: Apache-2.0
"""What a Job's manifest asks for."""

import msgspec


class JobRules(msgspec.Struct, frozen=True, kw_only=True):
    """`completions` None: it is complete when one pod has succeeded and no other runs."""

    completions: int | None = 1
    parallelism: int = 1
    backoff_limit: int = 6
    deadline_s: int | None = None
    keeps_finished_s: int | None = None
    is_suspended: bool = False
    waits_for_ends: bool = False
    """A pod that still ends counts as one that runs."""
    restarts_inside: bool = False
    """Containers that fail start again in their pod, and these starts count."""

    @property
    def most_pods(self) -> int:
        return self.parallelism
