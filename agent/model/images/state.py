# SPDX-License-Identifier: Apache-2.0
"""Pulls, images, collections and mirrors as they are, for those who look: the API, the command line, tests."""

from enum import StrEnum

import msgspec

from agent.model.images.pull import ErrorClass, PullClass


class PullStage(StrEnum):
    """queued → credentials → resolving → downloading → unpacking → verifying → done, failed or cancelled; lazy: the
    snapshotter fetches what containers read, and how much that is cannot be known; skipped: what would be fetched
    ahead, but for a reason."""

    QUEUED = "queued"
    CREDENTIALS = "credentials"
    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    LAZY = "lazy"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def is_over(self) -> bool:
        return self in (PullStage.DONE, PullStage.FAILED, PullStage.CANCELLED, PullStage.SKIPPED)


class LayerStage(StrEnum):
    CACHED = "cached"
    WAITING = "waiting"
    DOWNLOADING = "downloading"
    DOWNLOADED = "downloaded"
    UNPACKING = "unpacking"
    LAZY = "lazy"
    DONE = "done"


class LayerState(msgspec.Struct, frozen=True):
    digest: str
    size_bytes: int
    done_bytes: int
    stage: LayerStage


class Requester(msgspec.Struct, frozen=True):
    id: str
    pod_uid: str
    namespace: str
    pod: str
    container: str
    priority: int
    policy: str
    since_s: float


class PullState(msgspec.Struct, frozen=True, kw_only=True):
    """One pull with everything that is known of it. Times are wall time; 0 = not yet."""

    id: str
    image: str
    reference: str
    registry: str
    handler: str
    pull_class: PullClass
    stage: PullStage
    requesters: tuple[Requester, ...] = ()
    position: int = 0
    wait_reason: str = ""
    wait_text: str = ""
    queued_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    size_bytes: int | None = None
    total_bytes: int | None = None
    done_bytes: int = 0
    percent: int | None = None
    rate_bytes_s: float = 0.0
    eta_s: float | None = None
    is_eta_rough: bool = False
    layers: tuple[LayerState, ...] = ()
    layers_unpacked: int = 0
    attempts: int = 0
    image_id: str = ""
    error: str = ""
    error_class: ErrorClass | None = None


class ImageState(msgspec.Struct, frozen=True, kw_only=True):
    """One image on the node, and why it stays or may go."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    handler: str = ""
    is_pinned: bool = False
    is_pinned_by_kepd: bool = False
    is_in_use: bool = False
    used_by: tuple[str, ...] = ()
    first_seen_s: float = 0.0
    last_used_s: float = 0.0
    source: str = ""
    kept_because: str = ""


class InspectedLayer(msgspec.Struct, frozen=True):
    """`is_present`: its compressed blob is on the node; what is unpacked needs it no more."""

    digest: str
    size_bytes: int
    is_present: bool


class InspectedPlatform(msgspec.Struct, frozen=True):
    """One entry of an index. `is_present`: its manifest is on the node."""

    platform: str
    digest: str
    is_present: bool


class ImageInspection(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one image of the node. `digest`: what its name leads to, an index or a manifest."""

    image: ImageState
    reference: str
    digest: str = ""
    media_type: str = ""
    manifest_digest: str = ""
    platforms: tuple[InspectedPlatform, ...] = ()
    layers: tuple[InspectedLayer, ...] = ()
    total_bytes: int = 0
    may_use: tuple[str, ...] = ()
    """Who may use it without asking the registry again, in sentences."""
    notes: tuple[str, ...] = ()
    """What of all this could not be found, and why."""


class LimitState(msgspec.Struct, frozen=True):
    """One limit and how much of it is taken. `scope` is `node`, or a registry; `limit` 0 = none."""

    scope: str
    limit: int
    running: int


class CollectedImage(msgspec.Struct, frozen=True):
    image: ImageState
    reason: str
    is_removed: bool
    error: str = ""


class CollectionState(msgspec.Struct, frozen=True):
    images: tuple[CollectedImage, ...]
    freed_bytes: int
    usage_percent: int


class MirrorState(msgspec.Struct, frozen=True):
    registry: str
    url: str
    capabilities: tuple[str, ...]
    source: str
    problem: str = ""


class PrefetchedImage(msgspec.Struct, frozen=True):
    """What becomes of an image of a list: `state` is queued, present or skipped."""

    image: str
    state: str
    why: str = ""


class PullExplanation(msgspec.Struct, frozen=True):
    """Why an image is there or not, waits or failed: one sentence per rule that bears on it."""

    image: str
    reference: str
    is_present: bool
    pull: PullState | None
    sentences: tuple[str, ...]
