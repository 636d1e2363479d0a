# SPDX-License-Identifier: Apache-2.0
"""Snapshotters that leave layers at their registry: how they are known, and what is said of their pulls."""

import pytest
from msgspec.structs import replace

from agent.drivers.cri.driver import snapshotters_in
from agent.images.queue.flights import FlightKey, FlightMember, SharedPull
from agent.images.view.progress import StoreLook, advance, begin, lazy_snapshotters, resolved, snapshotter_advice
from agent.images.view.view import over, queued_state, running_state
from agent.model.images.pull import PullPolicy
from agent.model.images.reference import parse_reference
from agent.model.images.state import LayerStage, PullStage
from tests.images.view.test_progress import MANIFEST, A, B, C

CHAINS = ("chain-a", "chain-b", "chain-c")
PATH = "/var/lib/containerd/io.containerd.snapshotter.v1."


@pytest.mark.parametrize(
    ("config", "path", "names"),
    [
        ({}, "", set()),
        ({"containerd": {"snapshotter": "stargz"}}, f"{PATH}stargz", {"stargz"}),
        ({"containerd": None}, f"{PATH}overlayfs", {"overlayfs"}),
        (
            {"containerd": {"snapshotter": "overlayfs", "runtimes": {"kata": {"snapshotter": "nydus"}, "runc": None}}},
            "/elsewhere",
            {"overlayfs", "nydus"},
        ),
    ],
)
def test_snapshotters_are_read_from_what_containerd_shows(config: object, path: str, names: set[str]) -> None:
    """1.6 names them in its configuration; 2.x by the path of its images."""
    assert snapshotters_in(config, path) == names


def test_doctor_names_lazy_ones_and_says_when_they_cannot_be_lazy() -> None:
    names = {"overlayfs", "soci", "nydus-overlayfs", "my-stargz", "overlaybd"}
    notes = snapshotter_advice(names, are_annotations_off=False)

    assert lazy_snapshotters(names) == ["my-stargz", "nydus-overlayfs", "overlaybd", "soci"]
    assert [one.subject for one in notes] == [f"snapshotter {name}" for name in lazy_snapshotters(names)]
    assert all(one.is_note and "bytes and share are unknown" in one.text for one in notes)
    silent = snapshotter_advice({"stargz"}, are_annotations_off=True)
    assert [(one.wanted, one.is_note) for one in silent] == [("disable_snapshot_annotations = false", False)]
    assert snapshotter_advice({"overlayfs", "zfs"}, are_annotations_off=True) == []


def lazy_progress(look: StoreLook):
    state = replace(resolved(begin(0), MANIFEST, frozenset({C})), chains=CHAINS, lazy_by="stargz")
    return advance(state, look, 1)


def test_a_layer_that_is_ready_without_its_blob_has_no_known_bytes() -> None:
    """IMG-T04: state lazy, no percent, no total, no time left."""
    progress = lazy_progress(StoreLook(unpacked=frozenset(CHAINS[:2])))

    assert [one.stage for one in progress.layers] == [LayerStage.LAZY, LayerStage.LAZY, LayerStage.CACHED]
    assert (progress.percent, progress.eta_s, progress.is_downloaded) == (None, None, False)
    assert str(progress) == "bytes unknown, for stargz fetches what is read; 3 of 3 layers ready"
    member = FlightMember("r1", 1, 0.0, "pod", 0, PullPolicy.IF_NOT_PRESENT, False)
    flight = SharedPull.of(1, FlightKey("r.io/x:1", "", "public"), "r.io", member, None)
    state = queued_state(flight, parse_reference("r.io/x:1"), (), None, None)
    shown = running_state(state, PullStage.DOWNLOADING, progress, 1)
    assert (shown.stage, shown.total_bytes, shown.percent) == (PullStage.LAZY, None, None)
    assert not PullStage.LAZY.is_over
    ended = over(shown, PullStage.DONE, 2.0)
    assert [one.stage for one in ended.layers] == [LayerStage.LAZY, LayerStage.LAZY, LayerStage.CACHED]


def test_an_image_in_another_format_is_fetched_whole_and_counted_as_ever() -> None:
    """A lazy snapshotter unpacks what it cannot leave at the registry."""
    whole = StoreLook(ingests={A: 400}, committed=frozenset({B}), unpacked=frozenset(CHAINS[1:2]))
    progress = lazy_progress(whole)

    assert not progress.is_lazy
    assert progress.total_bytes == 1530
    assert [one.stage for one in progress.layers] == [LayerStage.DOWNLOADING, LayerStage.DONE, LayerStage.CACHED]
