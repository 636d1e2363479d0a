# SPDX-License-Identifier: Apache-2.0
"""What the runtime is told about a pod: names, labels and places that crictl and log shippers know.

Owns: the translation from a pod to CRI messages, and the names under which observation.py finds it again. Pure.
"""

from pathlib import Path

from agent.model.finding import printable
from agent.model.pod import ContainerSpec, PodSpec
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["FILE", "GRACE", "HASH", "INSTANCE", "UID", "container_config", "log_directory_name", "sandbox_config"]

UID = "io.kubernetes.pod.uid"
NAME = "io.kubernetes.pod.name"
NAMESPACE = "io.kubernetes.pod.namespace"
CONTAINER = "io.kubernetes.container.name"
GRACE = "io.kubernetes.pod.terminationGracePeriod"
INSTANCE = "kepd.dev/instance"
HASH = "kepd.dev/manifest-hash"
FILE = "kepd.dev/manifest-file"
HOSTNAME_LENGTH = 63


def log_directory_name(namespace: str, pod: str, uid: str) -> str:
    """Below `pods.logDirectory` (CLG-01)."""
    return f"{namespace}_{pod}_{uid}"


def sandbox_config(pod: PodSpec, instance: str, log_directory: Path, cgroup_root: str) -> pb.PodSandboxConfig:
    """The sandbox of a pod; it carries our mark, without which we never touch one."""
    options = pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace),
        hostname=pod.name[:HOSTNAME_LENGTH].rstrip("-."),
        log_directory=str(log_directory / log_directory_name(pod.namespace, pod.name, pod.uid)),
        labels={**dict(pod.labels), NAME: pod.name, NAMESPACE: pod.namespace, UID: pod.uid},
        annotations={**dict(pod.annotations), INSTANCE: instance, HASH: pod.hash, FILE: printable(pod.file)},
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=f"/{cgroup_root}/pod{pod.uid}",
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
        ),
    )


def container_config(pod: PodSpec, container: ContainerSpec) -> pb.ContainerConfig:
    """One container of it."""
    options = pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container.name),
        image=pb.ImageSpec(image=container.image, user_specified_image=container.image),
        command=container.command,
        args=container.args,
        envs=[pb.KeyValue(key=name, value=value.encode()) for name, value in container.env],
        labels={NAME: pod.name, NAMESPACE: pod.namespace, UID: pod.uid, CONTAINER: container.name},
        annotations={GRACE: str(pod.grace_s)},
        log_path=f"{container.name}/0.log",
        linux=pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(namespace_options=options),
        ),
    )
