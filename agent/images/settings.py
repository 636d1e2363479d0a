# SPDX-License-Identifier: Apache-2.0
"""Turns configuration keys into the rules of the parts: limits, pauses, deadlines, access, collection, prefetch.

Also the defaults that depend on other keys, and faults that only a combination of keys has.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.config.sections.images import ImageBackoff, Images
from agent.images.access.grants import AccessRules, VerifyPolicy, allowlist_fault
from agent.images.collect.disks import DiskRules
from agent.images.collect.plan import CollectMode, CollectRules, rules_fault
from agent.images.prefetch.plan import PrefetchRules
from agent.images.queue.auto_limit import AutoLimit
from agent.images.queue.backoff import BackoffRules
from agent.images.queue.deadline import DeadlineRules
from agent.images.queue.errors import CURVES, BackoffCurve
from agent.images.queue.rules import DEFAULT_HEAD_START, QueueRules, Rate, RewriteRule, rule_fault
from agent.model.finding import Finding, shown, suggestion
from agent.model.images.pull import ErrorClass, ListedImage

LEND_S = 2.0
GAP_TO_KUBELET = 3
LIMIT_KEY = "images.maxParallelPulls"
KUBELET = "kubelet"


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    keys: Images = msgspec.field(default_factory=Images)
    queue: QueueRules = msgspec.field(default_factory=QueueRules)
    backoff: BackoffRules = msgspec.field(default_factory=BackoffRules)
    deadline: DeadlineRules = msgspec.field(default_factory=DeadlineRules)
    access: AccessRules = msgspec.field(default_factory=AccessRules)
    collect: CollectRules = msgspec.field(default_factory=CollectRules)
    prefetch: PrefetchRules = msgspec.field(default_factory=PrefetchRules)
    listed: tuple[ListedImage, ...] = ()
    rewrite: tuple[RewriteRule, ...] = ()
    is_like_kubelet: bool = False
    is_limit_auto: bool = False


class KubeletDisk(msgspec.Struct, frozen=True):
    """At which use of the disk, in percent, a kubelet of this node removes images, and down to which."""

    high: int = 85
    low: int = 80


def read_kubelet_disk(document: object) -> KubeletDisk:
    fields: Mapping[object, object] = document if isinstance(document, Mapping) else {}
    high, low = fields.get("imageGCHighThresholdPercent"), fields.get("imageGCLowThresholdPercent")
    default = KubeletDisk()
    return KubeletDisk(high if isinstance(high, int) else default.high, low if isinstance(low, int) else default.low)


def image_settings(
    images: Images, *, has_kubelet: bool = False, is_proxied: bool = False, kubelet_disk: KubeletDisk | None = None
) -> ImageSettings:
    """`has_kubelet`: a kubelet watches the disk, and pulls for pods; `is_proxied`: it pulls through us. A proxy stands
    in front of a kubelet, wherever that keeps its configuration."""
    has_kubelet = has_kubelet or is_proxied
    theirs = kubelet_disk or KubeletDisk() if has_kubelet else None
    is_like_kubelet = images.profile == KUBELET
    queue = _queue(images)
    mode = images.gc.mode if images.gc.mode != "auto" else ("age" if has_kubelet else "full")
    return ImageSettings(
        keys=images,
        queue=queue.as_kubelet() if is_like_kubelet else queue,
        backoff=_backoff(images.backoff, is_like_kubelet=is_like_kubelet),
        deadline=DeadlineRules(
            progress_s=images.progress_timeout, total_s=images.total_timeout, least_bytes_s=images.min_rate
        ),
        access=AccessRules(
            policy=VerifyPolicy(images.verify.policy),
            allowlist=images.verify.allowlist,
            max_age_s=images.verify.max_age,
            is_normalised=not is_like_kubelet,
        ),
        collect=_collect(images, mode, theirs),
        prefetch=PrefetchRules(
            is_for_pods=has_kubelet and not is_proxied if images.prefetch.pods == "auto" else images.prefetch.pods,
            is_for_rollouts=images.prefetch.rollouts,
            is_private=images.prefetch.private,
            is_always=images.prefetch.always,
            hold_s=images.prefetch.hold,
            high=theirs.high if theirs else images.gc.high,
            low=theirs.low if theirs else images.gc.low,
        ),
        listed=tuple(_listed(dict(line)) for line in images.prefetch.list),
        rewrite=_rewrite(images),
        is_like_kubelet=is_like_kubelet,
        is_limit_auto=images.max_parallel_pulls == "auto" and not images.serialize_pulls,
    )


def with_limit(settings: ImageSettings, limit: int, registry: str = "", *, is_tuned: bool = False) -> ImageSettings:
    """The same with another number of slots, of the node or of a registry, until the next reload. 0 = no limit. A
    number that is set ends the search for one, unless the search sets it (`is_tuned`)."""
    queue = settings.queue
    if registry:
        limits = {**queue.per_registry, registry: limit}
        if not limit:
            del limits[registry]
        return replace(settings, queue=replace(queue, per_registry=limits))
    is_auto = settings.is_limit_auto and is_tuned
    changed = replace(queue, max_parallel=limit)
    if not settings.is_like_kubelet:
        changed = _with_shares(changed, settings.keys)
    return replace(settings, queue=changed, is_limit_auto=is_auto)


def _queue(images: Images) -> QueueRules:
    wanted = AutoLimit().limit if images.max_parallel_pulls == "auto" else images.max_parallel_pulls
    table = tuple((_int(dict(one)["priority"]), _float(dict(one)["start"])) for one in images.head_start)
    rules = QueueRules(
        max_parallel=1 if images.serialize_pulls else wanted,
        per_registry=dict(images.per_registry),
        per_registry_default=None if images.per_registry_default == "none" else images.per_registry_default,
        registry_groups={host: name for name, hosts in images.registry_groups.items() for host in hosts},
        large_bytes=images.large_image_size or None,
        prefetch_max=images.prefetch.max,
        fair_share_s=images.fair_share,
        head_start=tuple(sorted(table, reverse=True)) or DEFAULT_HEAD_START,
        head_start_negative_s=images.head_start_negative,
        size_rate=images.size_rate or None,
        size_cap_s=images.size_cap,
        size_unknown_s=images.size_unknown,
        is_shared=images.dedupe,
        always_join_max_age_s=images.always_join_max_age,
        rate=Rate(images.registry_pull_qps, images.registry_burst),
        registry_rates={
            host: Rate(_float(dict(pairs)["qps"]), _int(dict(pairs)["burst"]))
            for host, pairs in images.per_registry_rate.items()
        },
        cancel_grace_s=images.cancel_grace,
        cancel_keep_share=images.cancel_keep_share,
    )
    return _with_shares(rules, images)


def _with_shares(rules: QueueRules, images: Images) -> QueueRules:
    """What depends on the number of slots. Whatever is configured, one slot is left for ordinary pulls."""
    limit = rules.max_parallel
    most = limit - 1 if limit >= 2 else None
    reserve = (1 if limit >= 3 else 0) if images.critical_reserve == "auto" else images.critical_reserve
    return replace(
        rules,
        per_pod_max=most if images.per_pod_max == "auto" else images.per_pod_max or None,
        large_max=most if images.large_max == "auto" else images.large_max or None,
        critical_reserve=min(reserve, max(0, limit - 1)),
        # A number that is configured is meant; the default must not cost a batch of small images a slot.
        lend_s=LEND_S if images.critical_reserve == "auto" else 0.0,
    )


def _backoff(given: ImageBackoff, *, is_like_kubelet: bool) -> BackoffRules:
    default = BackoffCurve(given.start, given.factor, given.cap)
    if is_like_kubelet:
        return BackoffRules(default, {})
    own = {
        ErrorClass(name): BackoffCurve(*(_float(dict(pairs)[key]) for key in ("start", "factor", "cap")))
        for name, pairs in given.classes.items()
    }
    return BackoffRules(default, {**CURVES, **own})


def _collect(images: Images, mode: str, kubelet: KubeletDisk | None = None) -> CollectRules:
    """Beside a kubelet space is made before that would begin to: two collectors at one threshold would fight."""
    gc = images.gc
    high = min(gc.high, kubelet.high - GAP_TO_KUBELET) if kubelet else gc.high
    return CollectRules(
        mode=CollectMode(mode),
        high=high,
        low=min(gc.low, high - 1) if kubelet else gc.low,
        inode_high=gc.inode_high,
        inode_low=gc.inode_low,
        min_age_s=gc.min_age,
        max_age_s=gc.max_age,
        keep=gc.keep,
        keep_last=gc.keep_last,
        by_path={str(one["path"]): _disk_rules(one, images) for one in map(dict, gc.filesystems)},
    )


def _disk_rules(given: Mapping[str, object], images: Images) -> DiskRules:
    """What is not given is as for all file systems."""
    gc = images.gc
    wanted = {"high": gc.high, "low": gc.low, "inodeHigh": gc.inode_high, "inodeLow": gc.inode_low}
    high, low, inode_high, inode_low = (
        _int(given[key]) if given[key] is not None else default for key, default in wanted.items()
    )
    return DiskRules(high=high, low=low, inode_high=inode_high, inode_low=inode_low)


def _listed(fields: Mapping[str, object]) -> ListedImage:
    return ListedImage(
        image=str(fields["image"]),
        is_pinned=fields["pin"] is True,
        handler=str(fields["handler"]),
        is_content_only=fields["unpack"] is False,
    )


def _rewrite(images: Images) -> tuple[RewriteRule, ...]:
    return tuple(
        RewriteRule(match=str(fields["match"]), replace=str(fields["replace"]), is_only=fields["only"] is True)
        for fields in map(dict, images.rewrite.rules)
    )


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def image_faults(images: Images, given: Collection[str] = ()) -> Sequence[Finding]:
    """What the document's own checks cannot see: values that only fail together, patterns, expressions. `given` names
    the keys that were set, be it to their default."""
    found: list[Finding] = []
    is_said = LIMIT_KEY in given or images.max_parallel_pulls != Images().max_parallel_pulls
    if images.serialize_pulls and is_said and images.max_parallel_pulls != 1:
        found.append(Finding("", LIMIT_KEY, "must be 1 when images.serializePulls is true"))
    if fault := rules_fault(_collect(images, "full")):
        found.append(Finding("", "images.gc", fault))
    paths = Counter(str(dict(one)["path"]) for one in images.gc.filesystems)
    twice = [path for path, count in paths.items() if count > 1]
    found += [Finding("", "images.gc.filesystems", f"{path} is given twice; expected once") for path in twice]
    faults = filter(None, map(allowlist_fault, images.verify.allowlist))
    found += [Finding("", "images.verify.allowlist", fault) for fault in faults]
    for position, rule in enumerate(_rewrite(images)):
        if fault := rule_fault(rule):
            found.append(Finding("", f"images.rewrite.rules[{position}]", fault))
    known = [str(one) for one in ErrorClass]
    for name in images.backoff.classes:
        if name not in known:
            hint = suggestion(name, known) or f"; classes are {', '.join(known)}"
            found.append(Finding("", "images.backoff.classes", f"{shown(name)} is no class of errors{hint}"))
    return found
