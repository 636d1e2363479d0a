# SPDX-License-Identifier: Apache-2.0
"""Snapshotters that start a container before its layers are there: which ones, and what people should know of them."""

from collections.abc import Collection, Iterable

from agent.model.finding import Advice

# Parts of the names that their projects give them in containerd's configuration.
LAZY = ("stargz", "nydus", "soci", "overlaybd", "cvmfs")
UNKNOWN_BYTES = (
    "it fetches layers when containers read them: pulls through it end early, their bytes and share are unknown, and "
    "images.largeImageSize, sizeRate and progressTimeout judge them by less than they will fetch"
)
UNTOLD = "containerd does not tell it which image a layer belongs to, so it fetches whole images like any other"


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
