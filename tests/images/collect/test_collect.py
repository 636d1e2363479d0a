# SPDX-License-Identifier: Apache-2.0
"""Which images go and which stay, and what is fetched ahead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.images.collect.disks import DiskRules, ImageDisk, joined_disks
from agent.images.collect.plan import (
    CollectMode,
    CollectRules,
    NodeImage,
    plan_collection,
    rules_fault,
)
from agent.images.prefetch.plan import (
    Fetch,
    PodImage,
    PrefetchRules,
    Shelf,
    SkipKind,
    plan_prefetch,
)
from agent.model.images.pull import ListedImage, PodIdentity, PullPolicy
from agent.model.images.store import Filesystem

NOW = 1_000_000.0
ROOMY = Filesystem(capacity_bytes=10000, available_bytes=5000)
FULL = Filesystem(capacity_bytes=10000, available_bytes=1000)
RULES = CollectRules()


def image(name, last_used=0.0, first_seen=0.0, size=100, **more) -> NodeImage:
    return NodeImage(
        id=f"sha256:{name}", names=(name,), size_bytes=size, last_used_s=last_used, first_seen_s=first_seen, **more
    )


def plan_on_one(images, space, rules, now_s, **more):
    return plan_collection(images, [ImageDisk(path="/images", space=space)], rules, now_s, **more)


def removed(plan) -> list[str]:
    return [removal.image.shown_name for removal in plan.removals]


def test_use_and_need_are_counted_as_the_kubelet_counts_them() -> None:
    """IMG-G02: 90 % used, 1000 to free."""
    plan = plan_on_one([], FULL, RULES, NOW)

    assert FULL.used_percent == 90
    assert plan.missing_bytes == 1000
    assert plan_on_one([], ROOMY, RULES, NOW).missing_bytes == 0


def test_the_longest_unused_goes_first_then_the_longest_here_then_the_larger() -> None:
    """IMG-G06."""
    images = [
        image("c", last_used=2), image("d", last_used=3), image("b", last_used=1, first_seen=2, size=400),
        image("a", last_used=1, first_seen=1), image("e", last_used=1, first_seen=2, size=500),
    ]  # fmt: skip

    assert removed(plan_on_one(images, FULL, RULES, NOW)) == ["a", "e", "b"]


def test_what_is_used_pinned_named_or_young_stays_and_says_why() -> None:
    """IMG-G05, G13."""
    images = [
        image("used", users=("ns/a", "ns/b", "ns/c", "ns/d")),
        image("pinned", is_pinned=True),
        image("r.io/keep:1"),
        image("young", first_seen=NOW - 119),
        image("old", first_seen=NOW - 120),
    ]
    plan = plan_on_one(images, FULL, replace(RULES, keep=("r.io/*",)), NOW)

    assert removed(plan) == ["old"]
    assert {one.image.shown_name: one.why for one in plan.kept} == {
        "used": "used by ns/a, ns/b, ns/c and others",
        "pinned": "pinned",
        "r.io/keep:1": "kept by name",
        "young": "younger than 2m0s",
    }


def test_an_image_that_was_never_used_is_as_old_as_our_knowledge_of_it() -> None:
    """IMG-G07: not infinitely old, as it is for a kubelet."""
    rules = replace(RULES, max_age_s=3600)
    images = [
        image("new", first_seen=NOW - 600),
        image("stale", first_seen=NOW - 7200),
        image("used", NOW - 60, NOW - 7200),
    ]

    assert removed(plan_on_one(images, ROOMY, rules, NOW)) == ["stale"]


def test_beside_a_kubelet_only_age_counts() -> None:
    """IMG-G14."""
    rules = replace(RULES, mode=CollectMode.AGE, max_age_s=3600)
    images = [image("stale", first_seen=NOW - 7200), image("fresh", first_seen=NOW - 600)]
    plan = plan_on_one(images, FULL, rules, NOW)

    assert removed(plan) == ["stale"]
    assert plan.missing_bytes == 0
    assert [one.why for one in plan.kept] == ["images go by age alone; unused for 10m0s"]
    assert removed(plan_on_one(images, FULL, replace(rules, mode=CollectMode.OFF), NOW)) == []


def test_inodes_have_thresholds_too() -> None:
    """IMG-G10."""
    disk = replace(ROOMY, inodes=1000, free_inodes=50)
    plan = plan_on_one([image("a"), image("b")], disk, RULES, NOW)

    assert plan.missing_inodes == 100
    assert removed(plan) == ["a", "b"]


def test_a_run_that_began_at_high_goes_on_until_low() -> None:
    """IMG-G02, G09, G10: between the two a run does not begin."""
    between = Filesystem(capacity_bytes=10000, available_bytes=1600, inodes=1000, free_inodes=110)
    images = [image("a"), image("b")]
    by_space = plan_on_one(images, replace(between, available_bytes=1200), RULES, NOW)
    by_inodes = plan_on_one(images, replace(between, free_inodes=90), RULES, NOW)
    on = plan_on_one(images, between, RULES, NOW, previous=by_space)
    enough = replace(between, available_bytes=2000)

    assert removed(plan_on_one(images, between, RULES, NOW)) == []
    assert (on.missing_bytes, on.missing_inodes) == (400, 0)
    assert removed(on) == ["a", "b"]
    assert plan_on_one(images, between, RULES, NOW, previous=by_inodes).missing_inodes == 40
    assert removed(plan_on_one(images, enough, RULES, NOW, previous=by_space)) == []


def test_a_measurement_without_capacity_deletes_nothing() -> None:
    """IMG-G03."""
    plan = plan_on_one([image("a")], Filesystem(), RULES, NOW)

    assert removed(plan) == []
    assert [one.problem for one in plan.needs] == ["invalid capacity 0 on image filesystem"]


def test_by_hand_everything_unprotected_goes() -> None:
    plan = plan_on_one([image("a"), image("b", is_pinned=True)], ROOMY, RULES, NOW, is_forced=True)

    assert [str(removal.reason) for removal in plan.removals] == ["manual"]
    assert str(plan.removals[0]).startswith("remove a (100 bytes, unused for ")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"low": 85}, "images.gc.low (85) must be less than images.gc.high (85)"),
        ({"inode_low": 95}, "images.gc.inodeLow (95) must be less than images.gc.inodeHigh (90)"),
        ({"max_age_s": 60}, "images.gc.maxAge must be longer than images.gc.minAge, or 0s for off"),
        ({"max_age_s": 3600}, ""),
    ],
)
def test_numbers_that_contradict_each_other_are_named(changes, fault) -> None:
    """IMG-G01."""
    assert rules_fault(replace(RULES, **changes)) == fault


HERE, THERE = 1, 2


def disk_with(available, device, *roles, path="", **more) -> ImageDisk:
    space = Filesystem(capacity_bytes=10000, available_bytes=available, device_number=device, **more)
    return ImageDisk(path=path or f"/{device}", paths=(path or f"/{device}",), roles=roles or ("image",), space=space)


def test_images_go_from_the_file_system_that_is_full_alone() -> None:
    """FSY-03: two snapshotters apart; what lies on the other has room, and its thresholds are its own."""
    images = [image("a", devices=(HERE,)), image("b", devices=(THERE,)), image("c"), image("d", devices=(THERE,))]
    full, roomy = disk_with(1950, THERE), disk_with(5000, HERE)
    plan = plan_collection(images, [roomy, disk_with(1000, THERE)], RULES, NOW)
    one = plan_collection(images, [disk_with(1000, HERE), disk_with(5000, THERE)], RULES, NOW)
    own = replace(RULES, by_path={"/2": DiskRules(high=80, low=75), "/elsewhere": DiskRules(high=1, low=0)})

    assert removed(plan) == ["b", "d"]
    assert [(need.path, need.missing_bytes) for need in plan.needs] == [("/1", 0), ("/2", 1000)]
    assert {kept.image.shown_name for kept in plan.kept} == {"a", "c"}
    # Of which nothing is known lies with the first.
    assert removed(one) == ["a", "c"]
    assert removed(plan_collection(images, [roomy, full], RULES, NOW)) == []
    assert removed(plan_collection(images, [roomy, full], own, NOW)) == ["b", "d"]


def test_an_image_over_two_file_systems_counts_for_the_fuller_that_needs_room() -> None:
    """FSY-03: layers and downloads apart."""
    images = [image(name, size=400, devices=(HERE, THERE)) for name in "abcdefgh"]
    layers = disk_with(1200, HERE)
    fuller = plan_collection(images, [layers, disk_with(900, THERE, "content")], RULES, NOW)
    calm = plan_collection(images, [layers, disk_with(9000, THERE, "content")], RULES, NOW)
    high = replace(RULES, by_path={"/2": DiskRules(high=95, low=94)})
    own = plan_collection(images, [layers, disk_with(900, THERE, "content")], high, NOW)

    assert [need.missing_bytes for need in fuller.needs] == [800, 1100]
    assert len(fuller.removals) == 3
    assert len(calm.removals) == 2
    # Fuller, but it needs nothing: the image still helps the other.
    assert len(own.removals) == 2


def test_a_file_system_that_is_read_only_is_left_alone_and_the_others_are_not() -> None:
    """FSY-02."""
    images = [image("a", devices=(HERE,)), image("b", devices=(THERE,))]
    plan = plan_collection(images, [disk_with(500, HERE, is_read_only=True), disk_with(500, THERE)], RULES, NOW)

    assert removed(plan) == ["b"]
    assert [(need.problem, need.is_failed) for need in plan.needs] == [
        ("/1 is mounted read-only, so no image can be removed there", True), ("", False),
    ]  # fmt: skip
    assert str(plan.kept[0]).startswith("keep a: /1 is mounted read-only")


def test_by_hand_and_for_pressure_one_file_system_can_be_emptied() -> None:
    """FSY-04."""
    images = [image("a", devices=(HERE,)), image("b", devices=(THERE,)), image("c")]
    places = [disk_with(5000, HERE), disk_with(5000, THERE)]

    assert removed(plan_collection(images, places, RULES, NOW, is_forced=True)) == ["a", "b", "c"]
    assert removed(plan_collection(images, places, RULES, NOW, is_forced=True, only=(THERE,))) == ["b"]
    assert removed(plan_collection(images, places, RULES, NOW, is_forced=True, only=(HERE,))) == ["a", "c"]


def test_places_on_one_device_are_one_disk_of_images() -> None:
    """FSY-03."""
    here, there = (Filesystem(capacity_bytes=9, available_bytes=5, device_number=one) for one in (HERE, THERE))
    places = [("image", "/a", here), ("image", "/b", there), ("content", "/c", here), ("image", "/gone", Filesystem())]
    found = joined_disks(places, [("/a/b", here), ("/none", Filesystem())])

    assert [(one.path, one.paths, one.roles) for one in found] == [
        ("/a", ("/a", "/c", "/a/b"), ("image", "content")), ("/b", ("/b",), ("image",)),
        ("/gone", ("/gone",), ("image",)),
    ]  # fmt: skip


IMAGES = st.lists(
    st.builds(
        NodeImage,
        id=st.uuids().map(str), size_bytes=st.integers(0, 3000),
        first_seen_s=st.floats(0, NOW), last_used_s=st.floats(0, NOW),
        is_pinned=st.booleans(), users=st.sampled_from([(), (), ("ns/p",)]),
    ),
    max_size=12,
    unique_by=lambda one: one.id,
)  # fmt: skip


@given(
    IMAGES, st.integers(0, 10000), st.integers(0, 10000), st.lists(st.sampled_from([(HERE,), (THERE,), (HERE, THERE)]))
)
def test_with_two_file_systems_a_carried_out_plan_leaves_nothing(images, here, there, places) -> None:
    """FSY-03, STY-03: each image gives its size back wherever it lies."""
    placed = [replace(one, devices=places[at % len(places)] if places else ()) for at, one in enumerate(images)]

    def disks_after(gone):
        freed = {device: sum(one.size_bytes for one in gone if device in (one.devices or (HERE,))) for device in (1, 2)}
        return [disk_with(min(10000, had + freed[device]), device) for had, device in ((here, HERE), (there, THERE))]

    gone: list = []
    left, plan = placed, plan_collection(placed, disks_after([]), RULES, NOW)
    while plan.removals:
        first = plan.removals[0].image
        assert not first.users
        assert not first.is_pinned
        gone.append(first)
        left = [one for one in left if one.id != first.id]
        plan = plan_collection(left, disks_after(gone), RULES, NOW, previous=plan)

    assert plan_collection(left, disks_after(gone), RULES, NOW, previous=plan).removals == ()


@given(IMAGES, st.integers(0, 10000), st.sampled_from([0.0, 3600.0]))
def test_after_any_prefix_of_a_plan_the_rest_is_planned_and_then_nothing(images, available, max_age_s) -> None:
    """STY-03: idempotence and crash safety, with a disk that gives back what an image weighs."""
    rules = replace(RULES, max_age_s=max_age_s)

    def after(count, start_images, start_available):
        plan = plan_on_one(start_images, Filesystem(capacity_bytes=10000, available_bytes=start_available), rules, NOW)
        gone = plan.removals[:count]
        ids = {one.image.id for one in gone}
        left = [one for one in start_images if one.id not in ids]
        return left, min(10000, start_available + sum(one.image.size_bytes for one in gone)), plan

    final, final_available, plan = after(100, images, available)

    assert not [one for one in plan.removals if one.image.users or one.image.is_pinned]
    for cut in range(len(plan.removals) + 1):
        left, room, _ = after(cut, images, available)
        rest, _, _ = after(100, left, room)
        assert {one.id for one in rest} >= {one.id for one in final}
    if plan.expected_bytes >= plan.missing_bytes:
        assert not plan_on_one(
            final, Filesystem(capacity_bytes=10000, available_bytes=final_available), rules, NOW
        ).removals


def test_of_each_repository_the_newest_tags_stay() -> None:
    """IMG-G11: keepLast; an image whose other names stay loses single names, what is used or pinned loses none."""
    images = [
        image("r.io/a:1", first_seen=1), image("r.io/a:2", first_seen=2), image("r.io/a:3", first_seen=3),
        image("r.io/b:1", first_seen=1), image("r.io/a:0", first_seen=0, users=("ns/p",)),
        NodeImage(id="two", names=("r.io/c:1", "r.io/d:1", "r.io/c@sha256:1"), named_at={"r.io/c:1": 1, "r.io/d:1": 1}),
        image("r.io/c:2", first_seen=2),
    ]  # fmt: skip
    plan = plan_on_one(images, ROOMY, replace(RULES, keep_last=1), NOW)

    assert removed(plan) == ["r.io/a:1", "r.io/a:2"]
    assert {str(removal.reason) for removal in plan.removals} == {"keep-last"}
    assert plan.unnames == ("r.io/c:1",)
    assert "remove the name r.io/c:1: newer ones of its repository are kept" in str(plan).splitlines()
    assert removed(plan_on_one(images, ROOMY, RULES, NOW)) == []
    off = replace(RULES, keep_last=1, mode=CollectMode.OFF)
    assert not plan_on_one(images, ROOMY, off, NOW).unnames


# prefetch

POD = PodIdentity("u", "ns", "p")
FOR_PODS = PrefetchRules(is_for_pods=True)


def pod_image(name, **more) -> PodImage:
    return PodImage(pod=POD, image=name, **more)


def test_what_is_listed_is_fetched_once_and_pinned_when_it_is_there() -> None:
    """IMG-F02, F03."""
    listed = [
        ListedImage(image="r.io/a:1", is_pinned=True),
        ListedImage(image="r.io/b:1"),
        ListedImage(image="r.io/a:1"),
    ]
    plan = plan_prefetch(listed, [], Shelf(), PrefetchRules(), NOW)

    assert plan.fetches == (Fetch("r.io/a:1"), Fetch("r.io/b:1"))

    there = Shelf(names=frozenset({"r.io/a:1", "r.io/b:1"}))
    plan = plan_prefetch(listed, [], there, PrefetchRules(), NOW)

    assert plan.pins == ("r.io/a:1",)
    assert plan_prefetch(listed, [], replace(there, our_pins=frozenset({"r.io/a:1"})), PrefetchRules(), NOW).is_empty
    assert plan_prefetch([], [], replace(there, our_pins=frozenset({"r.io/a:1"})), PrefetchRules(), NOW).unpins == (
        "r.io/a:1",
    )


def test_images_of_pods_come_in_the_order_of_need_and_are_held_until_used() -> None:
    """IMG-F01, F06."""
    plan = plan_prefetch([], [pod_image("init"), pod_image("main")], Shelf(), FOR_PODS, NOW)

    assert [fetch.image for fetch in plan.fetches] == ["init", "main"]
    assert plan.fetches[0].hold_s == 3600

    held = Shelf(
        names=frozenset({"docker.io/library/main:latest"}), held_until={"docker.io/library/main:latest": NOW + 1}
    )

    assert plan_prefetch([], [], held, FOR_PODS, NOW).pins == ("docker.io/library/main:latest",)


def test_what_is_private_or_always_is_left_alone_unless_wanted() -> None:
    """IMG-F01, V09: what kepd pulls looks preloaded to a kubelet, so every pod could use it."""
    pods = [
        pod_image("a", is_private=True),
        pod_image("b", policy=PullPolicy.ALWAYS),
        pod_image("c", policy=PullPolicy.NEVER),
    ]
    everything = replace(FOR_PODS, is_private=True, is_always=True)

    assert plan_prefetch([], pods, Shelf(), FOR_PODS, NOW).fetches == ()
    assert [fetch.image for fetch in plan_prefetch([], pods, Shelf(), everything, NOW).fetches] == ["a", "b"]


def test_a_disk_that_gets_full_is_left_alone() -> None:
    """IMG-F06."""
    for disk, sizes in (
        (Filesystem(capacity_bytes=100, available_bytes=24), {}),
        (Filesystem(capacity_bytes=100, available_bytes=30), {"r.io/a:1": 15}),
    ):
        plan = plan_prefetch([ListedImage(image="r.io/a:1")], [], Shelf(disk=disk, sizes=sizes), PrefetchRules(), NOW)
        assert plan.fetches == ()
        assert "disk" in str(plan.skips[0])


def test_what_is_there_or_fetched_for_another_is_not_skipped() -> None:
    """FI-25: a reason is given only for what is missing."""
    pods = [pod_image("a", policy=PullPolicy.ALWAYS), pod_image("b", policy=PullPolicy.ALWAYS)]
    listed = [ListedImage(image="b")]
    here = Shelf(names=frozenset({"docker.io/library/a:latest"}))

    assert plan_prefetch(listed, pods, here, FOR_PODS, NOW).skips == ()
    assert [one.image for one in plan_prefetch([], pods, here, FOR_PODS, NOW).skips] == ["docker.io/library/b:latest"]


def test_who_deletes_what_is_fetched_wins_after_three_times_a_day() -> None:
    """IMG-F06."""
    shelf = Shelf(fetched_at={"r.io/a:1": (NOW - 100, NOW - 50, NOW - 1)})
    plan = plan_prefetch([ListedImage(image="r.io/a:1")], [], shelf, PrefetchRules(), NOW)

    assert plan.fetches == ()
    assert plan.skips[0].kind is SkipKind.THRASHING
    assert plan_prefetch([ListedImage(image="r.io/a:1")], [], shelf, PrefetchRules(), NOW + 86400).fetches


def test_a_line_that_is_no_name_is_skipped_and_the_others_go_on() -> None:
    plan = plan_prefetch([ListedImage(image="Not A Name"), ListedImage(image="a")], [], Shelf(), PrefetchRules(), NOW)

    assert [fetch.image for fetch in plan.fetches] == ["a"]
    assert str(plan.skips[0]) == "skip Not A Name: it is not an image name"


def test_content_is_held_anew_after_half_a_day_and_dropped_when_nobody_wants_it() -> None:
    """IMG-F04: while the image itself is not there."""
    listed = [ListedImage(image="r.io/a:1", is_content_only=True)]
    fresh = Shelf(contents={"r.io/a:1": NOW - 3600})
    old = Shelf(contents={"r.io/a:1": NOW - 12 * 3600})
    assert plan_prefetch(listed, [], Shelf(), PrefetchRules(), NOW).fetches == (
        Fetch("r.io/a:1", is_content_only=True),
    )
    assert plan_prefetch(listed, [], fresh, PrefetchRules(), NOW).is_empty
    assert len(plan_prefetch(listed, [], old, PrefetchRules(), NOW).fetches) == 1
    assert plan_prefetch([], [], fresh, PrefetchRules(), NOW).drops == ("r.io/a:1",)
    there = replace(fresh, names=frozenset({"r.io/a:1"}))
    assert str(plan_prefetch(listed, [], there, PrefetchRules(), NOW)) == "drop content of r.io/a:1"


def test_images_of_pods_and_of_rollouts_are_switched_on_apart() -> None:
    """IMG-F01, F07."""
    pods = [pod_image("now"), pod_image("later", is_rollout=True)]
    for rules, names in (
        (PrefetchRules(), []),
        (PrefetchRules(is_for_pods=True), ["now"]),
        (PrefetchRules(is_for_rollouts=True), ["later"]),
    ):
        assert [one.image for one in plan_prefetch([], pods, Shelf(), rules, NOW).fetches] == names
