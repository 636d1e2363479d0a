# SPDX-License-Identifier: Apache-2.0
"""Which archives of checkpoints stay, as values."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sections.checkpoints import PodCheckpoints
from agent.model.nodes.use import Amount, NodeLook
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.plan.scarcity.checkpoints import (
    Archive,
    archive_name,
    archive_of,
    bytes_wanted,
    freed_first,
    superfluous,
    why_no_room,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
GIB = 1 << 30


def archive(age_s: float, of: str = "web_default-app", size: int = 1) -> Archive:
    return Archive(name=f"{of}-{age_s}", of=of, made_wall_s=NOW - age_s, size_bytes=size)


def names(archives: list[Archive]) -> list[str]:
    return [one.name for one in archives]


def test_a_name_says_of_what_and_when() -> None:
    """CKP-12."""
    name = archive_name("web-n1", "default", "app", NOW)

    assert name == "checkpoint-web-n1_default-app-2026-01-02T00:00:00Z.tar"
    assert archive_of(name, 7) == Archive(name=name, of="web-n1_default-app", made_wall_s=NOW, size_bytes=7)


@pytest.mark.parametrize(
    "name",
    [
        "", "x.tar", "checkpoint-a_b-c-2026-01-02T00:00:00Z", "checkpoint-../a_b-c-2026-01-02T00:00:00Z.tar",
        "checkpoint-a_b-c-2026-13-02T00:00:00Z.tar", "checkpoint-a/b_c-d-2026-01-02T00:00:00Z.tar",
        "checkpoint-a_b-c-2026-01-02T00:00:00Z.tar\n",
    ],
)  # fmt: skip
def test_other_names_are_no_archives(name: str) -> None:
    """CKP-12: nothing in a name leads elsewhere."""
    assert archive_of(name, 1) is None


def test_the_newest_of_each_container_stay() -> None:
    """CKP-13."""
    found = [archive(age) for age in (1, 2, 3, 4, 5)] + [archive(age, "db_default-app") for age in (10, 20)]

    assert names(superfluous(found, PodCheckpoints(keep=3), NOW)) == ["web_default-app-5", "web_default-app-4"]


def test_old_ones_go_whatever_their_number() -> None:
    """CKP-13."""
    found = [archive(10), archive(200)]

    assert names(superfluous(found, PodCheckpoints(max_age=100), NOW)) == ["web_default-app-200"]


def test_all_together_take_at_most_so_much_and_the_newest_stays() -> None:
    """CKP-13."""
    found = [archive(age, f"p{age}_default-a", size=4) for age in (1, 2, 3)]

    assert names(superfluous(found, PodCheckpoints(max_bytes=8), NOW)) == ["p3_default-a-3"]
    assert names(superfluous(found, PodCheckpoints(max_bytes=1), NOW)) == ["p3_default-a-3", "p2_default-a-2"]


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from("ab"), st.integers(0, 9)), unique_by=lambda one: one[0]))
def test_after_tidying_nothing_is_superfluous(given_: list[tuple[int, str, int]]) -> None:
    """CKP-13: planning again plans nothing."""
    found = [archive(age, of, size) for age, of, size in given_]
    rules = PodCheckpoints(keep=2, max_age=200, max_bytes=12)
    left = [one for one in found if one not in superfluous(found, rules, NOW)]

    assert superfluous(left, rules, NOW) == []


def test_room_is_made_from_the_oldest_on() -> None:
    found = [archive(age, size=10) for age in (1, 2, 3)]

    assert names(freed_first(found, 11)) == ["web_default-app-3", "web_default-app-2"]
    assert freed_first(found, 0) == []


def look(layout: str = "one", **amounts: tuple[int, int]) -> NodeLook:
    found = {name.replace("_", "."): Amount(*amount) for name, amount in amounts.items()}
    return NodeLook(taken_s=0.0, amounts=found, layout=layout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("signal", "layout", "wanted"),
    [
        ("nodefs.available", "one", 90), ("imagefs.available", "one", 90), ("imagefs.available", "apart", 0),
        ("imagefs.available", "split", 0), ("nodefs.available", "apart", 90), ("nodefs.inodesFree", "one", 0),
        ("memory.available", "one", 0),
    ],
)  # fmt: skip
def test_archives_help_where_they_lie(signal: str, layout: str, wanted: int) -> None:
    """CKP-13."""
    rules = EvictionRules(thresholds=(Threshold(signal=signal, quantity=90, reclaim=10),))
    seen = NodeLook(taken_s=0.0, amounts={signal: Amount(10, 1000)}, layout=layout)  # type: ignore[arg-type]

    assert bytes_wanted(signal, seen, rules) == wanted


def test_a_checkpoint_needs_room_in_both_places() -> None:
    """CKP-10."""
    assert not why_no_room(GIB, look(nodefs_available=(2 * GIB, 9 * GIB), imagefs_available=(GIB, GIB)))
    assert why_no_room(GIB, look(nodefs_available=(1, GIB))).startswith("nodefs.available is 1 bytes")
    assert "imagefs" in why_no_room(GIB, look(nodefs_available=(GIB, GIB), imagefs_available=(1, GIB)))
    assert not why_no_room(GIB, look())
