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
        str, restart(PATH, "What must outlive a reboot.", "$STATE_DIRECTORY, else /var/lib/kepd")
    ] = ""
    run_directory: Annotated[str, restart(PATH, "Sockets and locks.", "$RUNTIME_DIRECTORY, else /run/kepd")] = ""
    addresses: Annotated[
        Words, Key(list_of(IP, "IP addresses"), "Addresses of the node; a bare node needs them for node ports.")
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
    containerd_namespace: Annotated[str, restart(RELATIVE_NAME, "containerd namespace that CRI uses.")] = "k8s.io"
    request_timeout: Annotated[
        float, Key(duration(0.1), "Longest a CRI call may take, unless its kind has its own limit.")
    ] = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What kepd serves on this node."""

    socket: Annotated[str, restart(PATH, "Unix socket of the gRPC API.", "<runDirectory>/kepd.sock")] = ""
    http_address: Annotated[str, restart(ADDRESS, "/metrics, /livez and /readyz; empty = off.")] = "127.0.0.1:10241"
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
        Words, restart(list_of(TEXT, "URLs"), "API servers to use in turn, in place of the one in the kubeconfig.")
    ] = ()
    qps: Annotated[float, Key(number(0.1, 10000), "Requests a second to the API server.")] = 5.0
    burst: Annotated[int, Key(integer(1, 10000), "Requests that may go out at once.")] = 10
    resync: Annotated[
        float, Key(duration(1), "No effect: watches go on where they were; services.fullSyncPeriod compares.")
    ] = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """Objects from files."""

    directory: Annotated[str, restart(PATH, "Where manifests lie.")] = "/etc/kepd/manifests"
    rescan: Annotated[float, Key(duration(0.1), "Time between two looks at the whole directory.")] = 20.0
    debounce: Annotated[float, Key(DURATION, "How long a file must be quiet before it is read.")] = 0.2


Pairs = tuple[tuple[str, object], ...]
HOSTS = list_of(TEXT, "host names")
BACKOFF_CURVE = record_of(start=DURATION, factor=number(1, 100), cap=DURATION)
REGISTRY_RATE = record_of(qps=number(0, 10000), burst=integer(1, 10000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBackoff:
    """Pauses after pulls that failed."""

    start: Annotated[float, Key(duration(0.1), "First pause.")] = 10.0
    factor: Annotated[float, Key(number(1, 100), "How much longer each pause is than the one before.")] = 2.0
    cap: Annotated[float, Key(duration(0.1), "Longest pause.")] = 300.0
    classes: Annotated[
        Mapping[str, Pairs],
        Key(map_of(BACKOFF_CURVE, "class: start, factor, cap"), "Other pauses for single classes of errors."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVerify:
    """Who may use an image that is already on the node."""

    policy: Annotated[
        str,
        Key(
            choice("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"),
            "Which present images a pod has to prove its access to.",
        ),
    ] = "NeverVerifyPreloadedImages"
    allowlist: Annotated[
        Words, Key(list_of(TEXT, "repositories"), "Repositories, or prefixes that end in /*, that need no proof.")
    ] = ()
    max_age: Annotated[float, Key(DURATION, "How long a proof counts; 0s = for ever.")] = 0.0


REWRITE_RULE = record_with({"keepName": True, "only": False}, match=TEXT, replace=TEXT, keepName=BOOL, only=BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewrite:
    """Pulling from other repositories than those written."""

    rules: Annotated[
        tuple[Pairs, ...], Key(list_of(REWRITE_RULE, "match and replace"), "The first that matches a repository wins.")
    ] = ()
    auth: Annotated[
        str, Key(choice("target", "original"), "`original`: also try the credentials of the written repository.")
    ] = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    """How often progress is told."""

    every: Annotated[float, Key(DURATION, "Time between two events; 0s = not by time.")] = 60.0
    bytes: Annotated[int, Key(SIZE, "Bytes between two events; 0 = not by bytes.")] = 2**30
    percent: Annotated[int, Key(integer(0, 100), "Percent between two events; 0 = not by percent.")] = 0
    events: Annotated[bool, Key(BOOL, "Tell progress as events of the pod.")] = True


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
            "Fetch for pods bound to this node that a kubelet will start; `auto`: beside one, without the proxy.",
        ),
    ] = "auto"
    list: Annotated[
        tuple[Pairs, ...], Key(list_of(PREFETCH_LINE, "image, pin, handler, unpack"), "Images to have on the node.")
    ] = ()
    rollouts: Annotated[
        bool, Key(BOOL, "Fetch the new images of Deployments and DaemonSets of which this node runs a pod.")
    ] = False
    private: Annotated[bool, Key(BOOL, "Fetch with the pull secrets of pods too; every pod can use it then.")] = False
    always: Annotated[bool, Key(BOOL, "Fetch images with pull policy Always too.")] = False
    hold: Annotated[float, Key(DURATION, "How long what was fetched for a pod is pinned.")] = 3600.0
    max: Annotated[int, Key(integer(0), "Prefetches that may run at once; 0 = none.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCollection:
    """Removing images."""

    mode: Annotated[
        str,
        Key(
            either("auto", choice("full", "age", "off")),
            "`full`: by age and space; `age`: by age; `auto`: `age` beside a kubelet, else `full`.",
        ),
    ] = "auto"
    high: Annotated[int, Key(integer(0, 100), "Percent of the disk at which space is made.")] = 85
    low: Annotated[int, Key(integer(0, 100), "Percent of the disk down to which space is made.")] = 80
    min_age: Annotated[float, Key(DURATION, "Images younger than this stay.")] = 120.0
    max_age: Annotated[float, Key(DURATION, "Images unused for longer than this go; 0s = never.")] = 0.0
    period: Annotated[float, Key(duration(1), "Time between two runs.")] = 300.0
    inode_high: Annotated[int, Key(integer(0, 100), "Percent of inodes at which space is made.")] = 90
    inode_low: Annotated[int, Key(integer(0, 100), "Percent of inodes down to which space is made.")] = 85
    keep: Annotated[Words, Key(list_of(TEXT, "names"), "Images (globs over full names) that stay.")] = ()
    keep_last: Annotated[int, Key(integer(0), "Newest names kept per repository; 0 = no such rule.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Image pulls."""

    enabled: Annotated[bool, restart(BOOL, "Run the images plane.")] = True
    max_parallel_pulls: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Pulls that may run at once on this node; 0 = no limit."),
    ] = 3
    serialize_pulls: Annotated[bool, Key(BOOL, "One pull at a time.")] = False
    per_registry: Annotated[Mapping[str, int], Key(map_of(integer(1), "host: pulls"), "Pulls at once by registry.")] = (
        field(default_factory=dict)
    )
    per_registry_default: Annotated[
        int | Literal["none"], Key(either("none", integer(1)), "Pulls at once from any other registry.")
    ] = "none"
    registry_groups: Annotated[
        Mapping[str, Words], Key(map_of(HOSTS, "name: hosts"), "Hosts that share one limit, under a name of its own.")
    ] = field(default_factory=dict)
    per_pod_max: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Pulls at once for one pod; `auto` = one less than all; 0 = no limit."),
    ] = "auto"
    critical_reserve: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Slots kept for critical pods; `auto` = 1 of 3 or more."),
    ] = "auto"
    large_image_size: Annotated[int, Key(SIZE, "From this size on an image is large; 0 = none is.")] = 2 * 2**30
    large_max: Annotated[
        int | Literal["auto"],
        Key(either("auto", integer(0)), "Large images at once; `auto` = one less than all; 0 = no limit."),
    ] = "auto"
    head_start: Annotated[
        tuple[Pairs, ...],
        Key(
            list_of(record_of(priority=integer(0, 2**31 - 1), start=DURATION), "priority and start"),
            "How much earlier pods of at least a priority count as having asked; empty = the built-in table.",
        ),
    ] = ()
    head_start_negative: Annotated[
        float, Key(duration(-86400, 0), "The same for pods with a negative priority.")
    ] = -60.0
    size_rate: Annotated[int, Key(SIZE, "A pull counts as late as its size takes at this rate; 0 = no matter.")] = (
        100 * 2**20
    )
    size_cap: Annotated[float, Key(DURATION, "Longest that size makes a pull count as late.")] = 120.0
    size_unknown: Annotated[float, Key(DURATION, "The same for images of unknown size.")] = 10.0
    fair_share: Annotated[float, Key(DURATION, "How much later a pod counts for each pull it has running.")] = 15.0
    size_probe: Annotated[
        str, Key(choice("off", "auto", "always"), "Ask the registry for sizes; `auto`: only while a pull waits anyway.")
    ] = "auto"
    size_probe_except: Annotated[Words, Key(HOSTS, "Registries that are never asked for sizes.")] = ("docker.io",)
    dedupe: Annotated[bool, Key(BOOL, "Requests for one image share a pull.")] = True
    always_join_max_age: Annotated[
        float, Key(DURATION, "Age up to which a request with policy Always joins a running pull of a tag.")
    ] = 60.0
    cancel_grace: Annotated[float, Key(DURATION, "How long a pull runs on that nobody wants any more.")] = 0.0
    cancel_keep_share: Annotated[float, Key(number(0, 1), "A pull this far is finished even if nobody wants it.")] = 0.9
    registry_pull_qps: Annotated[float, Key(number(0, 10000), "Pulls that may begin per second; 0 = no limit.")] = 0.0
    registry_burst: Annotated[int, Key(integer(1, 10000), "Pulls that may begin at once under that rate.")] = 10
    per_registry_rate: Annotated[
        Mapping[str, Pairs], Key(map_of(REGISTRY_RATE, "host: qps and burst"), "The same by registry.")
    ] = field(default_factory=dict)
    progress_timeout: Annotated[float, Key(DURATION, "A pull ends when it made no progress for this; 0s = never.")] = (
        600.0
    )
    total_timeout: Annotated[float, Key(DURATION, "A pull ends after this; 0s = never.")] = 0.0
    min_rate: Annotated[int, Key(SIZE, "A pull ends when it was slower for 5m, in bytes a second; 0 = never.")] = 0
    backoff: ImageBackoff = field(default_factory=ImageBackoff)
    auth_scope: Annotated[
        str, Key(choice("all", "host"), "`host`: mirrors get no credentials unless mirrorAuth names them.")
    ] = "all"
    mirror_auth: Annotated[Words, Key(HOSTS, "Mirrors that get the credentials of their registry.")] = ()
    provider_config: Annotated[
        str, restart(MAYBE_PATH, "CredentialProviderConfig, file or directory; empty = none.")
    ] = ""
    provider_bin_dir: Annotated[str, restart(MAYBE_PATH, "Where credential provider plugins are; empty = none.")] = ""
    node_config: Annotated[
        str, restart(PATH, "Docker config of the node.", "/var/lib/kubelet/config.json and the kubelet's other places")
    ] = ""
    verify: ImageVerify = field(default_factory=ImageVerify)
    rewrite: ImageRewrite = field(default_factory=ImageRewrite)
    progress: ImageProgress = field(default_factory=ImageProgress)
    prefetch: ImagePrefetch = field(default_factory=ImagePrefetch)
    gc: ImageCollection = field(default_factory=ImageCollection)
    fallback_to_present: Annotated[
        bool, Key(BOOL, "Use what is present when a pull with policy Always reaches nobody.")
    ] = False
    always_cache: Annotated[float, Key(DURATION, "Time for which an answer to policy Always is reused.")] = 0.0
    drain: Annotated[float, Key(DURATION, "Time that running pulls get when kepd ends.")] = 30.0
    cgroup: Annotated[str, restart(TEXT, "Cgroup for unpacking with low weight; empty = none.")] = ""
    profile: Annotated[
        str, Key(choice("kepd", "kubelet"), "`kubelet`: first come first served, and that program's quirks.")
    ] = "kepd"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLogs:
    """Rotation of container logs."""

    max_size: Annotated[int, Key(SIZE, "Size at which a container log is rotated.")] = 10 * 2**20
    max_files: Annotated[int, Key(integer(2), "Files kept per container.")] = 5
    interval: Annotated[float, Key(duration(1), "Time between two looks at the sizes.")] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCollection:
    """Dead containers and sandboxes."""

    period: Annotated[float, Key(duration(1), "Time between two collections.")] = 60.0
    keep_dead: Annotated[int, Key(integer(0), "Dead instances kept per container.")] = 1


SHUTDOWN_GROUP = record_of(priority=integer(-(2**31), 2**31 - 1), period=DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShutdown:
    """Graceful shutdown of the node."""

    groups: Annotated[
        tuple[tuple[tuple[str, object], ...], ...],
        Key(list_of(SHUTDOWN_GROUP, "priority and period"), "Pods by priority, and the time each group gets."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods from manifests."""

    enabled: Annotated[bool, restart(BOOL, "Run the pods plane; with an empty manifest directory it is idle.")] = True
    profile: Annotated[str, restart(choice("kepd", "kubelet"), "`kubelet` copies that program's quirks.")] = "kepd"
    name_suffix: Annotated[bool, restart(BOOL, "Append the node name to pod names, as a kubelet does.")] = True
    directory: Annotated[str, restart(PATH, "Pod directories and records.", "<stateDirectory>/pods")] = ""
    log_directory: Annotated[str, restart(PATH, "Container logs.")] = "/var/log/pods"
    log_link_directory: Annotated[str, restart(MAYBE_PATH, "Links to the logs by container; empty = none.")] = (
        "/var/log/containers"
    )
    logs: PodLogs = field(default_factory=PodLogs)
    cgroup_root: Annotated[str, restart(RELATIVE_NAME, "Parent cgroup of all pods.")] = "kepd"
    max_restart_period: Annotated[float, Key(duration(1, 300), "Longest pause between two restarts.")] = 300.0
    reduced_backoff: Annotated[bool, Key(BOOL, "Begin restarts with 1s instead of 10s.")] = False
    post_start_timeout: Annotated[float, Key(DURATION, "Limit of a postStart hook; 0s = none.")] = 0.0
    exec_probe_concurrency: Annotated[int, Key(integer(1), "exec probes that may run at once.")] = 10
    probe_linger: Annotated[str, Key(choice("reset", "fin"), "How probe sockets are closed.")] = "reset"
    default_seccomp: Annotated[
        str, Key(choice("Unconfined", "RuntimeDefault"), "Profile of containers that name none.")
    ] = "Unconfined"
    cluster_dns: Annotated[
        Words, Key(list_of(IP, "IP addresses"), "Name servers for pods with dnsPolicy ClusterFirst.")
    ] = ()
    cluster_domain: Annotated[str, Key(DNS_NAME, "Search domain of the cluster.")] = "cluster.local"
    resolv_conf: Annotated[str, Key(PATH, "Resolver file that pods inherit.")] = "/etc/resolv.conf"
    pod_pids_limit: Annotated[int, Key(integer(0), "Processes per pod; 0 = no limit.")] = 0
    swap: Annotated[str, Key(choice("NoSwap", "LimitedSwap"), "Whether pods may swap.")] = "NoSwap"
    single_process_oom_kill: Annotated[bool, Key(BOOL, "Kill one process, not the container, when out of memory.")] = (
        False
    )
    gc: PodCollection = field(default_factory=PodCollection)
    relist: Annotated[float, Key(duration(1, 60), "Longest time between two full lists of the runtime.")] = 60.0
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
    synthesize_runtime_config: Annotated[bool, Key(BOOL, "Answer RuntimeConfig for runtimes without it.")] = False
    assume_hidden_hooks: Annotated[bool, Key(BOOL, "Allow for preStop hooks that the kubelet runs unseen.")] = True
    kubelet_config: Annotated[str, Key(TEXT, "Configuration file of the kubelet, or URL of its configz.")] = (
        "/var/lib/kubelet/config.yaml"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectLocal:
    """How traffic of local pods is told from traffic of others."""

    mode: Annotated[
        str,
        restart(
            choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"), "What tells local traffic."
        ),
    ] = "ClusterCIDR"
    cluster_cidrs: Annotated[Words, restart(list_of(CIDR, "networks"), "Networks of all pods.")] = ()
    interface: Annotated[str, restart(TEXT, "Bridge of the pods, for BridgeInterface.")] = ""
    interface_prefix: Annotated[str, restart(TEXT, "Prefix of pod interfaces, for InterfaceNamePrefix.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Topology hints for Services from manifests."""

    mode: Annotated[
        str, Key(choice("compute", "manifest", "off"), "Compute hints, take those in manifests, or use none.")
    ] = "compute"
    sticky: Annotated[bool, Key(BOOL, "Keep earlier hints of unchanged slices.")] = False
    zones: Annotated[Mapping[str, str], Key(map_of(CPU, "zone: cpu"), "CPUs per zone, in place of Node manifests.")] = (
        field(default_factory=dict)
    )
    overload_threshold: Annotated[float, Key(number(0, 1), "Share by which an endpoint may be overloaded.")] = 0.2
    node_selector: Annotated[
        Mapping[str, str], Key(map_of(TEXT, "of labels"), "Labels a node needs to count as capacity.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conntrack:
    """Connection tracking."""

    max_per_core: Annotated[int, restart(integer(0), "Tracked flows per core; 0 = leave as it is.")] = 32768
    min: Annotated[int, restart(integer(0), "Tracked flows at the least.")] = 131072
    tcp_established_timeout: Annotated[float, restart(DURATION, "Idle TCP connections; 0s = leave as it is.")] = 86400.0
    tcp_close_wait_timeout: Annotated[float, restart(DURATION, "Half-closed connections; 0s = leave as it is.")] = (
        3600.0
    )
    tcp_be_liberal: Annotated[bool, restart(BOOL, "Accept packets outside the window.")] = False
    udp_timeout: Annotated[float, restart(DURATION, "Unanswered UDP flows; 0s = leave as it is.")] = 0.0
    udp_stream_timeout: Annotated[float, restart(DURATION, "Answered UDP flows; 0s = leave as it is.")] = 0.0
    sctp_cleanup: Annotated[bool, restart(BOOL, "Delete stale SCTP flows too.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters in the ruleset."""

    endpoints: Annotated[bool, restart(BOOL, "Count packets per endpoint.")] = False
    export: Annotated[bool, Key(BOOL, "Connections by Service as metrics; with telemetry.perService.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services in the kernel."""

    enabled: Annotated[bool, restart(BOOL, "Run the services plane; it refuses beside a kube-proxy.")] = True
    backend: Annotated[str, restart(choice("nftables", "iptables"), "What programs the kernel.")] = "nftables"
    source: Annotated[
        str,
        restart(
            choice("kubernetes", "manifests"),
            "Where Services come from.",
            "kubernetes if a kubeconfig is set or the process runs in a cluster, else manifests",
        ),
    ] = ""
    profile: Annotated[str, restart(choice("kepd", "kube-proxy"), "`kube-proxy` copies that program's timing.")] = (
        "kepd"
    )
    min_sync_period: Annotated[float, Key(DURATION, "Shortest time between two syncs.")] = 0.05
    sync_period: Annotated[float, Key(duration(0.1), "Longest time between two syncs.")] = 30.0
    full_sync_period: Annotated[float, Key(duration(1), "Longest time between two full comparisons.")] = 3600.0
    masquerade_all: Annotated[bool, Key(BOOL, "Masquerade all traffic to Services.")] = False
    masquerade_bit: Annotated[int, restart(integer(0, 31), "Bit of the mark for traffic to masquerade.")] = 14
    detect_local: DetectLocal = field(default_factory=DetectLocal)
    service_cidrs: Annotated[
        Words, Key(list_of(CIDR, "networks"), "Service networks, added to those of ServiceCIDR objects.")
    ] = ()
    node_port_addresses: Annotated[
        Words,
        Key(
            list_of(TEXT, "networks or words"),
            "Networks or `primary`; empty: `primary`, with iptables all.",
        ),
    ] = ()
    healthz_address: Annotated[str, restart(ADDRESS, "Health as kube-proxy serves it; empty = off.")] = "0.0.0.0:10256"
    metrics_address: Annotated[str, restart(ADDRESS, "Metrics where kube-proxy has them; empty = off.")] = ""
    hints: Hints = field(default_factory=Hints)
    conntrack: Conntrack = field(default_factory=Conntrack)
    counters: Counters = field(default_factory=Counters)
    reject_with: Annotated[str, restart(choice("auto", "icmp"), "Answer for Services without endpoints.")] = "auto"
    proxy_name: Annotated[str, restart(TEXT, "Only Services with this service-proxy-name label.")] = ""
    startup_taint: Annotated[
        bool,
        restart(BOOL, "Take the taint `kepd.dev/not-ready` off this node once Services answer; patches the Node."),
    ] = False
    strict_source_ranges: Annotated[
        bool, restart(BOOL, "A bad source range closes the Service instead of being left out.")
    ] = False
    drop_invalid: Annotated[bool, Key(BOOL, "Drop packets that connection tracking calls invalid.")] = False
    boot_guard: Annotated[bool, Key(BOOL, "Refuse traffic to Services until the first sync.")] = False
    tamper_repair: Annotated[bool, Key(BOOL, "Repair rules that others changed.")] = True
    drain_seconds: Annotated[int, restart(integer(0), "Time between failing health and exit.")] = 0
    drain_taints: Annotated[Words, Key(list_of(TEXT, "taint keys"), "Taints that make the node fail its health.")] = (
        "ToBeDeletedByClusterAutoscaler",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRing:
    """Events kept on the node."""

    ring: Annotated[int, restart(integer(1, 1_000_000), "Events kept.")] = 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """OpenTelemetry."""

    endpoint: Annotated[str, restart(TEXT, "OTLP endpoint; empty = off.")] = ""
    ratio: Annotated[float, restart(number(0, 1), "Share of operations that are traced.")] = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What kepd tells about itself."""

    verbosity: Annotated[
        int, Key(LEVEL, "Log level as klog counts it: 2 is one line per operation, 4 shows plans.")
    ] = 2
    vmodule: Annotated[Mapping[str, int], Key(map_of(LEVEL, "plane: level"), "Levels of single planes.")] = field(
        default_factory=dict
    )
    log_format: Annotated[
        str, restart(choice("auto", "json", "logfmt", "console"), "`auto`: console on a terminal, else logfmt.")
    ] = "auto"
    metrics_compat: Annotated[
        Words, Key(list_of(choice("kube-proxy"), "metric families"), "Metrics that also appear under these names.")
    ] = ()
    per_service: Annotated[bool, Key(BOOL, "Metrics with a series per Service.")] = False
    events: EventRing = field(default_factory=EventRing)
    tracing: Tracing = field(default_factory=Tracing)


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
