# SPDX-License-Identifier: Apache-2.0
"""Computes the progress of a pull: bytes, share, rate, time left, layers.

Never: guesses: without a manifest there are bytes but no total, and no percentage; nor is there one where a snapshotter
fetches layers when they are read. Which snapshotters do, and what people should know of them, stands here as well.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.images.view.manifest import Manifest
from agent.model.finding import Advice
from agent.model.images.state import LayerStage, LayerState

# Parts of the names that their projects give them in containerd's configuration.
LAZY = ("stargz", "nydus", "soci", "overlaybd", "cvmfs")
UNKNOWN_BYTES = (
    "it fetches layers when containers read them: pulls through it end early, their bytes and share are unknown, and "
    "images.largeImageSize, sizeRate and progressTimeout judge them by less than they will fetch"
)
UNTOLD = "containerd does not tell it which image a layer belongs to, so it fetches whole images like any other"
RATE_MEMORY_S = 30.0
ETA_FROM_S = 5.0
ETA_FROM_SHARE = 0.01
FETCHED = (LayerStage.DOWNLOADED, LayerStage.UNPACKING, LayerStage.DONE)


def lazy_snapshotters(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if any(part in name.lower() for part in LAZY))


def snapshotter_advice(names: Collection[str], *, are_annotations_off: bool) -> list[Advice]:
    """`are_annotations_off`: containerd's disable_snapshot_annotations."""
    found = []
    for name in lazy_snapshotters(names):
        subject = f"snapshotter {name}"
        if are_annotations_off:
            key = "disable_snapshot_annotations"
            found.append(Advice(subject=subject, found=f"{key} = true", wanted=f"{key} = false", text=UNTOLD))
        else:
            found.append(Advice(subject=subject, found="pulls lazily", wanted="", text=UNKNOWN_BYTES, is_note=True))
    return found


class StoreLook(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the store. `ingests`: bytes written by digest; `committed`: blobs that are whole."""

    ingests: Mapping[str, int] = msgspec.field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    unpacked: frozenset[str] = frozenset()
    """Chain ids whose snapshots are there."""
    unpacking: frozenset[str] = frozenset()
    is_alive: bool = False
    """Something moved that may belong to the pull."""


class LayerTime(msgspec.Struct, frozen=True):
    """Between which looks a layer came: none saw it before the first, the second saw it whole (None: not yet)."""

    begin_s: float
    end_s: float | None


class PullProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State of one pull. `cached` are the blobs that were there before it began."""

    began_s: float
    at_s: float
    moved_s: float
    """When it last came forward, by a byte or an unpacked layer."""
    manifest: Manifest | None = None
    chains: tuple[str, ...] = ()
    cached: frozenset[str] = frozenset()
    lazy_by: str = ""
    """The snapshotter of this node that may leave layers at their registry; empty if none does."""
    layers: tuple[LayerState, ...] = ()
    done_bytes: int = 0
    total_bytes: int | None = None
    percent: int | None = None
    rate_bytes_s: float = 0.0
    unpacked_layers: int = 0
    downloaded_s: float | None = None
    """When all bytes were seen to be here."""
    resolved_s: float | None = None
    """When it was first seen what the image is made of."""
    layer_times: Mapping[str, LayerTime] = msgspec.field(default_factory=dict)
    """Of those that were fetched, by digest."""

    @property
    def share(self) -> float:
        """What part of the download is done, from 0 to 1; 0 while the total is unknown."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0

    @property
    def is_lazy(self) -> bool:
        """Whether a layer is in use that was not fetched."""
        return any(one.stage is LayerStage.LAZY for one in self.layers)

    @property
    def is_downloaded(self) -> bool:
        """Whether all bytes are here and only unpacking is left."""
        return self.total_bytes is not None and self.done_bytes >= self.total_bytes

    @property
    def eta_s(self) -> float | None:
        """Time the download still takes; unknown at the very beginning."""
        if not self.total_bytes or self.rate_bytes_s <= 0 or self.is_downloaded or self.is_lazy:
            return None
        if self.at_s - self.began_s < ETA_FROM_S or self.share < ETA_FROM_SHARE:
            return None
        return (self.total_bytes - self.done_bytes) / self.rate_bytes_s

    @property
    def layers_downloaded(self) -> int:
        return sum(one.stage not in (LayerStage.WAITING, LayerStage.DOWNLOADING) for one in self.layers)

    def __str__(self) -> str:
        if self.is_lazy:
            ready = sum(one.stage in (LayerStage.LAZY, LayerStage.DONE, LayerStage.CACHED) for one in self.layers)
            return f"bytes unknown, for {self.lazy_by} fetches what is read; {ready} of {len(self.layers)} layers ready"
        share = f"{self.percent}%" if self.percent is not None else f"{self.done_bytes} bytes"
        return f"{share}, {self.layers_downloaded} of {len(self.layers)} layers"


def begin(now_s: float) -> PullProgress:
    return PullProgress(began_s=now_s, at_s=now_s, moved_s=now_s)


def resolved(progress: PullProgress, manifest: Manifest, cached: frozenset[str]) -> PullProgress:
    """The manifest became known: from here on there is a total, and the percentage begins anew."""
    missing = [layer for layer in manifest.unique_layers if layer.digest not in cached]
    small = manifest.size_bytes + manifest.config.size
    return replace(
        progress,
        manifest=manifest,
        cached=cached,
        chains=(),
        total_bytes=small + sum(layer.size for layer in missing),
        percent=None,
    )


def advance(progress: PullProgress, seen: StoreLook, now_s: float) -> PullProgress:
    layers = _layers(progress, seen)
    if progress.manifest is None:
        done = max(progress.done_bytes, sum(seen.ingests.values()))
        percent = None
    else:
        fetched = sum(one.done_bytes for one in layers if one.stage is not LayerStage.CACHED)
        small = progress.manifest.size_bytes + progress.manifest.config.size
        done = small + fetched
        percent = max(progress.percent or 0, min(99, int(100 * done / max(1, progress.total_bytes or 1))))
        if any(one.stage is LayerStage.LAZY for one in layers):
            percent = None
    unpacked = sum(chain in seen.unpacked for chain in progress.chains)
    has_moved = done > progress.done_bytes or unpacked > progress.unpacked_layers or layers != progress.layers
    has_moved = has_moved or seen.is_alive
    is_whole = progress.total_bytes is not None and done >= progress.total_bytes
    return replace(
        progress,
        at_s=now_s,
        downloaded_s=progress.downloaded_s or now_s if is_whole else None,
        moved_s=now_s if has_moved else progress.moved_s,
        layers=layers,
        done_bytes=done,
        percent=percent,
        resolved_s=progress.resolved_s or (now_s if progress.manifest is not None else None),
        layer_times=_layer_times(progress, layers, now_s) if layers != progress.layers else progress.layer_times,
        rate_bytes_s=_rate(progress, done, now_s),
        unpacked_layers=unpacked,
    )


def _layers(progress: PullProgress, seen: StoreLook) -> tuple[LayerState, ...]:
    manifest = progress.manifest
    if manifest is None:
        return ()
    before = {layer.digest: layer for layer in progress.layers}
    chains = dict(zip((layer.digest for layer in manifest.layers), progress.chains, strict=False))
    states = []
    for layer in manifest.unique_layers:
        stage, done = _stage(layer.digest, layer.size, progress, seen, chains.get(layer.digest, ""))
        earlier = before.get(layer.digest)
        if earlier is not None and stage is LayerStage.WAITING and earlier.done_bytes:
            # It is neither being written nor seen whole yet: what was there is not lost.
            stage, done = earlier.stage, earlier.done_bytes
        states.append(LayerState(layer.digest, layer.size, done, stage))
    return tuple(states)


def _layer_times(progress: PullProgress, layers: Sequence[LayerState], now_s: float) -> dict[str, LayerTime]:
    times = dict(progress.layer_times)
    for one in layers:
        if one.stage not in FETCHED and one.stage is not LayerStage.DOWNLOADING:
            continue
        known = times.get(one.digest)
        if known is None or (known.end_s is None and one.stage in FETCHED):
            begin_s = known.begin_s if known is not None else progress.at_s
            times[one.digest] = LayerTime(begin_s, now_s if one.stage in FETCHED else None)
    return times


def _stage(digest: str, size: int, progress: PullProgress, seen: StoreLook, chain: str) -> tuple[LayerStage, int]:
    if digest in progress.cached:
        return LayerStage.CACHED, size
    if chain and chain in seen.unpacked:
        is_lazy = progress.lazy_by and digest not in seen.committed and digest not in seen.ingests
        return (LayerStage.LAZY, 0) if is_lazy else (LayerStage.DONE, size)
    if digest in seen.ingests:
        return LayerStage.DOWNLOADING, min(size, seen.ingests[digest])
    if digest in seen.committed:
        # Runtimes make the snapshot ready long before the layer is there, so that alone says nothing.
        return (LayerStage.UNPACKING if chain and chain in seen.unpacking else LayerStage.DOWNLOADED), size
    return LayerStage.WAITING, 0


def _rate(progress: PullProgress, done_bytes: int, now_s: float) -> float:
    span_s = now_s - progress.at_s
    if span_s <= 0:
        return progress.rate_bytes_s
    current = max(0, done_bytes - progress.done_bytes) / span_s
    if progress.at_s == progress.began_s or progress.rate_bytes_s == 0:
        return current
    weight = 1 - math.exp(-span_s / RATE_MEMORY_S)
    return progress.rate_bytes_s + weight * (current - progress.rate_bytes_s)
