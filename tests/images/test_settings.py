# SPDX-License-Identifier: Apache-2.0
"""From keys to rules, and the numbers on the metrics page."""

from dataclasses import replace

import pytest

from agent.config.sections.images import ImageCollection, ImagePrefetch, Images, ImageVerify
from agent.images.collect.disks import DiskRules
from agent.images.queue.rules import DEFAULT_HEAD_START
from agent.images.run.metrics import Gauges, ImageMetrics, size_class
from agent.images.settings import image_faults, image_settings, read_kubelet_disk, with_limit
from agent.model.images.pull import ErrorClass, PullClass, PullResult
from agent.model.images.state import LimitState

MIB, GIB = 2**20, 2**30


def test_the_defaults_are_those_of_the_product() -> None:
    """The line below the S rules."""
    queue = image_settings(Images()).queue

    assert (queue.max_parallel, queue.per_pod_max, queue.critical_reserve, queue.large_max) == (3, 2, 1, 2)
    assert (queue.large_bytes, queue.size_rate, queue.fair_share_s) == (2 * GIB, 100 * MIB, 15)
    assert (queue.per_registry_default, queue.rate.per_s, queue.head_start) == (None, 0, DEFAULT_HEAD_START)


@pytest.mark.parametrize(("limit", "pod", "reserve"), [(0, None, 0), (1, None, 0), (2, 1, 0), (5, 4, 1)])
def test_shares_follow_the_limit_also_when_it_is_set_at_run_time(limit, pod, reserve) -> None:
    """IMG-S07, S20."""
    configured = image_settings(Images(max_parallel_pulls=limit)).queue
    changed = with_limit(image_settings(Images()), limit).queue

    for queue in (configured, changed):
        assert (queue.max_parallel, queue.per_pod_max, queue.critical_reserve) == (limit, pod, reserve)


def test_a_reserve_never_takes_the_last_slot() -> None:
    """IMG-S12: else pulls that are not critical would never start."""
    assert image_settings(Images(max_parallel_pulls=1, critical_reserve=4)).queue.critical_reserve == 0
    assert image_settings(Images(max_parallel_pulls=2, critical_reserve=4)).queue.critical_reserve == 1


def test_only_the_reserve_of_the_default_is_lent() -> None:
    """IMG-S07: who writes a number of reserved slots has them kept, whatever waits."""
    assert image_settings(Images()).queue.lend_s > 0
    assert image_settings(Images(critical_reserve=1)).queue.lend_s == 0
    assert with_limit(image_settings(Images()), 5).queue.lend_s > 0


def test_serial_means_one_and_contradicts_more() -> None:
    """IMG-S23."""
    assert image_settings(Images(serialize_pulls=True)).queue.max_parallel == 1
    said = frozenset({"images.maxParallelPulls"})
    wrong = [(Images(serialize_pulls=True, max_parallel_pulls=5), ()), (Images(serialize_pulls=True), said)]

    for images, given in wrong:
        assert [str(fault) for fault in image_faults(images, given)] == [
            "images.maxParallelPulls: must be 1 when images.serializePulls is true"
        ]
    assert image_faults(Images(serialize_pulls=True)) == []
    assert image_faults(Images(serialize_pulls=True, max_parallel_pulls=1), said) == []


def test_a_limit_of_a_registry_comes_and_goes_at_run_time() -> None:
    """IMG-S20."""
    limited = with_limit(image_settings(Images()), 1, "r.io")

    assert limited.queue.per_registry == {"r.io": 1}
    assert with_limit(limited, 0, "r.io").queue.per_registry == {}


def test_the_kubelet_profile_switches_our_order_off() -> None:
    """IMG-S02, B05, B06, C11."""
    settings = image_settings(Images(profile="kubelet", per_registry_default=1))

    assert settings.queue.per_registry_default is None
    assert not settings.queue.is_shared
    assert settings.queue.is_refused_by_rate
    assert settings.is_like_kubelet
    assert settings.backoff.by_class == {}
    assert with_limit(settings, 7).queue.max_parallel == 7


def test_a_file_system_has_what_is_given_for_it_and_else_what_all_have() -> None:
    """FSY-03."""
    given = (("path", "/images"), ("high", 95), ("low", 90), ("inodeHigh", None), ("inodeLow", 50))
    rules = image_settings(Images(gc=ImageCollection(filesystems=(given,), inode_high=77))).collect.by_path

    assert rules == {"/images": DiskRules(high=95, low=90, inode_high=77, inode_low=50)}


def test_beside_a_kubelet_space_is_its_own_business() -> None:
    """IMG-G14."""
    assert str(image_settings(Images()).collect.mode) == "full"
    assert str(image_settings(Images(), has_kubelet=True).collect.mode) == "age"
    forced = Images(gc=ImageCollection(mode="full"))
    assert str(image_settings(forced, has_kubelet=True).collect.mode) == "full"


@pytest.mark.parametrize(
    ("document", "ours", "theirs"),
    [
        ({}, (82, 80), (85, 80)),
        ({"imageGCHighThresholdPercent": 70, "imageGCLowThresholdPercent": 60}, (67, 66), (70, 60)),
        ({"imageGCHighThresholdPercent": 95}, (85, 80), (95, 80)),
        ("no document", (82, 80), (85, 80)),
    ],
)
def test_space_is_made_before_a_kubelet_would_and_prefetch_keeps_off_its_thresholds(document, ours, theirs) -> None:
    """IMG-G14, F06."""
    disk = read_kubelet_disk(document)
    settings = image_settings(Images(gc=ImageCollection(mode="full")), has_kubelet=True, kubelet_disk=disk)

    assert (settings.collect.high, settings.collect.low) == ours
    assert (settings.prefetch.high, settings.prefetch.low) == theirs


@pytest.mark.parametrize(
    ("said", "has_kubelet", "is_proxied", "is_wanted"),
    [
        ("auto", False, False, False), ("auto", True, False, True), ("auto", True, True, False),
        (True, False, True, True), (False, True, False, False),
    ],
)  # fmt: skip
def test_images_of_pods_are_fetched_ahead_beside_a_kubelet_that_pulls_by_itself(
    said, has_kubelet, is_proxied, is_wanted
) -> None:
    """IMG-F01: the default of mode PF."""
    images = Images(prefetch=ImagePrefetch(pods=said))
    settings = image_settings(images, has_kubelet=has_kubelet, is_proxied=is_proxied)

    assert settings.prefetch.is_for_pods is is_wanted


def test_lists_and_maps_become_values() -> None:
    """IMG-B07 and others."""
    images = Images(
        head_start=((("priority", 5), ("start", 7.0)), (("priority", 50), ("start", 9.0))),
        per_registry_rate={"r.io": (("qps", 2.0), ("burst", 3))},
        registry_groups={"eu": ("a.io", "b.io")},
        backoff=replace(Images().backoff, classes={"net": (("start", 1.0), ("factor", 3.0), ("cap", 9.0))}),
        prefetch=ImagePrefetch(list=((("image", "a"), ("pin", True), ("handler", ""), ("unpack", False)),)),
    )
    settings = image_settings(images)

    assert settings.queue.head_start == ((50, 9.0), (5, 7.0))
    assert settings.queue.registry_rates["r.io"].burst == 3
    assert settings.queue.registry_group("b.io") == "eu"
    assert settings.backoff.curve(ErrorClass.NET).cap_s == 9
    assert (settings.listed[0].is_pinned, settings.listed[0].is_content_only) == (True, True)


OWN_RULES = (("path", "/images"), ("high", 70), ("low", None), ("inodeHigh", None), ("inodeLow", None))
PLAIN_RULES = (("path", "/a"), *((key, None) for key in ("high", "low", "inodeHigh", "inodeLow")))
BROKEN_RULE = (("match", "("), ("replace", ""), ("only", False))


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (Images(gc=ImageCollection(low=90)), "images.gc: images.gc.low (90) must be less than images.gc.high (85)"),
        (
            Images(gc=ImageCollection(filesystems=(OWN_RULES,))),
            "images.gc: images.gc.filesystems: /images: low (80) must be less than high (70)",
        ),
        (
            Images(gc=ImageCollection(filesystems=(PLAIN_RULES, PLAIN_RULES))),
            "images.gc.filesystems: /a is given twice; expected once",
        ),
        (Images(verify=ImageVerify(allowlist=("a*",))), "images.verify.allowlist: not a valid wildcard pattern"),
        (
            Images(backoff=replace(Images().backoff, classes={"nett": ()})),
            """images.backoff.classes: 'nett' is no class of errors; did you mean "net"?""",
        ),
        (
            Images(rewrite=replace(Images().rewrite, rules=(BROKEN_RULE,))),
            "images.rewrite.rules[0]: '(' is not a regular expression",
        ),
        (Images(), ""),
    ],
)  # fmt: skip
def test_what_is_wrong_only_together_is_found(images, complaint) -> None:
    found = [str(fault) for fault in image_faults(images)]

    assert found == [] if not complaint else found[0].startswith(complaint)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "N/A"), (1, "0-10MB"), (10 * MIB, "0-10MB"), (10 * MIB + 1, "10MB-100MB"), (GIB, "500MB-1GB"),
        (101 * GIB, "GT100GB"),
    ],
)  # fmt: skip
def test_size_classes_are_the_kubelets(size, label) -> None:
    """IMG-M01: binary bounds, the lower one exclusive."""
    assert size_class(size) == label


def samples(metrics: ImageMetrics, gauges: Gauges | None = None) -> dict:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.families(gauges or Gauges())
        for sample in family.samples
    }


def test_pulls_are_counted_by_result_class_and_registry() -> None:
    """IMG-M01 to M05."""
    metrics = ImageMetrics()
    metrics.request_ended(PullResult.PULLED, PullClass.POD)
    metrics.pull_succeeded("r.io", 5 * MIB, 1.5, 3.0)
    metrics.pull_failed("r.io", ErrorClass.AUTH)
    metrics.waited(PullClass.POD, 1.5)
    metrics.fetched("r.io", 1000, 3, 1)
    metrics.provider_called("ecr", 0.1, True)
    metrics.removed("age", 500)
    metrics.removed("space", -5)
    found = samples(
        metrics, Gauges(queued={PullClass.POD: 2}, in_flight={"r.io": 1}, limits=[LimitState("node", 3, 1)])
    )

    assert found["kepd_image_pulls_total", "pulled", "pod"] == 1
    assert found["kepd_image_pull_duration_seconds_bucket", "0-10MB", "5.0"] == 1
    assert found["kepd_image_pull_duration_seconds_bucket", "0-10MB", "1.0"] == 0
    assert found["kepd_image_pull_active_seconds_sum", "0-10MB"] == 1.5
    assert found["kepd_image_pull_errors_total", "r.io", "auth"] == 1
    assert found["kepd_image_bytes_downloaded_total", "r.io"] == 1000
    assert found["kepd_image_layers_total", "downloaded"] == 3
    assert found["kepd_credential_provider_errors_total", "ecr"] == 1
    assert found["kepd_image_gc_removed_total", "age"] == 1
    assert found["kepd_image_gc_freed_bytes_total",] == 500
    assert found["kepd_image_pull_queue_length", "pod"] == 2
    assert found["kepd_image_pulls_in_flight", "r.io"] == 1
    assert found["kepd_image_pull_limit", "node"] == 3


def test_the_registry_label_is_bounded() -> None:
    """IMG-M06."""
    metrics = ImageMetrics()
    for number in range(50):
        for _ in range(50 - number):
            metrics.pull_failed(f"r{number}.io", ErrorClass.NET)
    registries = {key[1] for key in samples(metrics) if key[0] == "kepd_image_pull_errors_total"}

    assert len(registries) == 21
    assert {"r0.io", "r19.io", "other"} <= registries
