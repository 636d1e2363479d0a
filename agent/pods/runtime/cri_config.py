# SPDX-License-Identifier: Apache-2.0
"""What the runtime gets to know about a pod and its containers.

Names and labels that crictl and log shippers know (LBL), namespaces, security (SEC), resources (RES).
"""

from pathlib import PurePath

import msgspec

from agent.model.devices.container_devices import ContainerDevices
from agent.model.finding import printable
from agent.model.pods.container_fields import ContainerPort, Resources
from agent.model.pods.fields import PodSecurityContext
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec, container_hash
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.runtime import names
from agent.pods.runtime.cri_security import Made, NodeShape, check_user, container_security, sandbox_security
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.network_files import Resolver, kernel_name
from agent.pods.runtime.pod_group import group_path, hugepage_limits
from agent.pods.runtime.qos import (
    Needs,
    container_needs,
    cpu_quota,
    cpu_shares,
    effective_needs,
    is_critical,
    memory_qos,
    oom_score,
    own_needs,
    qos_class,
)
from agent.wire.cri import runtime_v1_pb2 as pb

PERIOD_US = 100_000
PROTOCOLS = {"TCP": pb.TCP, "UDP": pb.UDP, "SCTP": pb.SCTP}
DEVICE_PROPAGATIONS = {
    "": pb.PROPAGATION_PRIVATE,
    "slave": pb.PROPAGATION_HOST_TO_CONTAINER,
    "shared": pb.PROPAGATION_BIDIRECTIONAL,
}


def sandbox_config(
    pod: PodSpec,
    node: NodeShape,
    resolver: Resolver | None = None,
    attempt: int = 0,
    seen: str = "",
    *,
    group: str = "",
) -> pb.PodSandboxConfig:
    """The sandbox of a pod; it carries our mark, without which we never touch one. `group` is where it is."""
    group = group or cgroup_of(pod, node)
    directory = PurePath(node.settings.pods.log_directory)
    annotations = {
        **pod.notes,
        names.CONFIG_HASH: pod.uid,
        names.CONFIG_SOURCE: "file",
        names.INSTANCE: node.settings.instance,
        names.HASH: pod.hash,
        names.FILE: printable(pod.file),
        names.GROUP: group,
    }
    if seen:
        annotations[names.CONFIG_SEEN] = seen
    if resolver is not None:
        annotations[names.NAME_SERVERS] = printable(",".join(resolver.servers))
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=attempt),
        hostname=kernel_name(pod, node.settings.pods.cluster_domain),
        log_directory=str(directory / names.log_directory_name(pod.namespace, pod.name, pod.uid)),
        labels={**dict(pod.labels), names.NAME: pod.name, names.NAMESPACE: pod.namespace, names.UID: pod.uid},
        annotations=annotations,
        port_mappings=_port_mappings(pod, node),
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=group,
            security_context=sandbox_security(pod, node),
            sysctls=_sysctls(pod),
            resources=_sandbox_resources(own_needs(pod)),
        ),
    )
    if pod.spec.overhead:
        # What the runtime class takes beside the containers is its request and its limit.
        config.linux.overhead.CopyFrom(_sandbox_resources(container_needs(Resources(limits=pod.spec.overhead))))
    if resolver is not None:
        config.dns_config.CopyFrom(
            pb.DNSConfig(servers=resolver.servers, searches=resolver.searches, options=resolver.options)
        )
    return config


def cgroup_of(pod: PodSpec, node: NodeShape) -> str:
    """The control group of the pod as a whole, below the configured root."""
    return group_path(pod, node.settings.pods.cgroup_root, uses_systemd=node.uses_systemd)


def check_support(pod: PodSpec, features: RuntimeFeatures) -> None:
    """What a runtime that does not know it would pass over in silence."""
    spec, reason = pod.spec, "FailedCreatePodSandBox"
    if not spec.host_users and spec.runtime_class_name not in features.user_namespaces:
        handler = f" for its handler {spec.runtime_class_name}" if spec.runtime_class_name else ""
        text = f"hostUsers false needs user namespaces, which {features.label} does not have{handler}; containerd 2.0 "
        raise ConfigProblem(text + "and CRI-O 1.30 have them, with runc 1.2 or crun, from Linux 6.3 on", reason)
    given = spec.security_context
    if given is not None and given.supplemental_groups_policy == "Strict" and not features.has_group_policy:
        text = f"supplementalGroupsPolicy Strict is not supported by {features.label}; "
        raise ConfigProblem(text + "containerd 2.0 and CRI-O 1.31 can", reason)


def _port_mappings(pod: PodSpec, node: NodeShape) -> list[pb.PortMapping]:
    """Mains and sidecars; a kubelet forgets sidecars (Q-PORTS)."""
    kinds = (ContainerKind.MAIN,) if node.settings.copies_kubelet else (ContainerKind.MAIN, ContainerKind.SIDECAR)
    return [
        pb.PortMapping(
            protocol=PROTOCOLS.get(port.protocol, pb.TCP),
            container_port=port.container_port,
            host_port=_host_port(pod, port),
            host_ip=port.host_ip,
        )
        for one in pod.containers
        if one.kind in kinds
        for port in one.fields.ports
    ]


def _host_port(pod: PodSpec, port: ContainerPort) -> int:
    """In the node's own network a container's port is the node's."""
    return port.container_port if pod.spec.host_network else port.host_port


def _sysctls(pod: PodSpec) -> dict[str, str]:
    given = pod.spec.security_context or PodSecurityContext()
    return {one.name.replace("/", "."): one.value for one in given.sysctls}


def _sandbox_resources(needs: Needs) -> pb.LinuxContainerResources:
    return pb.LinuxContainerResources(
        cpu_period=PERIOD_US,
        cpu_quota=cpu_quota(needs.cpu_limit),
        cpu_shares=cpu_shares(needs.cpu_request),
        memory_limit_in_bytes=needs.memory_limit,
    )


def container_config(pod: PodSpec, container: ContainerSpec, made: Made, node: NodeShape) -> pb.ContainerConfig:
    """One instance. Raises ConfigProblem where its user must not be what the image says."""
    fields = container.fields
    check_user(pod, container, made)
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container.name, attempt=made.attempt),
        image=pb.ImageSpec(image=made.image_ref or container.image, user_specified_image=container.image),
        command=made.command,
        args=made.args,
        working_dir=fields.working_dir,
        envs=[
            pb.KeyValue(key=name, value=value.encode("utf-8", "surrogateescape")) for name, value in made.environment
        ],
        mounts=made.mounts,
        labels={
            names.NAME: pod.name,
            names.NAMESPACE: pod.namespace,
            names.UID: pod.uid,
            names.CONTAINER: container.name,
        },
        annotations=_annotations(pod, container, made),
        log_path=f"{container.name}/{made.attempt}.log",
        stdin=fields.stdin,
        stdin_once=fields.stdin_once,
        tty=fields.tty,
        linux=pb.LinuxContainerConfig(
            resources=container_resources(pod, container, fields.resources, node),
            security_context=container_security(pod, container, made, node),
        ),
    )
    _give_devices(config, made.devices)
    if fields.lifecycle is not None and fields.lifecycle.stop_signal:
        name = names.signal_word(fields.lifecycle.stop_signal)
        config.stop_signal = pb.Signal.Value(name)  # type: ignore[assignment]  # stubs want the enum
    return config


def _give_devices(config: pb.ContainerConfig, devices: ContainerDevices) -> None:
    """A variable of a device comes in the place of one that the pod has."""
    given = dict(devices.env)
    kept = [one for one in config.envs if one.key not in given]
    del config.envs[:]
    config.envs.extend(kept)
    for name, value in given.items():
        config.envs.add(key=name, value=value.encode("utf-8", "surrogateescape"))
    for node in devices.nodes:
        config.devices.add(host_path=node.host_path, container_path=node.container_path, permissions=node.permissions)
    for mount in devices.mounts:
        config.mounts.add(
            host_path=mount.host_path,
            container_path=mount.container_path,
            readonly=mount.is_read_only,
            propagation=DEVICE_PROPAGATIONS[mount.propagation],
        )
    groups = config.linux.security_context.supplemental_groups
    groups.extend(one for one in devices.groups if one not in groups)
    for name in devices.cdi_ids:
        config.CDI_devices.add(name=name)
    config.annotations.update(dict(devices.notes))


def _annotations(pod: PodSpec, container: ContainerSpec, made: Made) -> dict[str, str]:
    """The annotations a kubelet writes, for those who read them."""
    fields = container.fields
    found = {
        names.CONTAINER_HASH: container_hash(fields),
        names.RESTART_COUNT: str(made.attempt),
        names.MESSAGE_PATH: fields.termination_message_path,
        names.MESSAGE_POLICY: fields.termination_message_policy,
        names.GRACE: str(pod.grace_s),
    }
    if container.kind is ContainerKind.EPHEMERAL:
        # No manifest says what it reads and whether it has a terminal.
        found[names.EPHEMERAL] = msgspec.json.encode({"stdin": fields.stdin, "tty": fields.tty}).decode()
    if fields.pre_stop is not None:
        found[names.PRE_STOP] = msgspec.json.encode(fields.pre_stop).decode()
    if fields.ports:
        found[names.PORTS] = msgspec.json.encode([_told(pod, port) for port in fields.ports]).decode()
    return found


def _told(pod: PodSpec, port: ContainerPort) -> dict[str, str | int]:
    """In the order and with the omissions that readers of a kubelet's annotation know."""
    pairs: dict[str, str | int] = {
        "name": port.name,
        "hostPort": _host_port(pod, port),
        "containerPort": port.container_port,
        "protocol": port.protocol,
        "hostIP": port.host_ip,
    }
    return {key: value for key, value in pairs.items() if value}


def container_resources(
    pod: PodSpec, container: ContainerSpec, resources: Resources, node: NodeShape
) -> pb.LinuxContainerResources:
    """Amounts as a kubelet counts them; where a container has no limit, the pod's applies."""
    needs = effective_needs(resources, pod.spec.resources)
    found = pb.LinuxContainerResources(
        cpu_period=PERIOD_US,
        cpu_quota=cpu_quota(needs.cpu_limit),
        cpu_shares=cpu_shares(needs.cpu_request if "cpu" in resources.requests else needs.cpu_limit),
        memory_limit_in_bytes=needs.memory_limit,
        oom_score_adj=oom_score(pod, container, node.settings.facts.memory_bytes),
    )
    for size, most_bytes in hugepage_limits(
        {**pod.spec.resources.limits, **resources.limits}, node.settings.facts.groups
    ):
        found.hugepage_limits.add(page_size=size, limit=most_bytes)
    if node.settings.facts.groups.version > 1 and not node.settings.pods.single_process_oom_kill:
        found.unified["memory.oom.group"] = "1"
    if node.settings.facts.groups.version > 1 and node.memory_qos_bytes:
        found.unified.update(memory_qos(needs, node.memory_qos_bytes))
    if node.settings.facts.groups.has_swap_limit:
        most_bytes = _swap_limit(pod, container, node) if node.settings.pods.swap == "LimitedSwap" else 0
        if node.settings.facts.groups.version > 1:
            found.unified["memory.swap.max"] = str(most_bytes)
        else:
            # Version 1 counts both together, and only where memory has a limit. A kubelet gives no swap there.
            more_bytes = 0 if node.settings.copies_kubelet else most_bytes
            found.memory_swap_limit_in_bytes = needs.memory_limit and needs.memory_limit + more_bytes
    return found


def _swap_limit(pod: PodSpec, container: ContainerSpec, node: NodeShape) -> int:
    """KEP-2400, limited swap: by its share of the node's memory, for containers of Burstable pods that may grow."""
    needs = container_needs(container.fields.resources)
    is_fixed = not needs.memory_request or needs.memory_request == needs.memory_limit
    if (
        qos_class(pod) != "Burstable"
        or is_fixed
        or is_critical(pod)
        or needs.memory_request > node.settings.facts.memory_bytes
    ):
        return 0
    return needs.memory_request * node.settings.facts.groups.swap_bytes // node.settings.facts.memory_bytes
