# SPDX-License-Identifier: Apache-2.0
"""Words that people meet and have to look up: reasons of events, annotations, with what they mean.

Owns: their meanings, for docs/reference.md. tests/test_vocabulary.py holds both lists against the code: a word that the
code uses is here, and one that it does not use is not.
"""

from dataclasses import replace

from prometheus_client.core import Metric

from agent.api.metrics import Metrics
from agent.config.document import Configuration
from agent.daemon.services.wiring import ServiceParts, wire_services
from agent.drivers.clock.driver import SystemClock
from agent.images.run.metrics import Gauges, ImageMetrics
from agent.pods.run.metrics import PodMetrics
from agent.proxy.run.figures import Figures

__all__ = ["ANNOTATIONS", "EVENTS", "metrics"]

EVENTS = {
    "AddressConflict": "A Service's address and port belong to another Service, which keeps them.",
    "BackOff": "A container or a pull waits before it is tried again.",
    "BackendConflict": "Another program writes rules for Services; kepd writes none until it has gone.",
    "Created": "A container was made.",
    "CredentialProviderFailed": "A credential plugin gave no answer that could be used.",
    "DeadlineExceeded": "The pod was active longer than `activeDeadlineSeconds`; it is ended.",
    "DNSConfigForming": "Name servers or search domains were left out: there are more than resolvers take.",
    "ErrImageNeverPull": "The image is not on the node and the policy is Never.",
    "Evicted": "A volume grew past its sizeLimit, so the pod was ended.",
    "Failed": "A container could not be started, or an image could not be had.",
    "FailedCreatePodContainer": "The pod's control group or its limits could not be made; the pod waits.",
    "FailedCreatePodSandBox": "The runtime did not make the pod's sandbox.",
    "FailedKillPod": "The runtime did not stop a container or a sandbox; it is tried again.",
    "FailedMount": "A volume could not be prepared.",
    "FailedPostStartHook": "A postStart hook failed; its container is ended.",
    "FailedPreStopHook": "A preStop hook failed or did not end in time; the stop goes on.",
    "FailedSync": "The link to a container's log could not be made.",
    "FailedToRetrieveImagePullSecret": "A pull secret is not there or cannot be read; the pull is tried without it.",
    "FailedToStartServiceHealthcheck": "The health port of a Service is taken on this node.",
    "FailedValidation": "A manifest is not valid; what ran before goes on.",
    "FreeDiskSpaceFailed": "Images were removed and there is still too little space.",
    "ImageGCFailed": "Images could not be collected several times in turn.",
    "InspectFailed": "The name of an image is not valid, or the runtime could not look for it.",
    "InvalidAnnotation": "An annotation `kepd.dev/…` says nothing that is understood; it is ignored.",
    "InvalidDiskCapacity": "The runtime tells a capacity of zero for the file system of images.",
    "InvalidEndpointSlice": "An EndpointSlice has faults; they are told, and the rest of it is used.",
    "InvalidService": "A Service has faults; they are told.",
    "Killing": "A container is being ended.",
    "LifecycleHTTPFallback": "A hook was to be asked by HTTPS and was answered in plain HTTP.",
    "ManifestDuplicate": "Two manifests name the same object; the first one counts.",
    "ManifestStale": "A manifest became invalid or unreadable; its pod runs on as before.",
    "MissingClusterDNS": "A pod asks for cluster DNS and `pods.clusterDNS` is empty; it gets the node's.",
    "NetworkNotReady": "The runtime has no network for pods yet.",
    "NodeAffinity": "The pod's node selector or affinity names another node.",
    "NodeShutdown": "The node is going down, so it takes no new pods.",
    "PrefetchThrashing": "A prefetched image was removed for space several times; it is no longer fetched ahead.",
    "ProbeWarning": "A probe was answered by a redirect that it does not follow; it counts as success.",
    "PullProgress": "How far a long pull is.",
    "PullQueued": "A pull waits for its turn.",
    "Pulled": "An image is there.",
    "Pulling": "A pull has begun.",
    "ResizeCompleted": "Resources of a running container have been changed.",
    "ResizeDeferred": "The node has no room for the other resources now; it is tried again.",
    "ResizeError": "The runtime refused to change resources of a running container.",
    "ResizeInfeasible": "The node can never grant the other resources, or they would change the pod's QoS class.",
    "ResizeStarted": "Resources of a running container are being changed.",
    "RestartAllContainers": "A rule of a container's restart policy restarts the whole pod in place.",
    "RulesRepaired": "Rules of kepd were changed by somebody else and were put right.",
    "SandboxChanged": "The pod's sandbox died or no longer fits; the pod gets a new one.",
    "ServiceQuarantined": "The kernel refused the rules of this Service; all others are in force.",
    "SidecarRestartedWhileTerminating": "A sidecar ended before its turn and was started again for those it serves.",
    "SidecarsEnded": "The proxy ended the sidecars of a pod whose work is done.",
    "StartGateOpened": "The proxy let a container start although what it waited for did not come.",
    "Started": "A container was started.",
    "Starting": "A plane begins its work.",
    "StopSignalIgnored": "The runtime does not know `lifecycle.stopSignal`; the image's signal is used.",
    "StopHoldExpired": "A pod's time to stop was over before it was this sidecar's turn.",
    "Unhealthy": "A probe failed.",
}

ANNOTATIONS = (
    ("sidecars", "container names in start order", "Pod, through the proxy", "Which containers are sidecars."),
    ("mains", "container names", "Pod, through the proxy", "Which containers do the work."),
    (
        "ready.NAME",
        "`started`, `exec:[json]`, `tcp:PORT`, `http:PORT/path`",
        "Pod, through the proxy",
        "When a sidecar counts as started.",
    ),
    ("start-timeout", "duration", "Pod, through the proxy", "How long a container is held for its sidecars."),
    ("start-policy", "`open` or `strict`", "Pod, through the proxy", "Whether it then starts or fails."),
    ("prestop-sleep.NAME", "duration", "Pod, through the proxy", "A pause before the container is told to stop."),
    ("job-end", "`success` or `any`", "Pod, through the proxy", "Sidecars end when the mains have ended so."),
    (
        "depends-on.NAME",
        "list of `container`, `container=started`, `=ready`, `=completed`",
        "Pod from a manifest",
        "What a container waits for.",
    ),
    ("grace.NAME", "duration", "Pod from a manifest", "Longest time between a container's signal and its kill."),
    ("sidecar-reserve", "duration", "Pod from a manifest", "Time of the budget that mains leave to sidecars."),
    ("prestop-at-turn", "`true`", "Pod from a manifest", "A sidecar's preStop hook runs when it is its turn to stop."),
    ("keystone", "container name", "Pod from a manifest", "Its exit ends the pod, with its code."),
    ("poststart-timeout.NAME", "duration", "Pod from a manifest", "A limit for the hook."),
    ("prestop-timeout.NAME", "duration", "Pod from a manifest", "A limit for the hook."),
    ("max-restarts", "number, or `N/DURATION`", "Pod from a manifest", "After so many the pod has failed."),
    (
        "fallback-to-present",
        "`true`",
        "Pod",
        "With policy Always, what is on the node serves when the registry is away.",
    ),
    ("topology-keys", "label keys, the last may be `*`", "Service", "Endpoints nearest by these labels first."),
    ("internal-policy", "`prefer-local`", "Service", "Endpoints of this node first, then all."),
    ("topology-min-endpoints", "number from 1", "Service", "Fewer than that are too few to keep to."),
    ("endpoint-weights", "`IP=W`, `node:NAME=W`, 0 to 256", "Service", "How much of the traffic goes where."),
    ("no-local-verdict", "`reject` or `drop`", "Service", "What becomes of traffic that finds no local endpoint."),
    ("no-endpoints", "`pass`", "Service", "Traffic without endpoints goes its way instead of being refused."),
    ("hints-overload-threshold", "0 to 1", "Service from a manifest", "When hints for zones are left out."),
    ("balance", "`maglev`", "Service", "Not acted on yet; it is told."),
    ("affinity-scope", "`service`", "Service", "Not acted on yet; it is told."),
    ("source-ranges-everywhere", "`true`", "Service", "Not acted on yet; it is told."),
    ("terminate-established", "`on-endpoint-removal`", "Service", "Not acted on yet; it is told."),
    ("instance", "id", "sandbox; set by kepd", "Which kepd it belongs to; others are not touched."),
    ("manifest-hash", "hash", "sandbox; set by kepd", "Which manifest it was made from."),
    ("manifest-file", "path", "sandbox; set by kepd", "Where that manifest lay."),
    ("control-group", "path", "sandbox; set by kepd", "Which control group the pod began in."),
    ("pinned-by", "`kepd`", "containerd image; set by kepd", "kepd keeps it and may let it go."),
    ("not-ready", "taint, effect `NoSchedule`", "Node", "kepd takes it off when Services answer."),
)
"""Name behind `kepd.dev/`, value, on what, meaning."""


async def metrics() -> list[Metric]:
    """Every family that a daemon can show, with nothing counted. Some figures are of the event loop it runs in."""
    plain = Configuration()
    shown = replace(
        plain,
        telemetry=replace(plain.telemetry, per_service=True),
        services=replace(plain.services, counters=replace(plain.services.counters, export=True)),
    )
    outside = ServiceParts(clock=SystemClock(), tell=lambda _: None)
    services = wire_services(shown, outside)
    beside = wire_services(plain, replace(outside, kube=lambda: None))
    chains = wire_services(replace(plain, services=replace(plain.services, backend="iptables")), outside)
    found = [
        *Metrics("0", tuple).collect(),
        *ImageMetrics().families(Gauges()),
        *PodMetrics().families(),
        *Figures().families((), 0.0, 0),
        *services.families(),
        *beside.families(),
        *services.compatible(),
        *chains.compatible(),
    ]
    return list({one.name: one for one in found}.values())
