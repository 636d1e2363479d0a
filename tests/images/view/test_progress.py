# SPDX-License-Identifier: Apache-2.0
"""Progress arithmetic, deadlines, and what is told about long pulls."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sections.images import ImageProgress
from agent.images.queue.deadline import DeadlineRules, next_check_s, overdue, recent_marks
from agent.images.queue.plan import Hindrance, WaitingFlight, WaitReason
from agent.images.run.sizes import MOST_REMEMBERED, SizeMemory
from agent.images.view.announce import Announcer
from agent.images.view.manifest import Blob, Manifest, chain_ids, read_diff_ids, read_manifest
from agent.images.view.progress import StoreLook, advance, begin, resolved
from agent.model.images.state import LayerStage

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
MANIFEST = Manifest("sha256:m", 10, Blob("sha256:cfg", 20), (Blob(A, 1000), Blob(B, 500), Blob(C, 500)))


def test_a_manifest_is_told_from_an_index_and_from_noise() -> None:
    """IMG-T02."""
    document = {"config": {"digest": "sha256:cfg", "size": 20}, "layers": [{"digest": A, "size": 7, "mediaType": "x"}]}
    content = json.dumps(document).encode()
    manifest = read_manifest("sha256:m", content)

    assert manifest == Manifest("sha256:m", len(content), Blob("sha256:cfg", 20), (Blob(A, 7),))
    assert manifest.total_bytes == len(content) + 27
    for other in (b'{"manifests": []}', b'{"rootfs": {"diff_ids": ["a"]}}', b"noise", b"[]"):
        assert read_manifest("sha256:m", other) is None
    assert read_diff_ids(b'{"rootfs": {"type": "layers", "diff_ids": ["sha256:1", "sha256:2"]}}') == (
        "sha256:1",
        "sha256:2",
    )
    assert read_diff_ids(b"noise") == ()


def test_chain_ids_are_built_as_snapshotters_name_them() -> None:
    """IMG-T03; the second value was computed with sha256sum."""
    import hashlib

    second = "sha256:" + hashlib.sha256(b"sha256:1 sha256:2").hexdigest()

    assert chain_ids(["sha256:1", "sha256:2"]) == ("sha256:1", second)
    assert chain_ids([]) == ()


def test_finished_layers_vanish_from_the_store_and_are_summed_from_the_manifest() -> None:
    """IMG-T03, T04."""
    state = resolved(begin(0), MANIFEST, frozenset({C}))
    state = advance(state, StoreLook(ingests={A: 400, B: 500}), 1)

    assert state.total_bytes == 1530
    assert state.done_bytes == 930
    assert [layer.stage for layer in state.layers] == [
        LayerStage.DOWNLOADING,
        LayerStage.DOWNLOADING,
        LayerStage.CACHED,
    ]

    state = advance(state, StoreLook(ingests={A: 900}, committed=frozenset({B})), 2)

    assert state.done_bytes == 1430
    assert state.percent == 93
    assert state.layers_downloaded == 2

    state = advance(state, StoreLook(committed=frozenset({A, B})), 3)

    assert state.is_downloaded
    assert state.percent == 99
    assert state.eta_s is None


def test_without_a_manifest_there_are_bytes_but_no_share() -> None:
    """IMG-T04."""
    state = advance(begin(0), StoreLook(ingests={A: 400}), 1)

    assert (state.done_bytes, state.total_bytes, state.percent, state.eta_s) == (400, None, None, None)


def test_a_layer_between_two_looks_is_not_lost() -> None:
    state = advance(resolved(begin(0), MANIFEST, frozenset()), StoreLook(ingests={A: 400}), 1)
    state = advance(state, StoreLook(), 2)

    assert state.layers[0].done_bytes == 400
    assert state.done_bytes == 430


def test_unpacking_is_told_in_layers() -> None:
    """IMG-T03."""
    from msgspec.structs import replace

    state = replace(resolved(begin(0), MANIFEST, frozenset()), chains=("c1", "c2", "c3"))
    state = advance(
        state, StoreLook(committed=frozenset({A, B, C}), unpacked=frozenset({"c1"}), unpacking=frozenset({"c2"})), 5
    )

    assert [layer.stage for layer in state.layers] == [LayerStage.DONE, LayerStage.UNPACKING, LayerStage.DOWNLOADED]
    assert state.unpacked_layers == 1
    assert state.moved_s == 5


def test_a_snapshot_that_is_ready_before_its_layer_is_not_yet_unpacking() -> None:
    """IMG-T03: containerd 1.6 and 2.x prepare it first; the download must not look finished."""
    from msgspec.structs import replace

    state = replace(resolved(begin(0), MANIFEST, frozenset()), chains=("c1", "c2", "c3"))
    state = advance(state, StoreLook(ingests={A: 10}, unpacking=frozenset({"c1", "c2"})), 1)

    assert [layer.stage for layer in state.layers] == [LayerStage.DOWNLOADING, LayerStage.WAITING, LayerStage.WAITING]
    assert state.done_bytes == 40


def test_rate_and_time_left_follow_the_last_half_minute() -> None:
    """IMG-T06."""
    big = Manifest("sha256:m", 0, Blob("sha256:cfg", 0), (Blob(A, 100_000),))
    state = resolved(begin(0), big, frozenset())
    for second in range(1, 21):
        state = advance(state, StoreLook(ingests={A: second * 1000}), second)

    assert state.rate_bytes_s == pytest.approx(1000)
    assert state.eta_s == pytest.approx(80)


@given(st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 2000), max_size=3), max_size=20))
def test_the_share_never_goes_back_and_never_says_all(looks) -> None:
    """IMG-T04."""
    state = resolved(begin(0), MANIFEST, frozenset())
    last = 0
    for second, ingests in enumerate(looks, 1):
        state = advance(state, StoreLook(ingests=ingests), second)

        assert last <= state.percent <= 99
        assert 0 <= state.share <= 1
        last = state.percent


def test_a_pull_without_progress_ends_with_how_far_it_was() -> None:
    """IMG-S22."""
    state = advance(resolved(begin(0), MANIFEST, frozenset({C})), StoreLook(ingests={A: 700}), 1)
    rules = DeadlineRules()

    assert overdue(state, (), rules, 600, is_visible=True) is None
    assert overdue(state, (), rules, 601, is_visible=True) == "no progress for 10m0s (1 of 3 layers, 47%)"
    assert overdue(state, (), rules, 9999, is_visible=False) is None
    assert overdue(begin(0), (), rules, 600, is_visible=True) == "no progress for 10m0s (nothing fetched yet)"


def test_a_pull_that_moves_is_left_alone_however_long_it_takes() -> None:
    """IMG-S22: by progress, not by total time."""
    state = resolved(begin(0), MANIFEST, frozenset())
    for step in range(1, 100):
        state = advance(state, StoreLook(ingests={A: step}), step * 500)

        assert overdue(state, (), DeadlineRules(), step * 500 + 1, is_visible=True) is None


def test_total_time_and_a_trickling_link_have_limits_of_their_own() -> None:
    """IMG-S22."""
    rules = DeadlineRules(progress_s=0, total_s=1000, least_bytes_s=2)
    state, marks = begin(0), ()
    big = Manifest("sha256:m", 0, Blob("sha256:cfg", 0), (Blob(A, 10**9),))
    state = resolved(state, big, frozenset())
    for second in range(0, 400, 5):
        state = advance(state, StoreLook(ingests={A: second}), second)
        marks = recent_marks(marks, state)

    assert overdue(state, marks, rules, 395, is_visible=True).startswith("slower than 2B/s for 5m0s")
    assert overdue(state, marks[-1:], rules, 395, is_visible=True) is None
    assert overdue(state, (), rules, 1000, is_visible=False).startswith("not finished within 16m40s")
    assert len(marks) < 50
    assert next_check_s(DeadlineRules(progress_s=4)) == 1


def test_waiting_is_told_once_and_progress_seldom() -> None:
    """IMG-T07."""
    announcer, often = Announcer(), ImageProgress(every=60)
    waiting = WaitingFlight(1, 3, Hindrance(WaitReason.SLOT, 2, 2))

    assert announcer.waiting(1, "X", 9, waiting) is None
    assert announcer.waiting(1, "X", 10, waiting).text == 'Waiting to pull image "X": position 3, 2 of 2 slots busy'
    assert announcer.waiting(1, "X", 99, waiting) is None

    big = Manifest("sha256:m", 0, Blob("sha256:cfg", 0), (Blob(A, 10_000),))
    state, told = resolved(begin(0), big, frozenset()), []
    for second in range(1, 600):
        state = advance(state, StoreLook(ingests={A: second * 15}), second)
        sentence = announcer.running(1, "X", state, often)
        told += [second] if sentence else []

    assert told[0] == 30
    assert all(later - earlier >= 60 for earlier, later in pairwise(told))
    assert len(told) < 10


def test_sizes_are_guessed_from_the_same_name_else_from_its_repository() -> None:
    """IMG-S10."""
    memory = SizeMemory()
    memory.learn("r.io/x", "r.io/x:1", 10, 1)
    memory.learn("r.io/x", "r.io/x:2", 20, 2)
    memory.learn("r.io/x", "r.io/x:3", 0, 3)

    assert memory.guess("r.io/x", "r.io/x:1") == 10
    assert memory.guess("r.io/x", "r.io/x:9") == 20
    assert memory.guess("r.io/y", "r.io/y:1") is None

    for number in range(MOST_REMEMBERED):
        memory.learn(f"r.io/{number}", f"r.io/{number}:1", 1, 3)

    assert len(memory.records) == MOST_REMEMBERED
    assert memory.guess("r.io/x", "r.io/x:1") is None
