# SPDX-License-Identifier: Apache-2.0
"""Which enhancements work on this node, and what the others need.

Decided by the values that the planners get. No version is compared where the thing itself can be asked.
"""

from collections.abc import Callable, Iterator

import msgspec

from agent.host.elsewhere import ELSEWHERE
from agent.host.tracing import ENDPOINT, install_line
from agent.model.nodes.feature import FeatureFacts, FeatureRow, FeatureState

Verdict = tuple[FeatureState, str]
IDMAPPED_TMPFS = (6, 3)
WORKS: Verdict = ("works", "")


class Entry(msgspec.Struct, frozen=True):
    """`plane` has to run; `needs` says in one sentence what `decide` looks at. `how` is what kepd does of it by itself,
    `beside` what it does in front of a kubelet; `page` tells more."""

    keps: str
    what: str
    plane: str
    needs: str = ""
    decide: Callable[[FeatureFacts], Verdict] = lambda _facts: WORKS
    how: str = "yes"
    beside: str = ""
    page: str = ""


def feature_rows(facts: FeatureFacts) -> Iterator[FeatureRow]:
    for one in ENTRIES:
        state, why = _plane(one.plane, facts) or one.decide(facts)
        yield FeatureRow(keps=one.keps, what=one.what, state=state, why=why, facts=facts)
    for keps, what, why in ELSEWHERE:
        yield FeatureRow(keps=keps, what=what, state="elsewhere", why=why, facts=facts)


def _plane(plane: str, facts: FeatureFacts) -> Verdict | None:
    """`pods|proxy`: one of them is enough."""
    if not plane or facts.planes & set(plane.split("|")):
        return None
    first = plane.partition("|")[0]
    key = "devices.manager.enabled" if first == "devices" else f"{first}.enabled"
    return "off", f"{key}: true"


def _runtime_with(has: Callable[[FeatureFacts], bool], since: str) -> Callable[[FeatureFacts], Verdict]:
    def decide(facts: FeatureFacts) -> Verdict:
        return WORKS if has(facts) else ("needs", f"{since}; here is {facts.runtime.label}")

    return decide


def _key(path: str, on: object) -> Callable[[FeatureFacts], Verdict]:
    shown = str(on).lower() if isinstance(on, bool) else on

    def decide(facts: FeatureFacts) -> Verdict:
        return WORKS if facts.keys.get(path) == on else ("off", f"{path}: {shown}")

    return decide


def _user_namespaces(facts: FeatureFacts) -> Verdict:
    if "" not in facts.runtime.user_namespaces:
        return "needs", f"containerd 2.0 or CRI-O 1.30, with runc 1.2 or crun; here is {facts.runtime.label}"
    if facts.release < IDMAPPED_TMPFS:
        return "partly", "volumes in memory need Linux 6.3"
    return WORKS


def _pressure(facts: FeatureFacts) -> Verdict:
    return WORKS if facts.has_pressure else ("needs", "a kernel with pressure stall figures, started with psi=1")


def _node_logs(facts: FeatureFacts) -> Verdict:
    if not facts.keys.get("telemetry.nodeLogs.enabled"):
        return "off", "telemetry.nodeLogs.enabled: true"
    return WORKS if facts.has_journalctl else ("partly", "files can be read; the journal needs journalctl beside kepd")


def _swap(facts: FeatureFacts) -> Verdict:
    if not facts.groups.has_swap_limit:
        return "needs", "swap that control groups can limit"
    return _key("pods.swap", "LimitedSwap")(facts)


def _memory_qos(facts: FeatureFacts) -> Verdict:
    if facts.groups.version == 1:
        return "needs", "control groups of version 2"
    return _key("pods.memoryQos", True)(facts)


def _eviction(facts: FeatureFacts) -> Verdict:
    mode = facts.keys.get("pods.eviction.mode")
    if mode == "off":
        return "off", "pods.eviction.mode: auto"
    return (
        ("off", "pods.eviction.mode: on, for a kubelet does it here") if mode == "auto" and facts.has_kubelet else WORKS
    )


def _flowtable(facts: FeatureFacts) -> Verdict:
    if facts.keys.get("services.backend") == "iptables":
        return "needs", "services.backend: nftables"
    return WORKS if facts.keys.get("services.flowtable.devices") else ("off", "services.flowtable.devices: [NAME, …]")


def _nftables(facts: FeatureFacts) -> Verdict:
    return ("off", "services.backend: nftables") if facts.keys.get("services.backend") == "iptables" else WORKS


def _localhost(facts: FeatureFacts) -> Verdict:
    given = facts.keys.get("services.nodePortAddresses")
    is_on = isinstance(given, list | tuple) and "localhost" in given
    return WORKS if is_on else ("off", "services.nodePortAddresses: [primary, localhost]")


def _checkpoints(facts: FeatureFacts) -> Verdict:
    label = facts.runtime.label
    restores = "can restore one" if facts.runtime.restores_checkpoints else "cannot restore one"
    return "partly", f"{label} says when asked for one whether it can; it {restores}"


def _tracing(facts: FeatureFacts) -> Verdict:
    if not facts.can_trace:
        return "needs", f"the extra otel, by: {install_line()}"
    return WORKS if facts.keys.get(ENDPOINT) else ("off", f"{ENDPOINT}: http://HOST:4317")


GROUP_POLICY = _runtime_with(lambda facts: facts.runtime.has_group_policy, "containerd 2.0 or CRI-O 1.31")
IMAGE_VOLUMES = _runtime_with(lambda facts: facts.runtime.has_image_volumes, "containerd 2.1 or CRI-O 1.31")
READ_ONLY = _runtime_with(lambda facts: "" in facts.runtime.recursive_read_only, "containerd 2.0 or CRI-O 1.30")

ENTRIES = (
    Entry(
        "127",
        "user namespaces",
        "pods",
        "a runtime whose handler has them; Linux 6.3 for volumes in memory",
        _user_namespaces,
        how="where the runtime has them",
        beside="passed on",
    ),
    Entry(
        "277",
        "ephemeral containers, by `kepctl debug`",
        "pods",
        how="by `kepctl debug`, not in manifests",
        beside="passed on",
    ),
    Entry(
        "281",
        "configuration that changes while the node works",
        "",
        how="by a reload and by `kepctl config set`",
        beside="the same",
        page="reference.md",
    ),
    Entry("536", "order of topology keys, by annotation", "services", how="as the annotation `kepd.dev/topology-keys`"),
    Entry(
        "647, k/k#119949",
        "traces of pods and of a kubelet's calls, exemplars in metrics",
        "pods|proxy",
        "the extra `otel`, and `telemetry.tracing.endpoint`",
        _tracing,
        how="starts and ends of pods",
        beside="calls, below the kubelet's own spans",
        page="tracing.md",
    ),
    Entry("753", "sidecar containers", "pods|proxy", beside="by annotation"),
    Entry(
        "1287, 2837",
        "resize in place, resources of the whole pod",
        "pods",
        how="yes, also both at once",
        beside="the kubelet's own",
    ),
    Entry("2079", "ranges of ports in NetworkPolicies, `endPort`", "policies", page="policies.md"),
    Entry("1435", "TCP and UDP in one load balancer", "services"),
    Entry("1669", "terminating endpoints", "services", how="used as a last resort"),
    Entry(
        "1672",
        "conditions ready, serving, terminating of endpoints",
        "services",
        how="followed; made for pods from files",
    ),
    Entry("1860", "ipMode of load balancers", "services"),
    Entry("2000, 2712", "graceful shutdown of the node, by priority", "pods", beside="the kubelet's own"),
    Entry(
        "2008",
        "checkpoint of a container, and restore",
        "pods",
        "containerd 2.0 or CRI-O 1.25, with CRIU; to restore, containerd 2.1 to 2.3",
        _checkpoints,
        how="`kepctl checkpoint`, `restore`",
        beside="passed on",
    ),
    Entry("2086", "internalTrafficPolicy", "services"),
    Entry(
        "2258",
        "logs of the node, by `kepctl node-logs`",
        "",
        "for units `journalctl` beside kepd",
        _node_logs,
        beside="the same",
        page="observation.md",
    ),
    Entry(
        "2400",
        "swap",
        "pods",
        "swap that control groups can limit, and `pods.swap: LimitedSwap`",
        _swap,
        how="off unless configured",
        beside="the kubelet's own",
    ),
    Entry(
        "2413",
        "seccomp by default",
        "pods",
        "`pods.defaultSeccomp: RuntimeDefault`",
        _key("pods.defaultSeccomp", "RuntimeDefault"),
        how="off unless configured",
        beside="the kubelet's own",
    ),
    Entry(
        "2433, 3015, 4444",
        "topology hints, traffic distribution",
        "services",
        how="followed; on a bare node computed",
        page="topology.md",
    ),
    Entry("2535", "images only with credentials that may pull them", "images", beside="the kubelet's own"),
    Entry(
        "2570",
        "memory QoS",
        "pods",
        "control groups of version 2, and `pods.memoryQos: true`",
        _memory_qos,
        how="off unless configured",
        beside="the kubelet's own",
    ),
    Entry("2727, 2238, 1972", "gRPC probes, their grace, limits of exec probes", "pods", beside="the kubelet's own"),
    Entry(
        "2872, 3582",
        "a container whose end ends the pod, exit codes that do",
        "pods",
        how="by `kepd.dev/keystone` and by restart rules",
    ),
    Entry(
        "3063, 4381",
        "dynamic resource allocation",
        "devices",
        how="from files; beside a kubelet kepd is a driver",
        beside="passed on",
    ),
    Entry("3162", "commands at the end of a device's use", "devices", how="by commands of the configuration"),
    Entry("3458, 3836", "health of the node for load balancers", "services"),
    Entry(
        "3542",
        "progress of a pull",
        "images",
        "containerd for bytes; other runtimes show stages",
        how="`kepctl get pulls`",
        beside="yes",
    ),
    Entry(
        "3573",
        "device plugins",
        "devices",
        "`devices.plugins.enabled: true`",
        _key("devices.plugins.enabled", True),
        beside="passed on",
    ),
    Entry(
        "3619",
        "strict policy for supplementary groups",
        "pods",
        "a runtime that has it",
        GROUP_POLICY,
        beside="passed on",
    ),
    Entry(
        "3673",
        "limit on parallel image pulls",
        "images|proxy",
        how="with an order by pod, priority and size",
        beside="yes",
    ),
    Entry("3721, 4319", "environment from a file of a volume", "pods", beside="the kubelet's own"),
    Entry(
        "3857", "recursive read-only mounts", "pods", "a runtime whose handler has them", READ_ONLY, beside="passed on"
    ),
    Entry(
        "3866",
        "Services in nftables",
        "services",
        "`services.backend: nftables`",
        _nftables,
        how="as elements instead of chains; iptables too",
    ),
    Entry("3140", "time zones of CronJobs, `timeZone`", "pods", how="and CronJobs", page="workloads.md"),
    Entry("961", "StatefulSets with `maxUnavailable`", "pods", how="from files", page="workloads.md#statefulsets"),
    Entry(
        "3008",
        "classes of caches and of block I/O",
        "pods",
        "a runtime that is configured for them",
        how="by the pod's annotations, shown by `describe`",
        beside="passed on",
        page="planes/pods.md",
    ),
    Entry("3017", "unready pods in a disruption budget", "pods", page="workloads.md#disruption-budgets"),
    Entry(
        "4212",
        "maintenance of a node with a reason, a choice and replacements",
        "pods",
        how="as `kepctl drain`, without an API object",
        page="workloads.md#maintenance",
    ),
    Entry("3329", "what failures of a Job's pods mean, `podFailurePolicy`", "pods", page="workloads.md"),
    Entry("3939", "when a Job makes the next pod, `podReplacementPolicy`", "pods", page="workloads.md"),
    Entry("3960, 4818", "preStop and postStart sleep", "pods|proxy", how="zero seconds too", beside="by annotation"),
    Entry(
        "4191", "images on a file system of their own", "images", how="in the collection of images", beside="the same"
    ),
    Entry(
        "4205",
        "pressure stall figures",
        "",
        "a kernel that counts them",
        _pressure,
        how="read for the limit of pulls, shown as figures",
        beside="the same",
        page="observation.md",
    ),
    Entry(
        "4210", "images that are too old go", "images", how="in the collection of images", beside="the kubelet's own"
    ),
    Entry("4216", "images by runtime handler", "images", beside="passed on"),
    Entry("4603", "restart pauses", "pods", how="the kubelet's curve", beside="the kubelet's own"),
    Entry(
        "4639",
        "image volumes",
        "pods",
        "containerd 2.1 or CRI-O 1.31",
        IMAGE_VOLUMES,
        how="where the runtime has them",
        beside="passed on",
    ),
    Entry(
        "4960",
        "stop signals",
        "pods",
        "a runtime that returns one; else that of the image is used",
        how="where the runtime has it",
        beside="passed on",
    ),
    Entry(
        "4963",
        "flow table",
        "services",
        "nftables, and `services.flowtable.devices`",
        _flowtable,
        how="on demand; not measured on hardware",
        page="services.md#flows-that-skip-the-rules",
    ),
    Entry("5307, 5532", "restart rules, restart of all containers", "pods", beside="the kubelet's own"),
    Entry(
        "6032",
        "node ports on loopback with nftables",
        "services",
        "`localhost` in `services.nodePortAddresses`",
        _localhost,
        how="by a relay for TCP",
        page="services.md#node-ports-on-localhost",
    ),
    Entry(
        "", "eviction of pods when the node runs short", "pods", "no kubelet, or `pods.eviction.mode: on`", _eviction
    ),
)
KEYS = (
    "pods.swap", "pods.memoryQos", "pods.defaultSeccomp", "pods.eviction.mode", "devices.plugins.enabled",
    "telemetry.nodeLogs.enabled",
    "services.backend", "services.flowtable.devices", "services.nodePortAddresses", ENDPOINT,
)  # fmt: skip
"""Values of the configuration that rows depend on."""
