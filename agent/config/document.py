# SPDX-License-Identifier: Apache-2.0
"""The configuration document as typed sections: one field per key, with its kind, default and text for users.

A default works on a bare node; where it depends on the host it is empty here and `derived` says what fills it
(effective.py does). A reload applies a `key`; one declared with `restart` waits for a new process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.config.checkpoints import PodCheckpoints
from agent.config.devices import Devices
from agent.config.dns import Dns
from agent.config.keys import key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    CIDR,
    CPU,
    DNS_NAME,
    DURATION,
    ENDING,
    ENDPOINT,
    GROUP,
    IP,
    MAYBE_INTERFACE,
    MAYBE_LABEL,
    MAYBE_PATH,
    PATH,
    RELATIVE_NAME,
    SIZE,
    TEXT,
    THRESHOLD,
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
from agent.config.telemetry import Telemetry

API_VERSION = "config.kepd.dev/v1alpha1"
KIND = "KepdConfiguration"
# In the order in which they are put together.
PLANES = ("images", "devices", "pods", "proxy", "services", "dns")
# Keys that switch a plane on, the first by itself, where that is not its `enabled`.
SWITCHES = {"devices": ("devices.manager.enabled", "devices.driver.enabled", "devices.plugins.enabled")}

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection:
    name: str = restart(DNS_NAME, "", "Name of this node.", "the host name, in lower case")
    state_directory: str = restart(
        PATH, "", "Directory for data that must survive a reboot.", "$STATE_DIRECTORY, else /var/lib/kepd"
    )
    run_directory: str = restart(PATH, "", "Directory for sockets and locks.", "$RUNTIME_DIRECTORY, else /run/kepd")
    addresses: Words = key(
        list_of(IP, "IP addresses"),
        (),
        "Addresses of the node; without a cluster, by default those of the default route.",
    )
    labels: Mapping[str, str] = key(map_of(TEXT, "of labels"), {}, "Labels of the node, such as its zone.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSection:
    endpoint: str = restart(ENDPOINT, "unix:///run/containerd/containerd.sock", "Socket of the CRI runtime service.")
    image_endpoint: str = restart(ENDPOINT, "", "Socket of the CRI image service.", "runtime.endpoint")
    containerd_namespace: str = restart(RELATIVE_NAME, "k8s.io", "containerd namespace that the CRI plugin uses.")
    request_timeout: float = key(duration(0.1), 120.0, "Timeout of a CRI call, unless the method has its own.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTls:
    """With both files `api.httpAddress` serves HTTPS."""

    cert_file: str = restart(MAYBE_PATH, "", "Certificate of the HTTP port, in PEM; read again when it changes.")
    key_file: str = restart(MAYBE_PATH, "", "Its private key, without a password.")
    client_ca_file: str = restart(
        MAYBE_PATH,
        "",
        "Authorities of clients: all pages but /livez and /readyz are then for those that have a certificate of them.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    socket: str = restart(PATH, "", "Unix socket of the gRPC API.", "<runDirectory>/kepd.sock")
    http_address: str = restart(
        ADDRESS, "127.0.0.1:10241", "Address that serves /metrics, /livez and /readyz; empty = off."
    )
    http_tls: HttpTls = HttpTls()
    read_group: str = key(GROUP, "kepd", "Group (name or gid) that may read; empty = root only.")
    operate_group: str = key(GROUP, "", "Group (name or gid) that may also pull, restart and drain; empty = root only.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    kubeconfig: str = restart(
        MAYBE_PATH, "", "kubeconfig; empty = the mounted service account if there is one, else no cluster."
    )
    servers: Words = restart(
        list_of(TEXT, "URLs"), (), "API servers to try in order, instead of the one in the kubeconfig."
    )
    qps: float = key(number(0.1, 10000), 5.0, "Requests per second to the API server.")
    burst: int = key(integer(1, 10000), 10, "Largest burst of requests to the API server.")
    compression: str = restart(choice("auto", "never"), "auto", "Whether lists come compressed from other machines.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestsSection:
    directory: str = restart(PATH, "/etc/kepd/manifests", "Directory of manifests.")
    rescan: float = key(duration(0.1), 20.0, "Interval between scans of the whole directory.")
    debounce: float = key(DURATION, 0.2, "How long a file must stay unchanged before it is read.")
    group_writable: bool = key(BOOL, False, "Also read manifests and directories that their group may write.")


Pairs = tuple[tuple[str, object], ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLogs:
    max_size: int = key(SIZE, 10 * 2**20, "Size at which a container log is rotated.")
    max_files: int = key(integer(2), 5, "Files kept per container.")
    interval: float = key(duration(1), 10.0, "Interval between checks of log sizes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCollection:
    """Dead containers and sandboxes."""

    period: float = key(duration(1), 60.0, "Interval between collections.")
    keep_dead: int = key(integer(0), 1, "Dead instances kept per container.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReserve:
    cpu: float = key(number(0, 10000), 0.0, "CPUs that pods cannot ask for.")
    memory: int = key(SIZE, 0, "Memory that pods cannot ask for.")


SHUTDOWN_GROUP = record_of(priority=integer(-(2**31), 2**31 - 1), period=DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShutdown:
    groups: tuple[Pairs, ...] = key(
        list_of(SHUTDOWN_GROUP, "priority and period"), (), "Groups of pods by priority, each with its time to stop."
    )
    longest: float = key(DURATION, 120.0, "Without groups, the longest delay of a shutdown; 0 = none.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEviction:
    """What ends pods when the node runs out of something. Thresholds are by signal, as a kubelet calls them."""

    mode: str = key(choice("auto", "on", "off"), "auto", "Whether pods are evicted; auto = where no kubelet runs.")
    hard: Mapping[str, str] = key(
        map_of(THRESHOLD, "signal: least"),
        {},
        "Least that is left before a pod ends at once, beside the defaults memory.available: 100Mi, nodefs.available: "
        "10%, nodefs.inodesFree: 5%, imagefs.available: 15%, imagefs.inodesFree: 5%; 0 switches one off.",
    )
    soft: Mapping[str, str] = key(
        map_of(THRESHOLD, "signal: least"), {}, "Least that is left before a pod ends in good time."
    )
    soft_grace: Mapping[str, float] = key(
        map_of(duration(1), "signal: duration"), {}, "For how long a soft threshold is met before a pod ends."
    )
    min_reclaim: Mapping[str, str] = key(
        map_of(THRESHOLD, "signal: amount"), {}, "What has to be left beyond a threshold before it is solved."
    )
    max_grace: float = key(DURATION, 30.0, "Longest grace of a pod that ends for a soft threshold.")
    transition: float = key(DURATION, 300.0, "How long a condition of the node is kept after it was last true.")
    period: float = key(duration(1, 300), 10.0, "Time between two looks at what the node has left.")
    readmit: bool = key(BOOL, True, "Begin evicted pods anew when the node has room again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    enabled: bool = restart(BOOL, True, "Run the pods plane; with an empty manifest directory it is idle.")
    profile: str = restart(choice("kepd", "kubelet"), "kepd", "`kubelet` copies the kubelet's quirks.")
    name_suffix: bool = restart(BOOL, True, "Append the node name to pod names, as a kubelet does.")
    directory: str = restart(PATH, "", "Directory of pod data and records.", "<stateDirectory>/pods")
    log_directory: str = restart(PATH, "/var/log/pods", "Directory of container logs.")
    log_link_directory: str = restart(
        MAYBE_PATH, "/var/log/containers", "Directory of links to the logs, by container; empty = none."
    )
    logs: PodLogs = PodLogs()
    cgroup_root: str = restart(RELATIVE_NAME, "kepd", "Parent cgroup of all pods.")
    max_restart_period: float = key(duration(1, 300), 300.0, "Longest back-off between restarts.")
    reduced_backoff: bool = key(BOOL, False, "Start the restart back-off at 1s instead of 10s.")
    post_start_timeout: float = key(DURATION, 0.0, "Timeout of a postStart hook; 0s = none.")
    exec_probe_concurrency: int = restart(integer(1), 10, "Concurrent exec probes.")
    probe_linger: str = restart(choice("reset", "fin"), "reset", "How probes close their sockets.")
    default_seccomp: str = key(
        choice("Unconfined", "RuntimeDefault"), "Unconfined", "Seccomp profile of containers that set none."
    )
    cluster_dns: Words = key(list_of(IP, "IP addresses"), (), "Name servers for pods with dnsPolicy ClusterFirst.")
    cluster_domain: str = key(DNS_NAME, "cluster.local", "Search domain of the cluster.")
    resolv_conf: str = key(PATH, "/etc/resolv.conf", "Resolver file that pods inherit.")
    max_pods: int = key(integer(0), 110, "Pods on this node at once; more of them wait.")
    reserved: PodReserve = PodReserve()
    pod_pids_limit: int = key(integer(0), 0, "Processes per pod; 0 = no limit.")
    swap: str = key(choice("NoSwap", "LimitedSwap"), "NoSwap", "Whether pods may swap.")
    memory_qos: bool = key(BOOL, False, "Protect and throttle memory by request and limit (control groups version 2).")
    single_process_oom_kill: bool = key(BOOL, False, "When out of memory, kill one process instead of the container.")
    gc: PodCollection = PodCollection()
    relist: float = key(duration(1, 60), 60.0, "Longest time between full lists of the runtime's containers.")
    shutdown: PodShutdown = PodShutdown()
    eviction: PodEviction = PodEviction()
    checkpoints: PodCheckpoints = PodCheckpoints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    enabled: bool = restart(BOOL, False, "Run the CRI proxy.")
    socket: str = restart(PATH, "", "Socket the proxy listens on.", "<runDirectory>/cri/cri.sock")
    link: str | None = restart(
        MAYBE_PATH, None, "Symlink that the kubelet connects to; empty = none.", "<runDirectory>/cri/kubelet.sock"
    )
    fail_open: bool = key(BOOL, True, "Let calls pass when kepd cannot decide.")
    assume_hidden_hooks: bool = key(BOOL, True, "Allow time for preStop hooks that kepd cannot see the kubelet run.")
    kubelet_config: str = key(
        TEXT,
        "/var/lib/kubelet/config.yaml",
        "Configuration file of the kubelet, or URL of its configz; the default finds the file, drop-ins and flags.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectLocal:
    """How kepd recognises traffic from local pods."""

    mode: str = restart(
        choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "ClusterCIDR",
        "What identifies local traffic.",
    )
    cluster_cidrs: Words = restart(list_of(CIDR, "networks"), (), "Networks of all pods.")
    interface: str = restart(MAYBE_INTERFACE, "", "Name of the pods' bridge, for BridgeInterface.")
    interface_prefix: str = restart(MAYBE_INTERFACE, "", "Prefix of pod interfaces, for InterfaceNamePrefix.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsSection:
    mode: str = key(
        choice("compute", "manifest", "off"), "compute", "Compute hints, use those in manifests, or use none."
    )
    zones: Mapping[str, str] = key(map_of(CPU, "zone: cpu"), {}, "CPUs per zone, instead of Node manifests.")
    overload_threshold: float = key(number(0, 1), 0.2, "Overload per endpoint above which no hints are given.")
    node_selector: Mapping[str, str] = key(map_of(TEXT, "of labels"), {}, "Labels a node needs to count as capacity.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackSection:
    max_per_core: int = restart(integer(0), 32768, "Maximum of tracked flows per core; 0 = unchanged.")
    min: int = restart(integer(0), 131072, "Minimum of tracked flows.")
    tcp_established_timeout: float = restart(DURATION, 86400.0, "Timeout of idle TCP connections; 0s = unchanged.")
    tcp_close_wait_timeout: float = restart(DURATION, 3600.0, "Timeout of half-closed TCP connections; 0s = unchanged.")
    tcp_be_liberal: bool = restart(BOOL, False, "Accept TCP packets outside the window.")
    udp_timeout: float = restart(DURATION, 0.0, "Timeout of unanswered UDP flows; 0s = unchanged.")
    udp_stream_timeout: float = restart(DURATION, 0.0, "Timeout of answered UDP flows; 0s = unchanged.")
    sctp_cleanup: bool = restart(BOOL, False, "Also delete stale SCTP flows.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    endpoints: bool = restart(BOOL, False, "Count packets per endpoint.")
    export: bool = key(BOOL, False, "Export connections by Service as metrics; needs telemetry.perService.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowtableSection:
    """Established flows skip the rules."""

    devices: Words = restart(
        list_of(TEXT, "device names"),
        (),
        "Devices between which flows of Services skip all rules; `*` at the end: all.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    enabled: bool = restart(BOOL, True, "Run the services plane; it refuses to run beside a kube-proxy.")
    backend: str = restart(choice("nftables", "iptables"), "nftables", "How rules reach the kernel.")
    source: str = restart(
        choice("kubernetes", "manifests"),
        "",
        "Where Services come from.",
        "kubernetes if a kubeconfig is set or the process runs in a cluster, else manifests",
    )
    profile: str = restart(choice("kepd", "kube-proxy"), "kepd", "`kube-proxy` copies kube-proxy's timing.")
    min_sync_period: float = key(DURATION, 0.05, "Shortest time between syncs.")
    sync_period: float = key(duration(0.1), 30.0, "Longest time between syncs.")
    full_sync_period: float = key(duration(1), 3600.0, "Longest time between full comparisons with the kernel.")
    masquerade_all: bool = key(BOOL, False, "Masquerade all traffic to Services.")
    masquerade_bit: int = restart(integer(0, 31), 14, "Bit of the packet mark for traffic to masquerade.")
    detect_local: DetectLocal = DetectLocal()
    service_cidrs: Words = key(list_of(CIDR, "networks"), (), "Service networks, in addition to ServiceCIDR objects.")
    node_port_addresses: Words = key(
        list_of(TEXT, "networks or words"),
        (),
        "Networks that serve node ports, or `primary`; also `localhost`, by a relay. Empty: `primary`, iptables: all.",
    )
    healthz_address: str = restart(
        ADDRESS, "0.0.0.0:10256", "Health address, as in kube-proxy; 0.0.0.0 includes IPv6; empty = off."
    )
    metrics_address: str = restart(ADDRESS, "", "Metrics address, as in kube-proxy; empty = off.")
    hints: HintsSection = HintsSection()
    conntrack: ConntrackSection = ConntrackSection()
    counters: Counters = Counters()
    flowtable: FlowtableSection = FlowtableSection()
    reject_with: str = restart(choice("auto", "icmp"), "auto", "How to reject traffic to Services without endpoints.")
    proxy_name: str = restart(MAYBE_LABEL, "", "Handle only Services with this service-proxy-name label.")
    startup_taint: bool = restart(
        BOOL, False, "Remove the taint `kepd.dev/not-ready` once Services work; patches the Node."
    )
    taint_when_down: str = restart(
        choice("never", "boot", "stop"),
        "never",
        "When kepd puts that taint on: after a boot until there are rules; `stop`: also when rules are lost.",
    )
    write_events: bool = restart(
        BOOL, False, "Write faults of Services as events of the API server too; needs `deploy/components/events`."
    )
    strict_source_ranges: bool = restart(
        BOOL, False, "An invalid source range closes the Service instead of being ignored."
    )
    external_ips: str | Words = key(
        either("allow", either("deny", list_of(CIDR, "networks"))),
        "allow",
        "Which addresses Services may take by `externalIPs`: all, none, or those in these networks.",
    )
    balancer_ips: str | Words = key(
        either("allow", either("deny", list_of(CIDR, "networks"))),
        "allow",
        "The same for addresses that load balancers give.",
    )
    own_affinity_maps: int = key(
        integer(0, 1024), 64, "Service ports that may have an affinity map of their own, in each family."
    )
    maglev_max: int = key(integer(0, 1024), 64, "Services that may choose endpoints by stable hashing, in each family.")
    elements_max: int = key(
        integer(1000, 10_000_000), 500_000, "Elements of all Services in each family; a namespace has 75 % at most."
    )
    snapshot: bool = restart(
        BOOL, False, "Keep Services in a file, so that a boot programs them before the API server answers."
    )
    boot_guard: bool = restart(
        BOOL, False, "After a boot drop new traffic to Services until there are rules; needs `kepd-guard.service`."
    )
    boot_guard_max: float = restart(duration(10, 3600), 300.0, "Longest time that a boot is guarded without a kepd.")
    terminate_established: str = key(
        ENDING, "never", "When TCP connections end whose endpoint is gone, unless the Service's annotation says it."
    )
    terminate_max: int = key(integer(1, 1_000_000), 10_000, "Most connections that are ended in a minute.")
    drop_invalid: bool = key(BOOL, False, "Drop packets that connection tracking marks invalid.")
    tamper_repair: bool = key(BOOL, True, "Repair rules that other programs changed.")
    drain_seconds: int = restart(integer(0), 0, "Seconds between failing the health check and exit.")
    drain_taints: Words = key(
        list_of(TEXT, "taint keys"),
        ("ToBeDeletedByClusterAutoscaler",),
        "Taints that make the node fail its health check.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    node: NodeSection = NodeSection()
    runtime: RuntimeSection = RuntimeSection()
    api: Api = Api()
    kubernetes: Kubernetes = Kubernetes()
    manifests: ManifestsSection = ManifestsSection()
    images: Images = Images()
    devices: Devices = Devices()
    pods: Pods = Pods()
    proxy: Proxy = Proxy()
    services: Services = Services()
    dns: Dns = Dns()
    telemetry: Telemetry = Telemetry()
