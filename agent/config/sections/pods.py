# SPDX-License-Identifier: Apache-2.0
"""The section for pods."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.keys import Pairs, Words, key, restart
from agent.config.kinds import (
    BOOL,
    DNS_NAME,
    DURATION,
    IP,
    MAYBE_PATH,
    PATH,
    RELATIVE_NAME,
    SIZE,
    SYSCTL,
    THRESHOLD,
    choice,
    duration,
    integer,
    list_of,
    map_of,
    number,
    record_of,
)
from agent.config.sections.checkpoints import PodCheckpoints


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
        "Least that is left before a pod ends at once, beside a kubelet's defaults; 0 switches one off.",
    )
    soft: Mapping[str, str] = key(
        map_of(THRESHOLD, "signal: least"), {}, "Least that is left before a pod ends in good time."
    )
    soft_grace: Mapping[str, float] = key(
        map_of(duration(1), "signal: duration"), {}, "How long a soft threshold is met before a pod ends."
    )
    min_reclaim: Mapping[str, str] = key(
        map_of(THRESHOLD, "signal: amount"), {}, "What must be left beyond a threshold to solve it."
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
    claim_directory: str = restart(
        MAYBE_PATH, "", "Directory of storage that pods claim, kept when they go.", "<stateDirectory>/claims"
    )
    claim_classes: str = key(
        choice("any", "own"), "any", "Storage classes that get directories: any, or only kepd.dev/directory's."
    )
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
    allowed_unsafe_sysctls: Words = key(
        list_of(SYSCTL, "sysctls"), (), "Sysctls that pods may set beside a kubelet's safe ones, such as `net.core.*`."
    )
    pod_pids_limit: int = key(integer(0), 0, "Processes per pod; 0 = no limit.")
    swap: str = key(choice("NoSwap", "LimitedSwap"), "NoSwap", "Whether pods may swap.")
    memory_qos: bool = key(BOOL, False, "Protect and throttle memory by request and limit (control groups version 2).")
    single_process_oom_kill: bool = key(BOOL, False, "When out of memory, kill one process instead of the container.")
    gc: PodCollection = PodCollection()
    relist: float = key(duration(1, 60), 60.0, "Longest time between full lists of the runtime's containers.")
    shutdown: PodShutdown = PodShutdown()
    eviction: PodEviction = PodEviction()
    checkpoints: PodCheckpoints = PodCheckpoints()
