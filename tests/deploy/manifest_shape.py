# SPDX-License-Identifier: Apache-2.0
"""The fields that our manifests use, as an API server with strict validation knows them: another field is an error.

Owns: names and types of fields for the kinds of `deploy/`. Never: what their values should be; tests say that.
"""

from typing import Any, Literal

import msgspec

__all__ = ["checked_object"]


class Shape(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Nothing that is not declared."""


class Metadata(Shape):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}


class Typed(Shape):
    api_version: str
    kind: str
    metadata: Metadata


class ConfigMap(Typed):
    data: dict[str, str]


class ServiceAccount(Typed):
    pass


class Rule(Shape):
    api_groups: list[str]
    resources: list[str]
    verbs: list[Literal["get", "list", "watch", "create", "update", "patch"]]


class ClusterRole(Typed):
    rules: list[Rule]


class RoleRef(Shape):
    api_group: Literal["rbac.authorization.k8s.io"]
    kind: Literal["ClusterRole"]
    name: str


class Subject(Shape):
    kind: Literal["ServiceAccount"]
    name: str
    namespace: str


class ClusterRoleBinding(Typed):
    role_ref: RoleRef
    subjects: list[Subject]


class FieldRef(Shape):
    field_path: Literal["spec.nodeName"]


class ValueFrom(Shape):
    field_ref: FieldRef


class Variable(Shape):
    name: str
    value_from: ValueFrom


class Named(Shape):
    name: str


class FromEnvironment(Shape):
    config_map_ref: Named


class HttpGet(Shape):
    host: str
    port: int
    path: str


class Probe(Shape):
    http_get: HttpGet
    period_seconds: int
    failure_threshold: int


class Capabilities(Shape):
    drop: list[str]
    add: list[str]


class ContainerSecurity(Shape):
    read_only_root_filesystem: bool
    privileged: bool = False
    run_as_user: int | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities | None = None


class Resources(Shape):
    requests: dict[Literal["cpu", "memory"], str]
    limits: dict[Literal["cpu", "memory"], str]


class VolumeMount(Shape):
    name: str
    mount_path: str
    read_only: bool = False


class Container(Shape, kw_only=True):
    name: str
    image: str
    command: list[str] = []
    args: list[str]
    env: list[Variable] = []
    env_from: list[FromEnvironment] = []
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    security_context: ContainerSecurity
    resources: Resources
    volume_mounts: list[VolumeMount] = []


class HostPath(Shape):
    path: str
    type: Literal["", "Directory", "DirectoryOrCreate", "FileOrCreate"]


class Volume(Shape):
    name: str
    host_path: HostPath


class SeccompProfile(Shape):
    type: Literal["RuntimeDefault"]


class PodSecurity(Shape):
    seccomp_profile: SeccompProfile


class Toleration(Shape):
    operator: Literal["Exists"]


class PodSpec(Shape):
    service_account_name: str
    priority_class_name: str
    host_network: bool
    dns_policy: Literal["Default"]
    enable_service_links: bool
    termination_grace_period_seconds: int
    node_selector: dict[str, str]
    tolerations: list[Toleration]
    security_context: PodSecurity
    init_containers: list[Container]
    containers: list[Container]
    volumes: list[Volume]


class TemplateMetadata(Shape):
    labels: dict[str, str]


class Template(Shape):
    metadata: TemplateMetadata
    spec: PodSpec


class RollingUpdate(Shape):
    max_unavailable: str | int
    max_surge: str | int


class UpdateStrategy(Shape):
    type: Literal["RollingUpdate"]
    rolling_update: RollingUpdate


class Selector(Shape):
    match_labels: dict[str, str]


class DaemonSetSpec(Shape):
    selector: Selector
    update_strategy: UpdateStrategy
    template: Template


class DaemonSet(Typed):
    spec: DaemonSetSpec


class ResourceRule(Shape):
    api_groups: list[str]
    api_versions: list[str]
    operations: list[Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]]
    resources: list[str]


class MatchConstraints(Shape):
    resource_rules: list[ResourceRule]


class NamedExpression(Shape):
    name: str
    expression: str


class Validation(Shape):
    expression: str
    message: str


class AdmissionSpec(Shape):
    failure_policy: Literal["Fail", "Ignore"]
    match_constraints: MatchConstraints
    match_conditions: list[NamedExpression]
    variables: list[NamedExpression]
    validations: list[Validation]


class ValidatingAdmissionPolicy(Typed):
    spec: AdmissionSpec


class AdmissionBindingSpec(Shape):
    policy_name: str
    validation_actions: list[Literal["Deny", "Warn", "Audit"]]


class ValidatingAdmissionPolicyBinding(Typed):
    spec: AdmissionBindingSpec


ADMISSION = "admissionregistration.k8s.io/v1"
KINDS: dict[tuple[str, str], type[Typed]] = {
    ("v1", "ConfigMap"): ConfigMap,
    ("v1", "ServiceAccount"): ServiceAccount,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): ClusterRole,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ClusterRoleBinding,
    ("apps/v1", "DaemonSet"): DaemonSet,
    (ADMISSION, "ValidatingAdmissionPolicy"): ValidatingAdmissionPolicy,
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): ValidatingAdmissionPolicyBinding,
}


def checked_object(one: dict[str, Any]) -> Any:
    """The object with its types; raises for a field that an API server would not know, or know as another type."""
    return msgspec.convert(one, KINDS[one["apiVersion"], one["kind"]])
