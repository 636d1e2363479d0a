# SPDX-License-Identifier: Apache-2.0
"""Words that people meet and have to look up: reasons of events, annotations, with what they mean.

Owns: their meanings, for docs/reference.md. tests/test_vocabulary.py holds both lists against the code: a word that the
code uses is here, and one that it does not use is not.
"""

from dataclasses import replace

import msgspec
from prometheus_client.core import Metric

from agent.api.metrics import Metrics
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.host.tracing import span_family
from agent.images.run.metrics import Gauges, ImageMetrics
from agent.objects.run.follower import follow_manifests
from agent.observe.run.file_systems import file_system_families
from agent.observe.run.metrics import ObserveMetrics
from agent.pods.attach.kubelet_names import kubelet_families
from agent.pods.run.metrics import PodMetrics
from agent.policies.run.metrics import PolicyMetrics
from agent.proxy.run.figures import Figures
from agent.services.attach.assembly import ServiceParts, wire_services
from agent.services.attach.manifests import SERVICE_READING
from kepd_devices.run.metrics import DeviceMetrics
from kepd_dns.run.metrics import UNKNOWN, PlaneFigures, dns_metrics
from kepd_dns.run.metrics_compat import coredns_metrics

# What says by its name what happened has no text.
EVENTS = {
    "AddressConflict": "A Service's address and port belong to another Service, which keeps them.",
    "AffinityCrowded": "A Service has too many clients for the map that Services share, or got no map of its own.",
    "BackOff": "A container or a pull waits before the next attempt.",
    "BackendConflict": "Another program has rules for Services; kepd waits until it has gone.",
    "CDINotSupported": "The runtime cannot do what a CDI file asks, or no file has the id.",
    "ClaimAllocated": "",
    "ClaimError": "A claim, its class or record has a fault, or a driver does not take devices back.",
    "ClaimOverSize": "",
    "ClaimReleased": "Nothing of a claim is held any more; its devices are free.",
    "ClaimUnallocatable": "No devices fit a claim now, or it is not there; the pod waits.",
    "Completed": "A Job has as many successes as it wants.",
    "Created": "",
    "ContainerOOM": "The kernel killed something in a container for want of memory.",
    "CredentialProviderFailed": "A credential plugin gave no usable answer.",
    "DeadlineExceeded": "The pod was active longer than `activeDeadlineSeconds`, so kepd ends it.",
    "DeviceMoved": "A claim's device is another node below /dev now; running containers have the old one.",
    "DeviceQuarantined": "A device could not be reset and is given to nobody.",
    "DeviceResetFailed": "The reset command of a device failed, with all retries.",
    "DNSConfigForming": "Name servers or search domains were left out: resolvers do not accept so many.",
    "DeviceUnhealthy": "A pod's device is unhealthy; the pod goes on.",
    "DriverAway": "No socket of a driver is left; what its claims have stays, and new ones wait.",
    "DriverRefused": "A driver that asked to be registered was not; the event says why.",
    "DnsConflict": "Another program has an address or port of kepd-dns, which is silent there.",
    "DnsFallback": "kepd-dns does not answer; beside a cluster its DNS is asked instead.",
    "DnsFirewalled": "A chain of another program drops questions to kepd-dns, unless a rule there accepts them.",
    "DnsLoop": "A server for names leads back to kepd-dns; it is left out.",
    "DnsRecovered": "",
    "DnsUpstreamDown": "A server for names does not answer; others are asked.",
    "DriverRegistered": "",
    "ErrImageNeverPull": "The image is not on the node and the policy is Never.",
    "Evicted": "The node ran short, or the pod used more disk than it may; the pod ended.",
    "EvictionThrashing": "Three evictions within an hour; the pod does not begin anew by itself.",
    "EvictionThresholdMet": "The node is short of something; kepd makes room, and may end a pod.",
    "ExceededQuota": "",
    "ExternalIPRefused": "A Service wants an address that it may not have; its other addresses stay.",
    "Failed": "A container could not be started, or an image could not be pulled.",
    "FailedBinding": "",
    "FailedCreate": "The Job of a CronJob cannot be made now.",
    "FailedCreatePodContainer": "The pod's control group or its limits could not be set up; the pod waits.",
    "FailedCreatePodSandBox": "The runtime did not create the pod's sandbox.",
    "FailedKillPod": "The runtime did not stop a container or a sandbox; kepd tries again.",
    "FailedMount": "",
    "FailedPostStartHook": "A postStart hook failed, so kepd ends its container.",
    "FlowtableIncomplete": "Some devices cannot let flows of Services skip the rules; the others do.",
    "FlowtableRefused": "Flows of Services do not skip the rules: the kernel cannot, or refused it.",
    "FlowtableSkips": "Chains of others that packets of flows that skip the rules no longer pass.",
    "FailedPrepareDynamicResources": "A driver did not prepare a claim; kepd tries again.",
    "ForwardingDropped": "Another program's chain drops what the node forwards; with nftables kepd cannot accept it.",
    "JobAlreadyActive": "A Job of the CronJob still runs, and `concurrencyPolicy` is Forbid.",
    "LimitRange": "",
    "MemoryShort": "kepd is near its memory limit: it drops history and refuses lists to all but root.",
    "ClockWentBack": "The node's clock was set back; what was dated later counts as now, and nothing waits longer.",
    "ClockWasAhead": "The clock was set back by hours; times of a CronJob that it used up count again from now on.",
    "MissSchedule": "A start of a CronJob was missed beyond `startingDeadlineSeconds`.",
    "PostStartHookInterrupted": "A restart of kepd cut off a postStart hook; it counts as done.",
    "FailedPreStopHook": "A preStop hook failed or did not end in time; the stop continues.",
    "FailedSync": "The link to a container's log could not be created.",
    "FailedToRetrieveImagePullSecret": "A pull secret is missing or unreadable; the pull is tried without it.",
    "FailedToStartServiceHealthcheck": "Another program uses the health check port of a Service on this node.",
    "EndpointsJudged": "No API server answers, and checks find dead endpoints, which give way to living ones.",
    "FailedValidation": "A manifest is not valid; its previous version keeps running.",
    "FilesystemFailed": "A file system of images is mounted read-only; nothing is collected there.",
    "FreeDiskSpaceFailed": "Images were removed, but there is still too little disk space.",
    "GracePeriodOver": "A container was signalled before those that it serves had ended: the grace is over.",
    "ImageGCFailed": "The collection of images failed several times in a row.",
    "InspectFailed": "The name of an image is not valid, or the runtime could not look it up.",
    "InvalidAnnotation": "An annotation `kepd.dev/…` has an invalid value; it is ignored.",
    "InvalidDiskCapacity": "The runtime reports a capacity of zero for the file system of images.",
    "InvalidEndpointSlice": "An EndpointSlice has faults; the event names them, and the rest is used.",
    "InvalidService": "A Service has faults; the event names them.",
    "Killing": "",
    "LifecycleHTTPFallback": "A hook asked by HTTPS got an answer in plain HTTP.",
    "ListDoubted": "A list of the API server lacks most of what was there; kepd asks again before it counts.",
    "LocalhostPortTaken": "Another program has the node port of a Service on localhost; kepd tries again.",
    "ManifestDuplicate": "Two manifests name the same object; the first one counts.",
    "ManifestStale": "A manifest became invalid or unreadable; its pod runs on as before.",
    "MissingClusterDNS": "A pod on the node's network asks for cluster DNS, but `pods.clusterDNS` is empty.",
    "NetworkPolicyNotReady": "The kernel does not hold the NetworkPolicies of a pod, whose containers wait.",
    "NetworkNotReady": "The runtime has no pod network yet.",
    "NodeAffinity": "The pod's node selector or affinity excludes this node.",
    "DisruptionForced": "A pod ended although a PodDisruptionBudget would keep it: by force, or the node went down.",
    "NoReplacement": "A drain with --surge found no room for a replacement; the pods end without one.",
    "NodeNotSchedulable": "Somebody cordoned or drains the node; the message says who and why.",
    "NodeSchedulable": "The node takes pods again.",
    "NodeDrained": "The node is cordoned or drained; the pod waits for `kepctl uncordon`.",
    "NodePorts": "Another pod has the host port; the pod, or its edit, waits.",
    "NodeUnderPressure": "The node is short of something, so pods that would add to it wait.",
    "NodeShutdown": "The node is shutting down and accepts no new pods.",
    "OutOfcpu": "Too little CPU is left; the pod, or its edit, waits.",
    "OutOfmemory": "Too little memory is left; the pod, or its edit, waits.",
    "OutOfpods": "`pods.maxPods` pods are on the node already; the pod waits.",
    "Preempting": "The pod ends for a critical pod, and begins anew when there is room.",
    "PrefetchRefused": "The node cannot fetch content without its image; the event names why.",
    "PrefetchSkipped": "An image is not fetched ahead now; the event names why.",
    "PrefetchThrashing": "A prefetched image was removed for disk space several times; kepd no longer prefetches it.",
    "ProbeWarning": "A probe got a redirect that it does not follow; this counts as success.",
    "ProvisioningFailed": "",
    "PullProgress": "",
    "PullQueued": "",
    "Pulled": "",
    "Pulling": "",
    "ResizeCompleted": "",
    "ResizeDeferred": "The node has no room for the new resources now; kepd tries again.",
    "ResizeError": "The runtime refused to change resources of a running container.",
    "ResizeInfeasible": "The node can never grant the new resources, or they would change the pod's QoS class.",
    "ResizeStarted": "",
    "RestartAllContainers": "A rule of a container's restart policy restarts the whole pod in place.",
    "Restored": "A container began from a checkpoint, in the place of its image.",
    "RulesRepaired": "Another program changed rules of kepd; kepd restored them.",
    "SandboxChanged": "The pod's sandbox died or no longer fits; the pod gets a new one.",
    "SawCompletedJob": "A Job of a CronJob is over.",
    "SeriesDropped": "/metrics/cadvisor would be too large; the event names what is left out.",
    "ServerReturned": "An API server gives news again; what it says counts.",
    "ServersSilent": "No API server gives news for `services.outageAfter`; the event says why, and what is done.",
    "ServiceQuarantined": "The kernel refused the rules of this Service; all others are in force.",
    "ServiceRoomShort": "Services have 80 % of their room; without room the newest are not programmed.",
    "ServiceTooLarge": "There is no room for a Service, which is not programmed.",
    "SidecarRestartedWhileTerminating": "A sidecar ended before its turn and was restarted for its pod.",
    "SidecarsEnded": "The proxy stopped the sidecars of a pod whose main containers are done.",
    "PoolInvalid": "Slices of a pool contradict each other; it gives no devices.",
    "SlicesDelayed": "A driver keeps changing slices of a pool; the newest count a little later.",
    "StartGateOpened": "The proxy let a container start although its sidecars were not ready in time.",
    "Started": "",
    "SnapshotNotWritten": "The disk takes no snapshot of Services; the event says why, and kepd tries again.",
    "SnapshotRefused": "The snapshot of Services is damaged, too large, late or of others; the event says which.",
    "Starting": "A plane is starting.",
    "StopSignalIgnored": "The runtime does not know `lifecycle.stopSignal`; the image's signal is used.",
    "StopHoldExpired": "The pod's time to stop was over before this sidecar's turn came.",
    "SuccessfulCreate": "A pod was made for a Deployment, DaemonSet or Job, or a Job for a CronJob.",
    "SuccessfulDelete": "A pod of a Deployment, DaemonSet or Job was ended, or a Job of a CronJob.",
    "SystemOOM": "The kernel killed something outside of pods for want of memory.",
    "TerminationCapped": "More connections were to end than a minute may have; the rest waits.",
    "TerminationRefused": "Connections to endpoints that are gone stay, because ending them would make them hang.",
    "TooManyMissedTimes": "A CronJob missed more than 100 starts; the latest alone is made up for.",
    "UnexpectedAdmissionError": "The pod network maps no host ports; kepd tries again.",
    "Unhealthy": "A probe failed.",
    "VolumeFailedDelete": "",
    "WaitForFirstConsumer": "",
}

ANNOTATIONS = (
    ("directory", "", "StorageClass, as provisioner", "Claims get directories."),
    (
        "values-left-out",
        "anything",
        "any object, by kepd itself",
        "It is shown without its values; a text that says so is never written.",
    ),
    ("applied-by", "name of a manager", "any object, by the door", "Who applied last, if that was not kubectl."),
    ("sidecars", "container names in start order", "Pod, through the proxy", "The sidecars."),
    ("mains", "container names", "Pod, through the proxy", "The main containers."),
    (
        "ready.NAME",
        "`started`, `exec:[json]`, `tcp:PORT`, `http:PORT/path`",
        "Pod, through the proxy",
        "When a sidecar counts as started.",
    ),
    ("start-timeout", "duration", "Pod, through the proxy", "How long a container waits for its sidecars."),
    (
        "start-policy",
        "`open` or `strict`",
        "Pod, through the proxy",
        "After that, `open` starts the container, `strict` fails it.",
    ),
    ("prestop-sleep.NAME", "duration", "Pod, through the proxy", "A pause before the container gets its stop signal."),
    (
        "job-end",
        "`success` or `any`",
        "Pod, through the proxy",
        "Sidecars stop once the main containers have ended this way.",
    ),
    (
        "depends-on.NAME",
        "list of `container`, `container=started`, `=ready`, `=completed`",
        "Pod from a manifest",
        "What a container waits for; a circle makes the manifest invalid.",
    ),
    ("grace.NAME", "duration", "Pod from a manifest", "Longest time between a container's stop signal and its kill."),
    ("sidecar-reserve", "duration", "Pod from a manifest", "Part of the grace period reserved for sidecars."),
    ("prestop-at-turn", "`true`", "Pod from a manifest", "A sidecar's preStop hook runs when its turn to stop comes."),
    (
        "keystone",
        "container name",
        "Pod from a manifest",
        "The pod ends when this container exits, with its exit code.",
    ),
    ("poststart-timeout.NAME", "duration", "Pod from a manifest", "A timeout for the hook."),
    ("prestop-timeout.NAME", "duration", "Pod from a manifest", "A timeout for the hook."),
    ("max-restarts", "number, or `N/DURATION`", "Pod from a manifest", "The pod fails after this many restarts."),
    (
        "cpu-burst.NAME",
        "duration, at most the CPU limit's part of 100ms",
        "Pod from a manifest",
        "CPU time that the container may save up while idle and use beyond its limit.",
    ),
    (
        "restore.NAME",
        "name of a checkpoint",
        "Pod from a manifest",
        "The container begins from it, once; `kepctl restore` writes it.",
    ),
    (
        "fallback-to-present",
        "`true`",
        "Pod",
        "With policy Always, use the present image if the registry is away.",
    ),
    (
        "topology-keys",
        "label keys, the last may be `*`",
        "Service",
        "Endpoints that share these labels with the node come first.",
    ),
    ("internal-policy", "`prefer-local`", "Service", "Endpoints of this node first, else all."),
    ("topology-min-endpoints", "number from 1", "Service", "A label key with fewer endpoints is passed over."),
    ("endpoint-weights", "`IP=W`, `node:NAME=W`, 0 to 256", "Service", "Each endpoint's share of the traffic."),
    ("no-local-verdict", "`reject` or `drop`", "Service", "What happens to traffic without a local endpoint."),
    ("affinity-clients", "64 to 65536", "Service", "So many clients of each port are remembered, in its own map."),
    (
        "no-endpoints",
        "`pass` or `use-unready`",
        "Service",
        "Without endpoints, traffic passes unchanged instead of being rejected; or goes to all that are not ready.",
    ),
    (
        "hints-overload-threshold",
        "0 to 1",
        "Service from a manifest",
        "Overload per endpoint above which no hints are given.",
    ),
    (
        "balance",
        "`maglev` or `maglev,source`",
        "Service",
        "A hash chooses the endpoint, the same on every node: of addresses and ports, or of the client's address.",
    ),
    ("affinity-scope", "`service`", "Service", "Not implemented; reported."),
    (
        "source-ranges-everywhere",
        "`true` or `false`",
        "Service",
        "`loadBalancerSourceRanges` hold for node ports and external IPs too.",
    ),
    (
        "terminate-established",
        "`never`, `on-endpoint-removal`, `on-endpoint-removal,DURATION`",
        "Service",
        "TCP connections end once their endpoint has been in no EndpointSlice for this time.",
    ),
    ("instance", "id", "sandbox; set by kepd", "Which kepd owns it; kepd touches no other sandbox."),
    ("manifest-hash", "hash", "sandbox; set by kepd", "Which manifest it was made from."),
    ("manifest-file", "path", "sandbox; set by kepd", "Path of that manifest."),
    ("control-group", "path", "sandbox; set by kepd", "Control group in which the pod started."),
    ("name-servers", "addresses", "sandbox; set by kepd", "Name servers that the pod was made with."),
    ("ephemeral-container", "JSON", "container; set by kepd", "`kepctl debug` added it; its input and terminal."),
    ("pinned-by", "`kepd`", "containerd image; set by kepd", "kepd pinned it and may unpin it."),
    ("services", "controller", "Event; set by kepd", "Who wrote an event of the API server."),
    (
        "not-ready",
        "taint, effect `NoSchedule`",
        "Node",
        "kepd removes it once Services work, and may put it on while they do not.",
    ),
)
"""Name behind `kepd.dev/`, value, on what, meaning."""


def names_metrics() -> list[Metric]:
    """Of kepd-dns, before it has told its figures."""
    shown = PlaneFigures(live={}, fallbacks=0, strangers=0, status=UNKNOWN)
    return [*dns_metrics(shown), *coredns_metrics(shown)]


async def metrics() -> list[Metric]:
    """Every family that a daemon can show, with nothing counted. Some figures are of the event loop it runs in."""
    plain = Configuration()
    shown = replace(
        plain,
        telemetry=replace(plain.telemetry, per_service=True),
        services=replace(plain.services, counters=replace(plain.services.counters, export=True)),
    )
    manifests = follow_manifests(Configuration).source(lambda: SERVICE_READING)
    outside = ServiceParts(clock=SystemClock(), tell=lambda _: None, manifests=manifests)
    services = wire_services(shown, outside)
    telling = replace(plain, services=replace(plain.services, write_events=True, outage="judge", source="kubernetes"))
    beside = wire_services(telling, msgspec.structs.replace(outside, kube=lambda: None))
    chains = wire_services(replace(plain, services=replace(plain.services, backend="iptables")), outside)
    found = [
        *Metrics("0", tuple).collect(),
        *ImageMetrics().families(Gauges()),
        *ImageMetrics().kubelet_families(),
        *PodMetrics().families(),
        *kubelet_families(PodMetrics(), (), 0),
        *DeviceMetrics().families(),
        *PolicyMetrics().families(),
        *ObserveMetrics().families(),
        *file_system_families(()),
        span_family(0, 0, 0),
        *Figures().families((), 0.0, 0),
        *names_metrics(),
        *services.families(),
        *beside.families(),
        *services.compatible(),
        *chains.compatible(),
    ]
    return list({one.name: one for one in found}.values())
