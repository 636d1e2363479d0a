# SPDX-License-Identifier: Apache-2.0
"""What a Pod manifest may say, field by field, under the names that Kubernetes gives.

A default written out is the same as one left out, and a field added here later does not change what an older manifest
means. Fields of type `object` are taken and not looked at: they speak to a scheduler, which a node without a
control plane does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from agent.model.pods.affinity import Affinity
from agent.model.pods.container_fields import (
    Amount,
    Container,
    FieldReference,
    Fields,
    KeyToPath,
    NamedReference,
    NamedValue,
    Profile,
    ResourceReference,
    Resources,
    SELinux,
)

Texts = dict[str, str]
_NETWORK = "kepd mounts nothing over a network; mount it on this node (/etc/fstab) and write its path as hostPath"
_DISK = "kepd attaches no disks; attach and mount it on this node, and write its path as hostPath, or claim a directory"
ELSEWHERE: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(("nfs", "cephfs", "glusterfs", "azureFile", "quobyte"), _NETWORK),
    **dict.fromkeys(
        (
            "awsElasticBlockStore", "azureDisk", "cinder", "fc", "flocker", "gcePersistentDisk", "iscsi",
            "photonPersistentDisk", "portworxVolume", "rbd", "scaleIO", "storageos", "vsphereVolume",
        ),
        _DISK,
    ),
    **dict.fromkeys(("csi", "flexVolume"), "kepd runs no storage drivers; hostPath, or a claim of a directory, serves"),
    "gitRepo": "kepd clones nothing; an init container that clones into an emptyDir serves",
})  # fmt: skip
"""Kinds of volumes that need a cloud, a network or a driver, with what serves on a node."""


class PodSecurityContext(Fields, frozen=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str = ""
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str = ""
    sysctls: tuple[NamedValue, ...] = ()
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    se_linux_options: SELinux | None = None
    se_linux_change_policy: str = ""


class EmptyDir(Fields, frozen=True):
    medium: str = ""
    size_limit: Amount | None = None


class HostPath(Fields, frozen=True):
    path: str = ""
    type: str = ""


class ConfigMapVolume(Fields, frozen=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretVolume(Fields, frozen=True):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardItem(Fields, frozen=True):
    path: str = ""
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceReference | None = None
    mode: int | None = None


class DownwardVolume(Fields, frozen=True):
    items: tuple[DownwardItem, ...] = ()
    default_mode: int = 0o644


class ProjectedConfigMap(Fields, frozen=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class ProjectedDownward(Fields, frozen=True):
    items: tuple[DownwardItem, ...] = ()


class Projection(Fields, frozen=True):
    config_map: ProjectedConfigMap | None = None
    secret: ProjectedConfigMap | None = None
    downward_api: ProjectedDownward | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: object = None
    cluster_trust_bundle: object = None


class ProjectedVolume(Fields, frozen=True):
    sources: tuple[Projection, ...] = ()
    default_mode: int = 0o644


class ImageVolume(Fields, frozen=True):
    reference: str = ""
    pull_policy: str = ""


class ClaimedVolume(Fields, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class Volume(Fields, frozen=True):
    """A volume; exactly one source, and none is an emptyDir."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = ELSEWHERE
    name: str = ""
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
    image: ImageVolume | None = None
    persistent_volume_claim: ClaimedVolume | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in self.__struct_fields__ if name != "name"):
            msgspec.structs.force_setattr(self, "empty_dir", EmptyDir())


class DnsConfig(Fields, frozen=True):
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[NamedValue, ...] = ()


class HostAlias(Fields, frozen=True):
    ip: str = ""
    hostnames: tuple[str, ...] = ()


class ReadinessGate(Fields, frozen=True):
    condition_type: str = ""


class PodClaim(Fields, frozen=True):
    """Devices that a pod claims: those of a claim that is there, or of one that is made for it."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""
    # How versions before v1beta1 wrote it.
    source: object = None


class PodFields(Fields, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    dns_policy: str = "ClusterFirst"
    dns_config: DnsConfig | None = None
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    host_users: bool = True
    share_process_namespace: bool = False
    hostname: str = ""
    hostname_override: str = ""
    subdomain: str = ""
    set_hostname_as_fqdn: bool = msgspec.field(default=False, name="setHostnameAsFQDN")
    host_aliases: tuple[HostAlias, ...] = ()
    security_context: PodSecurityContext | None = None
    resources: Resources = Resources()
    os: NamedReference | None = None
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    runtime_class_name: str = ""
    readiness_gates: tuple[ReadinessGate, ...] = ()
    node_name: str = ""
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool = False
    enable_service_links: bool = True
    image_pull_secrets: tuple[NamedReference, ...] = ()
    node_selector: Texts = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: object = None
    scheduler_name: str = ""
    scheduling_gates: object = None
    topology_spread_constraints: object = None
    overhead: dict[str, Amount] = msgspec.field(default_factory=dict)
    resource_claims: tuple[PodClaim, ...] = ()


class Metadata(Fields, frozen=True):
    """`metadata` of an object; what only an API server fills is taken and not looked at."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    labels: Texts = msgspec.field(default_factory=dict)
    annotations: Texts = msgspec.field(default_factory=dict)
    creation_timestamp: object = None
    generate_name: object = None
    resource_version: object = None
    deletion_timestamp: object = None
    deletion_grace_period_seconds: object = None
    owner_references: object = None
    managed_fields: object = None
    finalizers: object = None
    generation: object = None
    self_link: object = None
