# SPDX-License-Identifier: Apache-2.0
"""The configuration document as typed sections: one field per key, with its kind, default and text for users.

Owns: names, defaults and meaning of all keys. A default works on a bare node; where it depends on the host it is empty
here and `derived` says what fills it (effective.py does).
Never: reads or checks anything. `R` keys are declared with `Key`, those that need a new process with `restart`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from agent.config.keys import Key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    CIDR,
    CPU,
    DNS_NAME,
    DURATION,
    ENDPOINT,
    GROUP,
    IP,
    MAYBE_PATH,
    PATH,
    RELATIVE_NAME,
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

__all__ = ["API_VERSION", "KIND", "PLANES", "Configuration"]

API_VERSION = "config.kepd.dev/v1alpha1"
KIND = "KepdConfiguration"
PLANES = ("images", "pods", "proxy", "services")

Words = tuple[str, ...]
LEVEL = integer(0, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This node: its name, its places on disk, its addresses."""

    name: Annotated[str, restart(DNS_NAME, "Name of this node.", "the host name, in lower case")] = ""
    state_directory: Annotated[
        str, restart(PATH, "Directory for data that must survive a reboot.", "$STATE_DIRECTORY, else /var/lib/kepd")
    ] = ""
    run_directory: Annotated[
        str, restart(PATH, "Directory for sockets and locks.", "$RUNTIME_DIRECTORY, else /run/kepd")
    ] = ""
    addresses: Annotated[
        Words, Key(list_of(IP, "IP addresses"), "Addresses of the node; without a cluster, node ports need them.")
    ] = ()
    labels: Annotated[Mapping[str, str], Key(map_of(TEXT, "of labels"), "Labels of the node, such as its zone.")] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The container runtime."""

    endpoint: Annotated[str, restart(ENDPOINT, "Socket of the CRI runtime service.")] = (
        "unix:///run/containerd/containerd.sock"
    )
    image_endpoint: Annotated[str, restart(ENDPOINT, "Socket of the CRI image service.", "runtime.endpoint")] = ""
    containerd_namespace: Annotated[str, restart(RELATIVE_NAME, "containerd namespace that the CRI plugin uses.")] = (
        "k8s.io"
    )
    request_timeout: Annotated[float, Key(duration(0.1), "Timeout of a CRI call, unless the method has its own.")] = (
        120.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What kepd serves on this node."""

    socket: Annotated[str, restart(PATH, "Unix socket of the gRPC API.", "<runDirectory>/kepd.sock")] = ""
    http_address: Annotated[str, restart(ADDRESS, "Address that serves /metrics, /livez and /readyz; empty = off.")] = (
        "127.0.0.1:10241"
    )
    read_group: Annotated[str, Key(GROUP, "Group (name or gid) that may read; empty = root only.")] = "kepd"
    operate_group: Annotated[
        str, Key(GROUP, "Group (name or gid) that may also pull, restart and drain; empty = root only.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The API server, if there is one."""

    kubeconfig: Annotated[
        str,
        restart(MAYBE_PATH, "kubeconfig; empty = the mounted service account if there is one, else no cluster."),
    ] = ""
    servers: Annotated[
        Words, restart(list_of(TEXT, "URLs"), "API servers to try in order, instead of the one in the kubeconfig.")
    ] = ()
    qps: Annotated[float, Key(number(0.1, 10000), "Requests per second to the API server.")] = 5.0
    burst: Annotated[int, Key(integer(1, 10000), "Largest burst of requests to the API server.")] = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """Objects from files."""

    directory: Annotated[str, restart(PATH, "Directory of manifests.")] = "/etc/kepd/manifests"
    rescan: Annotated[float, Key(duration(0.1), "Interval between scans of the whole directory.")] = 20.0
    debounce: Annotated[float, Key(DURATION, "How long a file must stay unchanged before it is read.")] = 0.2


Pairs = tuple[tuple[str, object], ...]
HOSTS = list_of(TEXT, "host names")
BACKOFF_CURVE = record_of(start=DURATION, factor=number(1, 100), cap=DURATION)
REGISTRY_RATE = record_of(qps=number(0, 10000), burst=integer(1, 10000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBackoff:
    """Back-off after failed pulls."""

    start: Annotated[float, Key(duration(0.1), "First back-off.")] = 10.0
    factor: Annotated[float, Key(number(1, 100), "Factor by which each back-off grows.")] = 2.0
    cap: Annotated[float, Key(duration(0.1), "Longest back-off.")] = 300.0
    classes: Annotated[
        Mapping[str, Pairs],
        Key(map_of(BACKOFF_CURVE, "class: start, factor, cap"), "Back-off by class of error, where it differs."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVerify:
    """Who may use an image that is already on the node."""

    policy: Annotated[
        str,
        Key(
            choice("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"),
            "Which images on the node a pod must prove access to.",
        ),
    ] = "NeverVerifyPreloadedImages"
    allowlist: Annotated[
        Words, Key(list_of(TEXT, "repositories"), "Repositories that need no proof; a prefix ends in /*.")
    ] = ()
    max_age: Annotated[float, Key(DURATION, "How long a proof is valid; 0s = for ever.")] = 0.0


REWRITE_RULE = record_with({"keepName": True, "only": False}, match=TEXT, replace=TEXT, keepName=BOOL, only=BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewrite:
    """Pulling from a different repository than the one in the image's name."""

    rules: Annotated[
        tuple[Pairs, ...], Key(list_of(REWRITE_RULE, "match and replace"), "Rewrite rules; the first match applies.")
    ] = ()
    auth: Annotated[
        str,
        Key(
            choice("target", "original"), "Whose credentials to use; `original`: also those of the original repository."
        ),
    ] = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    """How often progress is reported."""

    every: Annotated[float, Key(DURATION, "Time between reports; 0s = not by time.")] = 60.0
    bytes: Annotated[int, Key(SIZE, "Bytes between reports; 0 = not by bytes.")] = 2**30
    percent: Annotated[int, Key(integer(0, 100), "Percent between reports; 0 = not by percent.")] = 0
    events: Annotated[bool, Key(BOOL, "Report progress as events of the pod.")] = True


PREFETCH_LINE = record_with(
    {"pin": False, "handler": "", "unpack": True}, image=TEXT, pin=BOOL, handler=TEXT, unpack=BOOL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrefetch:
    """Images fetched before they are needed."""

    pods: Annotated[
        bool | Literal["auto"],
        Key(
            either("auto", BOOL),
            "Prefetch for pods that a kubelet will start here; `auto`: beside a kubelet, with the proxy off.",
        ),
    ] = "auto"
    list: Annotated[
        tuple[Pairs, ...], Key(list_of(PREFETCH_LINE, "image, pin, handler, unpack"), "Images to keep on the node.")
    ] = ()
    rollouts: Annotated[
        bool, Key(BOOL, "Prefetch new images of Deployments and DaemonSets that have a pod on this node.")
    ] = False
    private: Annotated[
        bool, Key(BOOL, "Also prefetch with the pods' pull secrets; then every pod can use the image.")
    ] = False
    always: Annotated[bool, Key(BOOL, "Also prefetch images with pull policy Always.")] = False
    hold: Annotated[float, Key(DURATION, "How long an image prefetched for a pod stays pinned.")] = 3600.0
    max: Annotated[int, Key(integer(0), "Concurrent prefetches; 0 = none.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCollection:
    """Removing images."""

    mode: Annotated[
        str,
        Key(
            either("auto", choice("full", "age", "off")),
            "`full`: by age and disk space; `age`: by age; `auto`: `age` beside a kubelet, else `full`.",
        ),
    ] = "auto"
    high: Annotated[int, Key(integer(0, 100), "Disk usage in percent that starts a collection.")] = 85
    low: Annotated[int, Key(integer(0, 100), "Disk usage in percent at which a collection stops.")] = 80
    min_age: Annotated[float, Key(DURATION, "Younger images are kept.")] = 120.0
    max_age: Annotated[float, Key(DURATION, "Images unused for longer are removed; 0s = never.")] = 0.0
    period: Annotated[float, Key(duration(1), "Interval between collections.")] = 300.0
    inode_high: Annotated[int, Key(integer(0, 100), "Inode usage in percent that starts a collection.")] = 90
    inode_low: Annotated[int, Key(integer(0, 100), "Inode usage in percent at which a collection stops.")] = 85
    keep: Annotated[Words, Key(list_of(TEXT, "names"), "Images that are never removed, as globs over full names.")] = ()
    keep_last: Annotated[int, Key(integer(0), "Newest names kept per repository; 0 = no such rule.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Image pulls."""

    enabled: Annotated[bool, restart(BOOL, "Run the images plane.")] = True
    max_parallel_pulls: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Concurrent pulls on this node; 0 = no limit."),
    ] = 3
    serialize_pulls: Annotated[bool, Key(BOOL, "One pull at a time.")] = False
    per_registry: Annotated[
        Mapping[str, int], Key(map_of(integer(1), "host: pulls"), "Concurrent pulls by registry.")
    ] = field(default_factory=dict)
    per_registry_default: Annotated[
        int | Literal["none"], Key(either("none", integer(1)), "Concurrent pulls from each other registry.")
    ] = "none"
    registry_groups: Annotated[
        Mapping[str, Words],
        Key(map_of(HOSTS, "name: hosts"), "Hosts that share one limit, under a name of your choice."),
    ] = field(default_factory=dict)
    per_pod_max: Annotated[
        int | Literal["auto"],
        Key(
            either("auto", integer(0)),
            "Concurrent pulls per pod; `auto` = one less than the node's limit; 0 = no limit.",
        ),
    ] = "auto"
    critical_reserve: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Slots reserved for critical pods; `auto` = 1 if there are 3 or more."),
    ] = "auto"
    large_image_size: Annotated[int, Key(SIZE, "Size from which an image counts as large; 0 = none does.")] = 2 * 2**30
    large_max: Annotated[
        int | Literal["auto"],
        Key(
            either("auto", integer(0)),
            "Concurrent pulls of large images; `auto` = one less than the node's limit; 0 = no limit.",
        ),
    ] = "auto"
    head_start: Annotated[
        tuple[Pairs, ...],
        Key(
            list_of(record_of(priority=integer(0, 2**31 - 1), start=DURATION), "priority and start"),
            "Head start in the queue by pod priority; empty = the built-in table.",
        ),
    ] = ()
    head_start_negative: Annotated[
        float, Key(duration(-86400, 0), "Head start of pods with a negative priority.")
    ] = -60.0
    size_rate: Annotated[int, Key(SIZE, "Bytes per second; a pull moves back by size / rate; 0 = ignore size.")] = (
        100 * 2**20
    )
    size_cap: Annotated[float, Key(DURATION, "Longest delay in the queue because of size.")] = 120.0
    size_unknown: Annotated[float, Key(DURATION, "Delay in the queue for images of unknown size.")] = 10.0
    fair_share: Annotated[float, Key(DURATION, "Delay in the queue per pull that the pod already has running.")] = 15.0
    size_probe: Annotated[
        str, Key(choice("off", "auto", "always"), "Ask the registry for sizes; `auto`: only while pulls are waiting.")
    ] = "auto"
    size_probe_except: Annotated[Words, Key(HOSTS, "Registries never to ask for sizes.")] = ("docker.io",)
    dedupe: Annotated[bool, Key(BOOL, "Requests for the same image share one pull.")] = True
    always_join_max_age: Annotated[
        float, Key(DURATION, "Oldest running pull of a tag that a request with policy Always may join.")
    ] = 60.0
    cancel_grace: Annotated[float, Key(DURATION, "Grace for abandoned pulls.")] = 0.0
    cancel_keep_share: Annotated[float, Key(number(0, 1), "Share from which an abandoned pull is finished anyway.")] = (
        0.9
    )
    registry_pull_qps: Annotated[float, Key(number(0, 10000), "Pulls that may begin per second; 0 = no limit.")] = 0.0
    registry_burst: Annotated[int, Key(integer(1, 10000), "Largest burst of pulls under that rate.")] = 10
    per_registry_rate: Annotated[
        Mapping[str, Pairs], Key(map_of(REGISTRY_RATE, "host: qps and burst"), "Rate limits by registry.")
    ] = field(default_factory=dict)
    progress_timeout: Annotated[float, Key(DURATION, "A pull fails after this long without progress; 0s = never.")] = (
        600.0
    )
    total_timeout: Annotated[float, Key(DURATION, "A pull fails after this long; 0s = never.")] = 0.0
    min_rate: Annotated[int, Key(SIZE, "Bytes per second; a pull that is slower for 5m fails; 0 = never.")] = 0
    backoff: ImageBackoff = field(default_factory=ImageBackoff)
    auth_scope: Annotated[
        str, Key(choice("all", "host"), "Who gets credentials; `host`: mirrors only if mirrorAuth names them.")
    ] = "all"
    mirror_auth: Annotated[Words, Key(HOSTS, "Mirrors that get the credentials of their registry.")] = ()
    provider_config: Annotated[
        str, restart(MAYBE_PATH, "CredentialProviderConfig, file or directory; empty = none.")
    ] = ""
    provider_bin_dir: Annotated[str, restart(MAYBE_PATH, "Directory of credential provider plugins; empty = none.")] = (
        ""
    )
    node_config: Annotated[
        str, restart(PATH, "Docker config of the node.", "/var/lib/kubelet/config.json and the kubelet's other places")
    ] = ""
    verify: ImageVerify = field(default_factory=ImageVerify)
    rewrite: ImageRewrite = field(default_factory=ImageRewrite)
    progress: ImageProgress = field(default_factory=ImageProgress)
    prefetch: ImagePrefetch = field(default_factory=ImagePrefetch)
    gc: ImageCollection = field(default_factory=ImageCollection)
    fallback_to_present: Annotated[
        bool, Key(BOOL, "Use the image on the node if policy Always cannot reach the registry.")
    ] = False
    always_cache: Annotated[float, Key(DURATION, "How long the result of a pull with policy Always is reused.")] = 0.0
    drain: Annotated[float, Key(DURATION, "Time for running pulls to finish when kepd stops.")] = 30.0
    profile: Annotated[
        str, Key(choice("kepd", "kubelet"), "`kubelet` copies the kubelet: first come, first served, and its quirks.")
    ] = "kepd"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLogs:
    """Rotation of container logs."""

    max_size: Annotated[int, Key(SIZE, "Size at which a container log is rotated.")] = 10 * 2**20
    max_files: Annotated[int, Key(integer(2), "Files kept per container.")] = 5
    interval: Annotated[float, Key(duration(1), "Interval between checks of log sizes.")] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCollection:
    """Dead containers and sandboxes."""

    period: Annotated[float, Key(duration(1), "Interval between collections.")] = 60.0
    keep_dead: Annotated[int, Key(integer(0), "Dead instances kept per container.")] = 1


SHUTDOWN_GROUP = record_of(priority=integer(-(2**31), 2**31 - 1), period=DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShutdown:
    """Graceful shutdown of the node."""

    groups: Annotated[
        tuple[tuple[tuple[str, object], ...], ...],
        Key(list_of(SHUTDOWN_GROUP, "priority and period"), "Groups of pods by priority, each with its time to stop."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods from manifests."""

    enabled: Annotated[bool, restart(BOOL, "Run the pods plane; with an empty manifest directory it is idle.")] = True
    profile: Annotated[str, restart(choice("kepd", "kubelet"), "`kubelet` copies the kubelet's quirks.")] = "kepd"
    name_suffix: Annotated[bool, restart(BOOL, "Append the node name to pod names, as a kubelet does.")] = True
    directory: Annotated[str, restart(PATH, "Directory of pod data and records.", "<stateDirectory>/pods")] = ""
    log_directory: Annotated[str, restart(PATH, "Directory of container logs.")] = "/var/log/pods"
    log_link_directory: Annotated[
        str, restart(MAYBE_PATH, "Directory of links to the logs, by container; empty = none.")
    ] = "/var/log/containers"
    logs: PodLogs = field(default_factory=PodLogs)
    cgroup_root: Annotated[str, restart(RELATIVE_NAME, "Parent cgroup of all pods.")] = "kepd"
    max_restart_period: Annotated[float, Key(duration(1, 300), "Longest back-off between restarts.")] = 300.0
    reduced_backoff: Annotated[bool, Key(BOOL, "Start the restart back-off at 1s instead of 10s.")] = False
    post_start_timeout: Annotated[float, Key(DURATION, "Timeout of a postStart hook; 0s = none.")] = 0.0
    exec_probe_concurrency: Annotated[int, restart(integer(1), "Concurrent exec probes.")] = 10
    probe_linger: Annotated[str, restart(choice("reset", "fin"), "How probes close their sockets.")] = "reset"
    default_seccomp: Annotated[
        str, Key(choice("Unconfined", "RuntimeDefault"), "Seccomp profile of containers that set none.")
    ] = "Unconfined"
    cluster_dns: Annotated[
        Words, Key(list_of(IP, "IP addresses"), "Name servers for pods with dnsPolicy ClusterFirst.")
    ] = ()
    cluster_domain: Annotated[str, Key(DNS_NAME, "Search domain of the cluster.")] = "cluster.local"
    resolv_conf: Annotated[str, Key(PATH, "Resolver file that pods inherit.")] = "/etc/resolv.conf"
    pod_pids_limit: Annotated[int, Key(integer(0), "Processes per pod; 0 = no limit.")] = 0
    swap: Annotated[str, Key(choice("NoSwap", "LimitedSwap"), "Whether pods may swap.")] = "NoSwap"
    single_process_oom_kill: Annotated[
        bool, Key(BOOL, "When out of memory, kill one process instead of the container.")
    ] = False
    gc: PodCollection = field(default_factory=PodCollection)
    relist: Annotated[float, Key(duration(1, 60), "Longest time between full lists of the runtime's containers.")] = (
        60.0
    )
    shutdown: PodShutdown = field(default_factory=PodShutdown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The CRI proxy between a kubelet and the runtime."""

    enabled: Annotated[bool, restart(BOOL, "Run the CRI proxy.")] = False
    socket: Annotated[str, restart(PATH, "Socket the proxy listens on.", "<runDirectory>/cri/cri.sock")] = ""
    link: Annotated[
        str | None,
        restart(MAYBE_PATH, "Symlink that the kubelet connects to; empty = none.", "<runDirectory>/cri/kubelet.sock"),
    ] = None
    fail_open: Annotated[bool, Key(BOOL, "Let calls pass when kepd cannot decide.")] = True
    assume_hidden_hooks: Annotated[
        bool, Key(BOOL, "Allow time for preStop hooks that kepd cannot see the kubelet run.")
    ] = True
    kubelet_config: Annotated[str, Key(TEXT, "Configuration file of the kubelet, or URL of its configz.")] = (
        "/var/lib/kubelet/config.yaml"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectLocal:
    """How kepd recognises traffic from local pods."""

    mode: Annotated[
        str,
        restart(
            choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
            "What identifies local traffic.",
        ),
    ] = "ClusterCIDR"
    cluster_cidrs: Annotated[Words, restart(list_of(CIDR, "networks"), "Networks of all pods.")] = ()
    interface: Annotated[str, restart(TEXT, "Name of the pods' bridge, for BridgeInterface.")] = ""
    interface_prefix: Annotated[str, restart(TEXT, "Prefix of pod interfaces, for InterfaceNamePrefix.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Topology hints for Services from manifests."""

    mode: Annotated[
        str, Key(choice("compute", "manifest", "off"), "Compute hints, use those in manifests, or use none.")
    ] = "compute"
    zones: Annotated[Mapping[str, str], Key(map_of(CPU, "zone: cpu"), "CPUs per zone, instead of Node manifests.")] = (
        field(default_factory=dict)
    )
    overload_threshold: Annotated[float, Key(number(0, 1), "Overload per endpoint above which no hints are given.")] = (
        0.2
    )
    node_selector: Annotated[
        Mapping[str, str], Key(map_of(TEXT, "of labels"), "Labels a node needs to count as capacity.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conntrack:
    """Connection tracking."""

    max_per_core: Annotated[int, restart(integer(0), "Maximum of tracked flows per core; 0 = unchanged.")] = 32768
    min: Annotated[int, restart(integer(0), "Minimum of tracked flows.")] = 131072
    tcp_established_timeout: Annotated[float, restart(DURATION, "Timeout of idle TCP connections; 0s = unchanged.")] = (
        86400.0
    )
    tcp_close_wait_timeout: Annotated[
        float, restart(DURATION, "Timeout of half-closed TCP connections; 0s = unchanged.")
    ] = 3600.0
    tcp_be_liberal: Annotated[bool, restart(BOOL, "Accept TCP packets outside the window.")] = False
    udp_timeout: Annotated[float, restart(DURATION, "Timeout of unanswered UDP flows; 0s = unchanged.")] = 0.0
    udp_stream_timeout: Annotated[float, restart(DURATION, "Timeout of answered UDP flows; 0s = unchanged.")] = 0.0
    sctp_cleanup: Annotated[bool, restart(BOOL, "Also delete stale SCTP flows.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters in the ruleset."""

    endpoints: Annotated[bool, restart(BOOL, "Count packets per endpoint.")] = False
    export: Annotated[bool, Key(BOOL, "Export connections by Service as metrics; needs telemetry.perService.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services in the kernel."""

    enabled: Annotated[bool, restart(BOOL, "Run the services plane; it refuses to run beside a kube-proxy.")] = True
    backend: Annotated[str, restart(choice("nftables", "iptables"), "How rules reach the kernel.")] = "nftables"
    source: Annotated[
        str,
        restart(
            choice("kubernetes", "manifests"),
            "Where Services come from.",
            "kubernetes if a kubeconfig is set or the process runs in a cluster, else manifests",
        ),
    ] = ""
    profile: Annotated[str, restart(choice("kepd", "kube-proxy"), "`kube-proxy` copies kube-proxy's timing.")] = "kepd"
    min_sync_period: Annotated[float, Key(DURATION, "Shortest time between syncs.")] = 0.05
    sync_period: Annotated[float, Key(duration(0.1), "Longest time between syncs.")] = 30.0
    full_sync_period: Annotated[float, Key(duration(1), "Longest time between full comparisons with the kernel.")] = (
        3600.0
    )
    masquerade_all: Annotated[bool, Key(BOOL, "Masquerade all traffic to Services.")] = False
    masquerade_bit: Annotated[int, restart(integer(0, 31), "Bit of the packet mark for traffic to masquerade.")] = 14
    detect_local: DetectLocal = field(default_factory=DetectLocal)
    service_cidrs: Annotated[
        Words, Key(list_of(CIDR, "networks"), "Service networks, in addition to ServiceCIDR objects.")
    ] = ()
    node_port_addresses: Annotated[
        Words,
        Key(
            list_of(TEXT, "networks or words"),
            "Addresses that serve node ports; empty = `primary`, with iptables all.",
        ),
    ] = ()
    healthz_address: Annotated[
        str, restart(ADDRESS, "Health address, as in kube-proxy; 0.0.0.0 includes IPv6; empty = off.")
    ] = "0.0.0.0:10256"
    metrics_address: Annotated[str, restart(ADDRESS, "Metrics address, as in kube-proxy; empty = off.")] = ""
    hints: Hints = field(default_factory=Hints)
    conntrack: Conntrack = field(default_factory=Conntrack)
    counters: Counters = field(default_factory=Counters)
    reject_with: Annotated[
        str, restart(choice("auto", "icmp"), "How to reject traffic to Services without endpoints.")
    ] = "auto"
    proxy_name: Annotated[str, restart(TEXT, "Handle only Services with this service-proxy-name label.")] = ""
    startup_taint: Annotated[
        bool,
        restart(BOOL, "Remove the taint `kepd.dev/not-ready` once Services work; patches the Node."),
    ] = False
    strict_source_ranges: Annotated[
        bool, restart(BOOL, "An invalid source range closes the Service instead of being ignored.")
    ] = False
    drop_invalid: Annotated[bool, Key(BOOL, "Drop packets that connection tracking marks invalid.")] = False
    tamper_repair: Annotated[bool, Key(BOOL, "Repair rules that other programs changed.")] = True
    drain_seconds: Annotated[int, restart(integer(0), "Seconds between failing the health check and exit.")] = 0
    drain_taints: Annotated[
        Words, Key(list_of(TEXT, "taint keys"), "Taints that make the node fail its health check.")
    ] = ("ToBeDeletedByClusterAutoscaler",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRing:
    """Events kept on the node."""

    ring: Annotated[int, restart(integer(1, 1_000_000), "Number of events kept.")] = 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What kepd reports about itself."""

    verbosity: Annotated[int, Key(LEVEL, "Log level as in klog: 2 logs one line per operation, 4 also plans.")] = 2
    vmodule: Annotated[Mapping[str, int], Key(map_of(LEVEL, "plane: level"), "Log levels of single planes.")] = field(
        default_factory=dict
    )
    log_format: Annotated[
        str,
        restart(choice("auto", "json", "logfmt", "console"), "Log format; `auto`: console on a terminal, else logfmt."),
    ] = "auto"
    metrics_compat: Annotated[
        Words,
        Key(
            list_of(choice("kube-proxy"), "metric families"),
            "Also export metrics under these programs' names; their port, 10249, opens at the next restart.",
        ),
    ] = ()
    per_service: Annotated[bool, Key(BOOL, "Export metrics with one series per Service.")] = False
    events: EventRing = field(default_factory=EventRing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The whole document."""

    node: Node = field(default_factory=Node)
    runtime: Runtime = field(default_factory=Runtime)
    api: Api = field(default_factory=Api)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    manifests: Manifests = field(default_factory=Manifests)
    images: Images = field(default_factory=Images)
    pods: Pods = field(default_factory=Pods)
    proxy: Proxy = field(default_factory=Proxy)
    services: Services = field(default_factory=Services)
    telemetry: Telemetry = field(default_factory=Telemetry)
