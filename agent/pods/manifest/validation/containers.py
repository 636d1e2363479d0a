# SPDX-License-Identifier: Apache-2.0
"""Containers: names, restarts, ports, variables, mounts, resources, security."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.pods.container_fields import (
    Container,
    Env,
    EnvSource,
    ResourceReference,
    RestartRule,
    SecurityContext,
    VolumeMount,
)
from agent.model.pods.fields import PodFields, Volume
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.handlers import HIGHEST_PORT, PORT_NAME, PORT_RANGE, check_lifecycle, check_probes
from agent.pods.manifest.validation.resources import check_resources

POLICIES = ("Always", "Never", "OnFailure")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROTOCOLS = ("SCTP", "TCP", "UDP")
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
PROC_MOUNTS = ("Default", "Unmasked")
MOST_RULES = 20
MOST_CODES = 255
HIGHEST_CODE = 255
LARGEST_ID = 2**31 - 1
ENV_NAME = re.compile(r"[ -<>-~]+\Z")
ENV_TEXT = "a valid environment variable name must consist only of printable ASCII characters other than '='"
SOURCES = {
    "field_ref": "fieldRef",
    "resource_field_ref": "resourceFieldRef",
    "config_map_key_ref": "configMapKeyRef",
    "secret_key_ref": "secretKeyRef",
    "file_key_ref": "fileKeyRef",
}
FIELDS = frozenset({
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
})  # fmt: skip
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]\Z")
RESOURCES = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-\S+)\Z")


class _Place(msgspec.Struct, frozen=True):
    container: Container
    path: str
    spec: PodFields
    volumes: Mapping[str, Volume]
    grace_s: int
    is_init: bool

    @property
    def may_have_hooks(self) -> bool:
        return not self.is_init or self.container.is_sidecar


def check_containers(out: Complaints, spec: PodFields, grace_s: int) -> None:
    volumes = {one.name: one for one in spec.volumes}
    names: set[str] = set()
    ports: Counter[str] = Counter()
    if not spec.containers:
        out.required("spec.containers")
    for field, listed, is_init in (
        ("initContainers", spec.init_containers, True),
        ("containers", spec.containers, False),
    ):
        for index, container in enumerate(listed):
            place = _Place(container, f"spec.{field}[{index}]", spec, volumes, grace_s, is_init)
            _container(out, place, names)
            if not is_init or container.is_sidecar:
                _host_ports(out, place, ports)


def _container(out: Complaints, at: _Place, names: set[str]) -> None:
    one, path = at.container, at.path
    out.label(f"{path}.name", one.name)
    if one.name in names:
        out.duplicate(f"{path}.name", one.name)
    names.add(one.name)
    _image(out, one.image, f"{path}.image")
    if one.image_pull_policy:
        out.one_of(f"{path}.imagePullPolicy", one.image_pull_policy, PULL_POLICIES)
    _restarts(out, one, path)
    os_name = at.spec.os.name if at.spec.os is not None else ""
    check_lifecycle(out, one, path, at.grace_s, may_have=at.may_have_hooks, os_name=os_name)
    check_probes(out, one, path, may_have=at.may_have_hooks)
    _ports(out, one, path)
    for index, env in enumerate(one.env):
        _env(out, env, f"{path}.env[{index}]", at)
    _env_from(out, one, path)
    _mounts(out, at)
    check_resources(out, one.resources, f"{path}.resources")
    out.one_of(f"{path}.terminationMessagePolicy", one.termination_message_policy, MESSAGE_POLICIES)
    if one.security_context is not None:
        _security(out, one.security_context, f"{path}.securityContext", has_own_users=not at.spec.host_users)
    for index, resize in enumerate(one.resize_policy):
        out.one_of(f"{path}.resizePolicy[{index}].resourceName", resize.resource_name, ("cpu", "memory"))
        choices = ("NotRequired", "RestartContainer")
        out.one_of(f"{path}.resizePolicy[{index}].restartPolicy", resize.restart_policy, choices)


def _image(out: Complaints, image: str, path: str) -> None:
    if not image:
        out.required(path)
    elif image != image.strip():
        out.invalid(path, image, "must not have leading or trailing whitespace")
    else:
        try:
            parse_reference(image)
        except ReferenceInvalid as error:
            out.invalid(path, image, error.cause)


def _restarts(out: Complaints, one: Container, path: str) -> None:
    if one.restart_policy:
        out.one_of(f"{path}.restartPolicy", one.restart_policy, POLICIES)
    elif one.restart_policy_rules:
        out.required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used")
    rules = one.restart_policy_rules
    if len(rules) > MOST_RULES:
        out.too_many(f"{path}.restartPolicyRules", len(rules), MOST_RULES)
    for index, rule in enumerate(rules):
        _rule(out, rule, f"{path}.restartPolicyRules[{index}]")


def _rule(out: Complaints, rule: RestartRule, path: str) -> None:
    out.one_of(f"{path}.action", rule.action, ("Restart", "RestartAllContainers"))
    codes = rule.exit_codes
    if codes is None:
        out.required(f"{path}.exitCodes", "must be specified")
        return
    out.one_of(f"{path}.exitCodes.operator", codes.operator, ("In", "NotIn"))
    if len(codes.values) > MOST_CODES:
        out.too_many(f"{path}.exitCodes.values", len(codes.values), MOST_CODES)
    for place, code in enumerate(codes.values):
        if not 0 <= code <= HIGHEST_CODE:
            out.invalid(f"{path}.exitCodes.values[{place}]", code, "must be between 0 and 255, inclusive")


def _ports(out: Complaints, one: Container, path: str) -> None:
    names: set[str] = set()
    for index, port in enumerate(one.ports):
        place = f"{path}.ports[{index}]"
        if port.name:
            if not PORT_NAME.match(port.name):
                detail = "must be at most 15 of a-z, 0-9 and -, with at least one letter"
                out.invalid(f"{place}.name", port.name, detail)
            elif port.name in names:
                out.duplicate(f"{place}.name", port.name)
            names.add(port.name)
        if not port.container_port:
            out.required(f"{place}.containerPort")
        elif not 1 <= port.container_port <= HIGHEST_PORT:
            out.invalid(f"{place}.containerPort", port.container_port, PORT_RANGE)
        if port.host_port and not 1 <= port.host_port <= HIGHEST_PORT:
            out.invalid(f"{place}.hostPort", port.host_port, PORT_RANGE)
        if port.host_ip:
            out.ip(f"{place}.hostIP", port.host_ip)
        out.one_of(f"{place}.protocol", port.protocol, PROTOCOLS)


def _host_ports(out: Complaints, at: _Place, taken: Counter[str]) -> None:
    for index, port in enumerate(at.container.ports):
        place = f"{at.path}.ports[{index}].hostPort"
        if at.spec.host_network and port.host_port and port.host_port != port.container_port:
            out.invalid(place, port.host_port, "must match `containerPort` when `hostNetwork` is true")
        if port.host_port:
            key = f"{port.protocol}/{port.host_ip}/{port.host_port}"
            if taken[key]:
                out.duplicate(place, key)
            taken[key] += 1


def _env(out: Complaints, env: Env, path: str, at: _Place) -> None:
    if not env.name:
        out.required(f"{path}.name")
    elif not ENV_NAME.match(env.name):
        out.invalid(f"{path}.name", env.name, ENV_TEXT)
    if env.value_from is not None:
        _env_source(out, env, env.value_from, f"{path}.valueFrom", at)


def _env_source(out: Complaints, env: Env, source: EnvSource, path: str, at: _Place) -> None:
    given = [name for name in SOURCES if getattr(source, name) is not None]
    if not given:
        out.invalid(path, "", f"must specify one of: {', '.join(f'`{one}`' for one in SOURCES.values())}")
    elif env.value:
        out.invalid(path, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        out.invalid(path, "", "may not have more than one field specified at a time")
    if source.field_ref is not None:
        _field(out, source.field_ref.field_path, f"{path}.fieldRef.fieldPath")
    if source.resource_field_ref is not None:
        resource = source.resource_field_ref.resource
        if not resource:
            out.required(f"{path}.resourceFieldRef.resource")
        elif not RESOURCES.match(resource):
            out.one_of(f"{path}.resourceFieldRef.resource", resource, RESOURCE_NAMES)
        else:
            check_divisor(out, source.resource_field_ref, f"{path}.resourceFieldRef.divisor")
    for name in ("config_map_key_ref", "secret_key_ref"):
        reference = getattr(source, name)
        if reference is not None:
            for part in ("name", "key"):
                if not getattr(reference, part):
                    out.required(f"{path}.{SOURCES[name]}.{part}")
    if source.file_key_ref is not None:
        _file_key(out, source, f"{path}.fileKeyRef", at)


CPU_DIVISORS = ("1m", "1")
BYTE_DIVISORS = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
RESOURCE_NAMES = tuple(
    f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)


def check_divisor(out: Complaints, reference: ResourceReference, path: str) -> None:
    """Of cpu one or a thousandth, of everything else a power of a thousand or of 1024; nothing is 1."""
    given = str(reference.divisor)
    is_cpu = reference.resource.endswith(".cpu")
    right = CPU_DIVISORS if is_cpu else BYTE_DIVISORS
    try:
        nanos = parse_quantity(given).nanos
    except QuantityError:
        nanos = -1
    if nanos and nanos not in {parse_quantity(one).nanos for one in right}:
        out.invalid(path, given, f"only {', '.join(right)} are supported for {reference.resource}")


def _field(out: Complaints, field: str, path: str) -> None:
    if not field:
        out.required(path)
    elif field not in FIELDS and not SUBSCRIPT.match(field):
        out.one_of(path, field, sorted(FIELDS))


def _file_key(out: Complaints, source: EnvSource, path: str, at: _Place) -> None:
    reference = source.file_key_ref
    if reference is None:
        return
    for name, key in (("key", "key"), ("volume_name", "volumeName"), ("path", "path")):
        if not getattr(reference, name):
            out.required(f"{path}.{key}")
    if ".." in reference.path.split("/"):
        out.invalid(f"{path}.path", reference.path, "must not contain '..'")
    volume = at.volumes.get(reference.volume_name)
    if reference.volume_name and volume is None:
        out.missing(f"{path}.volumeName", reference.volume_name)
    elif volume is not None and volume.empty_dir is None:
        out.invalid(f"{path}.volumeName", reference.volume_name, "must be an emptyDir volume")


def _env_from(out: Complaints, one: Container, path: str) -> None:
    for index, source in enumerate(one.env_from):
        place = f"{path}.envFrom[{index}]"
        if source.prefix and not ENV_NAME.match(source.prefix):
            out.invalid(f"{place}.prefix", source.prefix, ENV_TEXT)
        references = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
        given = [(name, reference) for name, reference in references if reference is not None]
        if not given:
            out.invalid(place, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            out.invalid(place, "", "may not have more than one field specified at a time")
        for name, reference in given:
            if not reference.name:
                out.required(f"{place}.{name}.name")


def _mounts(out: Complaints, at: _Place) -> None:
    paths: set[str] = set()
    for index, mount in enumerate(at.container.volume_mounts):
        place = f"{at.path}.volumeMounts[{index}]"
        if not mount.name:
            out.required(f"{place}.name")
        elif mount.name not in at.volumes:
            out.missing(f"{place}.name", mount.name)
        if not mount.mount_path:
            out.required(f"{place}.mountPath")
        elif mount.mount_path in paths:
            out.invalid(f"{place}.mountPath", mount.mount_path, "must be unique")
        elif ":" in mount.mount_path:
            out.invalid(f"{place}.mountPath", mount.mount_path, "must not contain ':'")
        paths.add(mount.mount_path)
        _sub_paths(out, mount, place)
        out.one_of(f"{place}.mountPropagation", mount.mount_propagation, PROPAGATIONS)
        privileged = at.container.security_context is not None and at.container.security_context.privileged
        if mount.mount_propagation == "Bidirectional" and not privileged:
            out.forbidden(
                f"{place}.mountPropagation",
                "Bidirectional mount propagation is available only to privileged containers",
            )
        if mount.recursive_read_only:
            out.one_of(f"{place}.recursiveReadOnly", mount.recursive_read_only, ("Disabled", "Enabled", "IfPossible"))
            if mount.recursive_read_only != "Disabled" and not mount.read_only:
                out.forbidden(f"{place}.recursiveReadOnly", "may only be specified when readOnly is true")
            elif mount.recursive_read_only != "Disabled" and mount.mount_propagation != "None":
                detail = "may only be specified when mountPropagation is None or not specified"
                out.forbidden(f"{place}.recursiveReadOnly", detail)
    for index, device in enumerate(at.container.volume_devices):
        out.forbidden(
            f"{at.path}.volumeDevices[{index}]",
            f"block device {device.name!r} needs a claim, which needs a control plane",
        )


def _sub_paths(out: Complaints, mount: VolumeMount, path: str) -> None:
    if mount.sub_path and mount.sub_path_expr:
        out.invalid(f"{path}.subPathExpr", mount.sub_path_expr, "subPathExpr and subPath are mutually exclusive")
    for name, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
        if value.startswith("/"):
            out.invalid(f"{path}.{name}", value, "must be a relative path")
        if ".." in value.split("/"):
            out.invalid(f"{path}.{name}", value, "must not contain '..'")


def _security(out: Complaints, given: SecurityContext, path: str, *, has_own_users: bool) -> None:
    for name, value in (("runAsUser", given.run_as_user), ("runAsGroup", given.run_as_group)):
        check_id(out, f"{path}.{name}", value)
    added: Sequence[str] = given.capabilities.add if given.capabilities is not None else ()
    if given.allow_privilege_escalation is False:
        if given.privileged:
            out.invalid(path, "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
        if "SYS_ADMIN" in added or "CAP_SYS_ADMIN" in added:
            out.invalid(path, "", "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
    if given.proc_mount:
        out.one_of(f"{path}.procMount", given.proc_mount, PROC_MOUNTS)
        if given.proc_mount == "Unmasked" and not has_own_users:
            out.invalid(f"{path}.procMount", given.proc_mount, "`hostUsers` must be false to use `Unmasked`")
    check_profile(out, given.seccomp_profile, f"{path}.seccompProfile", is_file=True)
    check_profile(out, given.app_armor_profile, f"{path}.appArmorProfile")


def check_id(out: Complaints, path: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= LARGEST_ID:
        out.invalid(path, value, f"must be between 0 and {LARGEST_ID}, inclusive")


def check_profile(out: Complaints, profile: object, path: str, *, is_file: bool = False) -> None:
    """Of seccomp, which are files, or of AppArmor."""
    if profile is None:
        return
    kind, name = getattr(profile, "type", ""), getattr(profile, "localhost_profile", "")
    if not kind:
        out.required(f"{path}.type", "type is required when the profile is set")
        return
    out.one_of(f"{path}.type", kind, ("Localhost", "RuntimeDefault", "Unconfined"))
    if kind == "Localhost" and not name:
        out.required(f"{path}.localhostProfile", "must be set when the type is Localhost")
    elif is_file and name.startswith("/"):
        out.invalid(f"{path}.localhostProfile", name, "must be a relative path")
    elif is_file and ".." in name.split("/"):
        out.invalid(f"{path}.localhostProfile", name, "must not contain '..'")
    elif kind != "Localhost" and name:
        out.invalid(f"{path}.localhostProfile", name, "can only be set when the type is Localhost")
