# SPDX-License-Identifier: Apache-2.0
"""The section for images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.config.keys import Pairs, Words, key, restart
from agent.config.kinds import (
    BOOL,
    DURATION,
    MAYBE_PATH,
    PATH,
    SIZE,
    TEXT,
    choice,
    duration,
    either,
    integer,
    list_of,
    map_of,
    number,
    record_of,
    record_with,
)

HOSTS = list_of(TEXT, "host names")
BACKOFF_CURVE = record_of(start=DURATION, factor=number(1, 100), cap=DURATION)
REGISTRY_RATE = record_of(qps=number(0, 10000), burst=integer(1, 10000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBackoff:
    start: float = key(duration(0.1), 10.0, "First back-off.")
    factor: float = key(number(1, 100), 2.0, "Factor by which each back-off grows.")
    cap: float = key(duration(0.1), 300.0, "Longest back-off.")
    classes: Mapping[str, Pairs] = key(
        map_of(BACKOFF_CURVE, "class: start, factor, cap"), {}, "Back-off by class of error, where it differs."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVerify:
    """Who may use an image that is already on the node."""

    policy: str = key(
        choice("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"),
        "NeverVerifyPreloadedImages",
        "Which images on the node a pod must prove access to.",
    )
    allowlist: Words = key(list_of(TEXT, "repositories"), (), "Repositories that need no proof; a prefix ends in /*.")
    max_age: float = key(DURATION, 0.0, "How long a proof is valid; 0s = for ever.")
    signatures: str = key(
        MAYBE_PATH, "", "Directory of programs that judge each image kepd pulls, as containerd's bindir verifiers."
    )


REWRITE_RULE = record_with({"only": False}, match=TEXT, replace=TEXT, only=BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewrite:
    """Pulling from a different repository than the one in the image's name."""

    rules: tuple[Pairs, ...] = key(
        list_of(REWRITE_RULE, "match and replace"), (), "Rewrite rules; the first match applies."
    )
    auth: str = key(
        choice("target", "original"),
        "target",
        "Whose credentials to use; `original`: also those of the original repository.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    every: float = key(DURATION, 60.0, "Time between reports; 0s = not by time.")
    bytes: int = key(SIZE, 2**30, "Bytes between reports; 0 = not by bytes.")
    percent: int = key(integer(0, 100), 0, "Percent between reports; 0 = not by percent.")
    events: bool = key(BOOL, True, "Report progress as events of the pod.")


PREFETCH_LINE = record_with(
    {"pin": False, "handler": "", "unpack": True}, image=TEXT, pin=BOOL, handler=TEXT, unpack=BOOL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrefetch:
    pods: bool | Literal["auto"] = key(
        either("auto", BOOL),
        "auto",
        "Prefetch for pods that a kubelet will start here; `auto`: beside a kubelet, with the proxy off.",
    )
    list: tuple[Pairs, ...] = key(
        list_of(PREFETCH_LINE, "image, pin, handler, unpack"), (), "Images to keep on the node."
    )
    rollouts: bool = key(BOOL, False, "Prefetch new images of Deployments and DaemonSets that have a pod on this node.")
    private: bool = key(
        BOOL,
        False,
        "Also prefetch for pods with pull secrets, by the node's own credentials; then every pod can use the image.",
    )
    always: bool = key(BOOL, False, "Also prefetch images with pull policy Always.")
    hold: float = key(DURATION, 3600.0, "How long an image prefetched for a pod stays pinned.")
    max: int = key(integer(0), 1, "Concurrent prefetches; 0 = none.")


PERCENT = integer(0, 100)
DISK_RULES = record_with(
    {"high": None, "low": None, "inodeHigh": None, "inodeLow": None},
    path=PATH, high=PERCENT, low=PERCENT, inodeHigh=PERCENT, inodeLow=PERCENT,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCollection:
    mode: str = key(
        either("auto", choice("full", "age", "off")),
        "auto",
        "`full`: by age and disk space; `age`: by age; `auto`: `age` beside a kubelet, else `full`.",
    )
    high: int = key(integer(0, 100), 85, "Disk usage in percent that starts a collection.")
    low: int = key(integer(0, 100), 80, "Disk usage in percent at which a collection stops.")
    min_age: float = key(DURATION, 120.0, "Younger images are kept.")
    max_age: float = key(DURATION, 0.0, "Images unused for longer are removed; 0s = never.")
    period: float = key(duration(1), 300.0, "Interval between collections.")
    inode_high: int = key(integer(0, 100), 90, "Inode usage in percent that starts a collection.")
    inode_low: int = key(integer(0, 100), 85, "Inode usage in percent at which a collection stops.")
    keep: Words = key(list_of(TEXT, "names"), (), "Images that are never removed, as globs over full names.")
    keep_last: int = key(integer(0), 0, "Newest names kept per repository; 0 = no such rule.")
    filesystems: tuple[Pairs, ...] = key(
        list_of(DISK_RULES, "path, high, low, inodeHigh, inodeLow"),
        (),
        "Other thresholds for file systems of images, by a path on each.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    enabled: bool | str = restart(
        either("auto", BOOL), True, "Run the images plane; `auto`: where pods or the proxy run in the same process."
    )
    max_parallel_pulls: int | Literal["auto"] = key(
        either("auto", integer(0)), 3, "Concurrent pulls on this node; 0 = no limit."
    )
    serialize_pulls: bool = key(BOOL, False, "One pull at a time.")
    per_registry: Mapping[str, int] = key(map_of(integer(1), "host: pulls"), {}, "Concurrent pulls by registry.")
    per_registry_default: int | Literal["none"] = key(
        either("none", integer(1)), "none", "Concurrent pulls from each other registry."
    )
    registry_groups: Mapping[str, Words] = key(
        map_of(HOSTS, "name: hosts"), {}, "Hosts that share one limit, under a name of your choice."
    )
    per_pod_max: int | Literal["auto"] = key(
        either("auto", integer(0)),
        "auto",
        "Concurrent pulls per pod; `auto` = one less than the node's limit; 0 = no limit.",
    )
    critical_reserve: int | Literal["auto"] = key(
        either("auto", integer(0)), "auto", "Slots reserved for critical pods; `auto` = 1 if there are 3 or more."
    )
    large_image_size: int = key(SIZE, 2 * 2**30, "Size from which an image counts as large; 0 = none does.")
    large_max: int | Literal["auto"] = key(
        either("auto", integer(0)),
        "auto",
        "Concurrent pulls of large images; `auto` = one less than the node's limit; 0 = no limit.",
    )
    head_start: tuple[Pairs, ...] = key(
        list_of(record_of(priority=integer(0, 2**31 - 1), start=DURATION), "priority and start"),
        (),
        "Head start in the queue by pod priority; empty = the built-in table.",
    )
    head_start_negative: float = key(duration(-86400, 0), -60.0, "Head start of pods with a negative priority.")
    size_rate: int = key(SIZE, 100 * 2**20, "Bytes per second; a pull moves back by size / rate; 0 = ignore size.")
    size_cap: float = key(DURATION, 120.0, "Longest delay in the queue because of size.")
    size_unknown: float = key(DURATION, 10.0, "Delay in the queue for images of unknown size.")
    fair_share: float = key(DURATION, 15.0, "Delay in the queue per pull that the pod already has running.")
    size_probe: str = key(
        choice("off", "auto", "always"), "auto", "Ask the registry for sizes; `auto`: only while pulls are waiting."
    )
    size_probe_except: Words = key(HOSTS, ("docker.io",), "Registries never to ask for sizes.")
    dedupe: bool = key(BOOL, True, "Requests for the same image share one pull.")
    always_join_max_age: float = key(
        DURATION, 60.0, "Oldest running pull of a tag that a request with policy Always may join."
    )
    cancel_grace: float = key(DURATION, 0.0, "Grace for abandoned pulls.")
    cancel_keep_share: float = key(number(0, 1), 0.9, "Share from which an abandoned pull is finished anyway.")
    registry_pull_qps: float = key(number(0, 10000), 0.0, "Pulls that may begin per second; 0 = no limit.")
    registry_burst: int = key(integer(1, 10000), 10, "Largest burst of pulls under that rate.")
    per_registry_rate: Mapping[str, Pairs] = key(
        map_of(REGISTRY_RATE, "host: qps and burst"), {}, "Rate limits by registry."
    )
    progress_timeout: float = key(DURATION, 600.0, "A pull fails after this long without progress; 0s = never.")
    total_timeout: float = key(DURATION, 0.0, "A pull fails after this long; 0s = never.")
    min_rate: int = key(SIZE, 0, "Bytes per second; a pull that is slower for 5m fails; 0 = never.")
    backoff: ImageBackoff = ImageBackoff()
    auth_scope: str = key(
        choice("all", "host"), "all", "Who gets credentials; `host`: mirrors only if mirrorAuth names them."
    )
    mirror_auth: Words = key(HOSTS, (), "Mirrors that get the credentials of their registry.")
    provider_config: str = restart(MAYBE_PATH, "", "CredentialProviderConfig, file or directory; empty = none.")
    provider_bin_dir: str = restart(MAYBE_PATH, "", "Directory of credential provider plugins; empty = none.")
    node_config: str = restart(
        PATH, "", "Docker config of the node.", "/var/lib/kubelet/config.json and the kubelet's other places"
    )
    verify: ImageVerify = ImageVerify()
    rewrite: ImageRewrite = ImageRewrite()
    progress: ImageProgress = ImageProgress()
    prefetch: ImagePrefetch = ImagePrefetch()
    gc: ImageCollection = ImageCollection()
    fallback_to_present: bool = key(
        BOOL, False, "Use the image on the node if policy Always cannot reach the registry."
    )
    always_cache: float = key(DURATION, 0.0, "How long the result of a pull with policy Always is reused.")
    drain: float = key(DURATION, 30.0, "Time for running pulls to finish when kepd stops.")
    profile: str = key(
        choice("kepd", "kubelet"), "kepd", "`kubelet` copies the kubelet: first come, first served, and its quirks."
    )
