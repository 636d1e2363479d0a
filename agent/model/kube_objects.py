# SPDX-License-Identifier: Apache-2.0
"""The API objects that planes read, with the fields they read and no others.

A field that is not declared here is skipped by the decoder without being built: managedFields and last-applied
annotations cost nothing.

Never: applies defaults or judges values. A list that is absent and one that is `null` are both None or empty, as the
API server sends either. Labels and annotations are named one by one where only some matter.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

Words = tuple[str, ...] | None


class Struct(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What all of them are."""


class ObjectMeta(Struct, frozen=True, gc=False):
    """Identity; those without a namespace have an empty one."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class ServiceLabels(msgspec.Struct, frozen=True, gc=False):
    proxy_name: str | None = msgspec.field(default=None, name="service.kubernetes.io/service-proxy-name")


class ServiceAnnotations(msgspec.Struct, frozen=True, gc=False):
    """Those that the services plane reads; docs/reference.md has them all."""

    topology_keys: str | None = msgspec.field(default=None, name="kepd.dev/topology-keys")
    internal_policy: str | None = msgspec.field(default=None, name="kepd.dev/internal-policy")
    topology_min_endpoints: str | None = msgspec.field(default=None, name="kepd.dev/topology-min-endpoints")
    endpoint_weights: str | None = msgspec.field(default=None, name="kepd.dev/endpoint-weights")
    no_local_verdict: str | None = msgspec.field(default=None, name="kepd.dev/no-local-verdict")
    no_endpoints: str | None = msgspec.field(default=None, name="kepd.dev/no-endpoints")
    affinity_clients: str | None = msgspec.field(default=None, name="kepd.dev/affinity-clients")
    balance: str | None = msgspec.field(default=None, name="kepd.dev/balance")
    affinity_scope: str | None = msgspec.field(default=None, name="kepd.dev/affinity-scope")
    source_ranges_everywhere: str | None = msgspec.field(default=None, name="kepd.dev/source-ranges-everywhere")
    terminate_established: str | None = msgspec.field(default=None, name="kepd.dev/terminate-established")
    hints_overload_threshold: str | None = msgspec.field(default=None, name="kepd.dev/hints-overload-threshold")


class ServiceMeta(ObjectMeta, frozen=True, gc=False):
    """Age decides who keeps a contested address."""

    creation_timestamp: str | None = None
    labels: ServiceLabels | None = None
    annotations: ServiceAnnotations | None = None


class ServicePort(Struct, frozen=True, gc=False):
    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0


class ClientIpConfig(Struct, frozen=True, gc=False):
    timeout_seconds: int | None = None


class AffinityConfig(Struct, frozen=True, gc=False):
    client_ip: ClientIpConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Struct, frozen=True, gc=False):
    """IN table, row Service."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    external_name: str = ""
    cluster_ips: Words = msgspec.field(default=None, name="clusterIPs")
    ip_families: Words = None
    ports: tuple[ServicePort, ...] | None = None
    external_ips: Words = msgspec.field(default=None, name="externalIPs")
    load_balancer_source_ranges: Words = None
    health_check_node_port: int = 0
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    session_affinity: str = "None"
    session_affinity_config: AffinityConfig | None = None


class Ingress(Struct, frozen=True, gc=False):
    """An address of a load balancer; those with only a host name have no `ip`."""

    ip: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(Struct, frozen=True, gc=False):
    ingress: tuple[Ingress, ...] | None = None


class ServiceStatus(Struct, frozen=True, gc=False):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(Struct, frozen=True, gc=False):
    metadata: ServiceMeta
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class SliceLabels(msgspec.Struct, frozen=True, gc=False):
    service_name: str | None = msgspec.field(default=None, name="kubernetes.io/service-name")
    headless: str | None = msgspec.field(default=None, name="service.kubernetes.io/headless")


class SliceAnnotations(msgspec.Struct, frozen=True, gc=False):
    trigger_time: str | None = msgspec.field(default=None, name="endpoints.kubernetes.io/last-change-trigger-time")


class SliceMeta(ObjectMeta, frozen=True, gc=False):
    labels: SliceLabels | None = None
    annotations: SliceAnnotations | None = None


class Conditions(Struct, frozen=True, gc=False):
    """Absent and null are not the same as false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class HintTarget(Struct, frozen=True, gc=False):
    name: str = ""


class HintsObject(Struct, frozen=True, gc=False):
    for_zones: tuple[HintTarget, ...] | None = None
    for_nodes: tuple[HintTarget, ...] | None = None


class EndpointObject(Struct, frozen=True, gc=False):
    addresses: Words = None
    conditions: Conditions | None = None
    node_name: str | None = None
    hints: HintsObject | None = None
    hostname: str | None = None


class EndpointPort(Struct, frozen=True, gc=False):
    """Name and number may be null."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True, gc=False):
    """discovery.k8s.io/v1."""

    metadata: SliceMeta
    address_type: str = ""
    endpoints: tuple[EndpointObject, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class NodeMeta(ObjectMeta, frozen=True, gc=False):
    """All labels: which of them count is configuration."""

    labels: Mapping[str, str] | None = None


class NodeTaint(Struct, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True, gc=False):
    """IN table, row Node."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: Words = msgspec.field(default=None, name="podCIDRs")
    taints: tuple[NodeTaint, ...] | None = None


class NodeAddress(Struct, frozen=True, gc=False):
    type: str = ""
    address: str = ""


class NodeStatus(Struct, frozen=True, gc=False):
    addresses: tuple[NodeAddress, ...] | None = None


class NodeObject(Struct, frozen=True, gc=False):
    metadata: NodeMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ApiEvent(Struct, frozen=True, gc=False):
    """events.k8s.io/v1 Event; only whether it is there matters."""

    metadata: ObjectMeta


class NodeMetadata(Struct, frozen=True, gc=False):
    """A node of which the metadata alone matter."""

    metadata: NodeMeta


class PodLabels(msgspec.Struct, frozen=True, gc=False):
    """What a ReplicaSet adds to the name of its Deployment."""

    template_hash: str = msgspec.field(default="", name="pod-template-hash")


class Owner(Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class PodAnnotations(msgspec.Struct, frozen=True, gc=False):
    """Of a static pod the API has a mirror; this is the uid by which its kubelet and the runtime know it."""

    static_uid: str | None = msgspec.field(default=None, name="kubernetes.io/config.hash")


class PodMeta(ObjectMeta, frozen=True, gc=False):
    """Identity, whose pod it is, and whether it is on its way out."""

    labels: PodLabels | None = None
    annotations: PodAnnotations | None = None
    owner_references: tuple[Owner, ...] | None = None


class PodContainer(Struct, frozen=True, gc=False):
    image: str = ""
    image_pull_policy: str = ""


class ObjectName(Struct, frozen=True, gc=False):
    name: str = ""


class ImageVolumeSource(Struct, frozen=True, gc=False):
    reference: str = ""
    pull_policy: str = ""


class PodVolume(Struct, frozen=True, gc=False):
    """Volumes that are not images have None."""

    image: ImageVolumeSource | None = None


class PodSpecObject(Struct, frozen=True, gc=False):
    """What decides which images are wanted, how soon, and with whose credentials."""

    init_containers: tuple[PodContainer, ...] | None = None
    containers: tuple[PodContainer, ...] | None = None
    volumes: tuple[PodVolume, ...] | None = None
    image_pull_secrets: tuple[ObjectName, ...] | None = None
    priority: int | None = None


class PodStatus(Struct, frozen=True, gc=False):
    phase: str = ""


class Pod(Struct, frozen=True, gc=False):
    metadata: PodMeta
    spec: PodSpecObject = PodSpecObject()
    status: PodStatus = PodStatus()


class PodTemplate(Struct, frozen=True, gc=False):
    spec: PodSpecObject = PodSpecObject()


class WorkloadSpec(Struct, frozen=True, gc=False):
    template: PodTemplate = PodTemplate()


class WorkloadObject(Struct, frozen=True, gc=False):
    """apps/v1 Deployment or DaemonSet."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()


class ServiceCidrSpec(Struct, frozen=True, gc=False):
    cidrs: Words = None


class ServiceCidr(Struct, frozen=True, gc=False):
    """networking.k8s.io/v1 ServiceCIDR."""

    metadata: ObjectMeta
    spec: ServiceCidrSpec = ServiceCidrSpec()


class ClaimObject(Struct, frozen=True):
    """A ResourceClaim; the devices plane reads what is inside."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] | None = None


class SliceObject(Struct, frozen=True):
    """A ResourceSlice."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
