# SPDX-License-Identifier: Apache-2.0
"""What a sync did, and who hears of it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from agent.model.services.nft_error import NftFailed
from agent.model.services.service import ServiceKey
from agent.services.routes.claims import Claim
from agent.services.routes.frontends import ServicePlan


class SyncReport(msgspec.Struct, frozen=True):
    """One sync that worked. `changed` are the Services that were looked at; with `is_full`, everything was."""

    changed: Mapping[ServiceKey, ServicePlan | None]
    elements: int
    duration_s: float
    is_full: bool
    looked: Collection[ServiceKey] = ()
    """Services of which anything changed, whether their plan did or not."""
    gone: Collection[Claim] = ()
    """Ways in that an earlier process left."""


class SyncWatcher(Protocol):
    def synced(self, family: str, report: SyncReport) -> None: ...
    def sync_failed(self, family: str, error: NftFailed, *, retry_s: float, is_full: bool) -> None: ...
    def quarantined(self, family: str, key: ServiceKey, error: NftFailed) -> None: ...
    def repaired(self, family: str, sentence: str, elements: int) -> None: ...
    def forwarding_dropped(self, family: str, chains: Sequence[str]) -> None: ...
