# SPDX-License-Identifier: Apache-2.0
"""What rules depend on, in one family, and when an address is live."""

from typing import Literal

import msgspec

from agent.model.services.nft_table import Detection, Family

PORT = 53
PROBE_MARK = 0x4B445053
"""Of probes of this host, which have to reach the process even while all others are led elsewhere."""
LIFE_S, REFRESH_S = 30, 5.0
PROBE_S, REPEAT_S, SLOW_S = 0.3, 0.25, 0.25
LAZY_PROBE_S, TCP_PROBE_S = 1.0, 5.0
FAILURES = 2


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """`falls_back`: another DNS answers where no rule matches. `pods` are networks of pods, `outside` interfaces that
    lead away from this node, for where neither networks nor interfaces of pods are known."""

    family: Family
    addresses: tuple[str, ...]
    falls_back: bool = False
    detection: Detection = Detection()
    pods: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def judges(self) -> bool:
        """Whether anything says who may ask."""
        return self.detection.mode != "none" or bool(self.outside)


Deed = Literal["", "refresh", "withdraw"]


class Liveness(msgspec.Struct, frozen=True):
    """Of one address. Two failed probes withdraw it, one that works brings it back."""

    is_live: bool = False
    failures: int = 0
    refreshed_s: float = float("-inf")

    def probed(self, now_s: float, *, works: bool) -> tuple["Liveness", Deed]:
        if works:
            is_due = not self.is_live or now_s - self.refreshed_s >= REFRESH_S
            return Liveness(True, 0, now_s if is_due else self.refreshed_s), "refresh" if is_due else ""
        failures = self.failures + 1
        if self.is_live and failures >= FAILURES:
            return Liveness(False, failures), "withdraw"
        return Liveness(self.is_live, failures, self.refreshed_s), ""

    def pause_s(self, *, falls_back: bool) -> float:
        """Until the next probe. Where nothing takes over there is nothing to hurry for."""
        if 0 < self.failures < FAILURES:
            return REPEAT_S
        return PROBE_S if falls_back else LAZY_PROBE_S
