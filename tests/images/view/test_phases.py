# SPDX-License-Identifier: Apache-2.0
"""What a pull spent its time on, as far as looks at the store have seen it."""

from msgspec.structs import replace

from agent.images.view.manifest import Blob, Manifest
from agent.images.view.progress import PullProgress, StoreLook, advance, begin, resolved
from agent.images.view.view import MOST_LAYERS, pull_phases

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
MANIFEST = Manifest("sha256:m", 10, Blob("sha256:cfg", 20), (Blob(A, 1000), Blob(B, 500), Blob(C, 500)))


def pulled() -> PullProgress:
    """C is there; B comes within a look, A takes until second 14; the rest is unpacking."""
    state = advance(begin(10), StoreLook(), 11)
    state = advance(resolved(state, MANIFEST, frozenset({C})), StoreLook(ingests={A: 400}), 12)
    state = advance(state, StoreLook(ingests={A: 900}, committed=frozenset({B})), 13)
    return advance(state, StoreLook(committed=frozenset({A, B})), 14)


def shown(*arguments: object) -> list[tuple[str, float, float, str, int]]:
    found = pull_phases(*arguments)  # type: ignore[arg-type]
    return [(one.name, one.begin_s, one.end_s, one.digest, one.size_bytes) for one in found]


def test_a_pull_waits_resolves_fetches_and_unpacks() -> None:
    """TRC-11: in wall time."""
    assert shown(8, 10, 16, pulled(), 1000) == [
        ("queue", 1008, 1010, "", 0),
        ("resolve", 1010, 1012, "", 0),
        ("layer", 1011, 1014, A, 1000),
        ("layer", 1012, 1013, B, 500),
        ("unpack", 1014, 1016, "", 0),
    ]


def test_what_no_look_has_seen_is_not_told() -> None:
    """TRC-11."""
    assert shown(8, 10, 10.1, None, 0) == [("queue", 8, 10, "", 0)]
    assert shown(8, 10, 10.1, begin(10), 0) == [("queue", 8, 10, "", 0)]


def test_a_layer_that_was_never_seen_whole_ends_with_its_pull() -> None:
    """TRC-11."""
    state = advance(resolved(begin(10), MANIFEST, frozenset({B, C})), StoreLook(ingests={A: 400}), 11)
    assert shown(8, 10, 12, state, 0)[-1] == ("layer", 10, 12, A, 1000)


def test_a_trace_has_at_most_32_layers() -> None:
    """TRC-11."""
    blobs = tuple(Blob(f"sha256:{number:064}", 1) for number in range(40))
    state = resolved(begin(0), replace(MANIFEST, layers=blobs), frozenset())
    state = advance(state, StoreLook(committed=frozenset(one.digest for one in blobs)), 1)
    assert sum(one.name == "layer" for one in pull_phases(0, 0, 2, state, 0.0)) == MOST_LAYERS
