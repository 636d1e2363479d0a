# SPDX-License-Identifier: Apache-2.0
"""What the images plane tells those who ask: what a collection did, where pulls go, why a pull is as it is."""

from dataclasses import dataclass

from agent.model.image_state import ImageState, PullState

__all__ = ["CollectedImage", "CollectionState", "MirrorState", "PullExplanation"]


@dataclass(frozen=True, slots=True)
class CollectedImage:
    """One image that went, or would go."""

    image: ImageState
    reason: str
    is_removed: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class CollectionState:
    images: tuple[CollectedImage, ...]
    freed_bytes: int
    usage_percent: int


@dataclass(frozen=True, slots=True)
class MirrorState:
    registry: str
    url: str
    capabilities: tuple[str, ...]
    source: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PullExplanation:
    """Why an image is there or not, waits or failed: one sentence per rule that bears on it."""

    image: str
    reference: str
    is_present: bool
    pull: PullState | None
    sentences: tuple[str, ...]
