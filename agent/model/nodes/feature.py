# SPDX-License-Identifier: Apache-2.0
"""What a node can do of one enhancement, and what it stands on."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.model.nodes.control_group import GroupShape
from agent.model.runtime.features import RuntimeFeatures

FeatureState = Literal["works", "needs", "off", "partly", "elsewhere"]


class FeatureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`keys` are values of the configuration by path; `release` is the kernel's number."""

    runtime: RuntimeFeatures = RuntimeFeatures()
    groups: GroupShape = msgspec.field(default_factory=GroupShape)
    release: tuple[int, int] = (0, 0)
    has_pressure: bool = False
    has_kubelet: bool = False
    has_journalctl: bool = False
    can_trace: bool = False
    """What sends traces is installed."""
    planes: frozenset[str] = frozenset()
    keys: Mapping[str, object] = msgspec.field(default_factory=dict)


class FeatureRow(msgspec.Struct, frozen=True, kw_only=True):
    """`keps` are numbers; `why` says what is missing, or which key switches it on."""

    keps: str
    what: str
    state: FeatureState
    why: str = ""
    facts: FeatureFacts
    """What the node knew when it said so."""
