# SPDX-License-Identifier: Apache-2.0
"""How a pod and its containers are shut in: namespaces, users, capabilities, profiles, what of the kernel is hidden.

Values for the runtime, worked out from the manifest and from what the node gives. Pure.
"""

from collections.abc import Sequence

import msgspec

from agent.model.devices.container_devices import NO_DEVICES, ContainerDevices
from agent.model.pods.container_fields import Profile, SecurityContext, SELinux
from agent.model.pods.fields import PodSecurityContext
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.user_ranges import RANGE_LENGTH
from agent.pods.settings import PodSettings
from agent.wire.cri import runtime_v1_pb2 as pb

MASKED = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
PROFILE_TYPES = {
    "RuntimeDefault": pb.SecurityProfile.RuntimeDefault,
    "Unconfined": pb.SecurityProfile.Unconfined,
    "Localhost": pb.SecurityProfile.Localhost,
}
APPARMOR_WORDS = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pod: what its node gives it. `first_id` is the first of its own users; 0 where it has none."""

    settings: PodSettings
    uses_systemd: bool = False
    first_id: int = 0

    @property
    def memory_qos_bytes(self) -> int:
        """What pods may have together, where memory is protected and throttled (KEP-2570); else 0."""
        return self.settings.capacity.memory_bytes if self.settings.pods.memory_qos else 0


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was worked out for one instance of a container."""

    attempt: int = 0
    image_ref: str = ""
    image_user: str = ""
    image_uid: int | None = None
    environment: Sequence[tuple[str, str]] = ()
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    mounts: Sequence[pb.Mount] = msgspec.field(default=())
    devices: ContainerDevices = NO_DEVICES
    # The container whose processes it sees, where containers of the pod do not see each other's.
    target_id: str = ""


def id_mapping(first_id: int) -> pb.IDMapping:
    return pb.IDMapping(host_id=first_id, container_id=0, length=RANGE_LENGTH)


def namespaces(pod: PodSpec, node: NodeShape) -> pb.NamespaceOption:
    spec = pod.spec
    pid = pb.NODE if spec.host_pid else pb.POD if spec.share_process_namespace else pb.CONTAINER
    found = pb.NamespaceOption(
        network=pb.NODE if spec.host_network else pb.POD, pid=pid, ipc=pb.NODE if spec.host_ipc else pb.POD
    )
    if node.first_id:
        mapping = id_mapping(node.first_id)
        found.userns_options.CopyFrom(pb.UserNamespace(mode=pb.POD, uids=[mapping], gids=[mapping]))
    return found


def sandbox_security(pod: PodSpec, node: NodeShape) -> pb.LinuxSandboxSecurityContext:
    given = pod.spec.security_context or PodSecurityContext()
    context = pb.LinuxSandboxSecurityContext(
        namespace_options=namespaces(pod, node),
        privileged=any(
            one.fields.security_context is not None and one.fields.security_context.privileged for one in pod.containers
        ),
        seccomp=pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault),
        supplemental_groups=_groups(pod),
    )
    if given.run_as_user is not None:
        context.run_as_user.value = given.run_as_user
        if given.run_as_group is not None:
            context.run_as_group.value = given.run_as_group
    if given.se_linux_options is not None:
        context.selinux_options.CopyFrom(_selinux(given.se_linux_options))
    return context


def _groups(pod: PodSpec) -> list[int]:
    """fsGroup and supplementalGroups; the runtime merges them with the image's groups."""
    given = pod.spec.security_context or PodSecurityContext()
    return [*([given.fs_group] if given.fs_group is not None else []), *given.supplemental_groups]


def _selinux(given: SELinux) -> pb.SELinuxOption:
    return pb.SELinuxOption(user=given.user, role=given.role, type=given.type, level=given.level)


def check_user(pod: PodSpec, container: ContainerSpec, made: Made) -> None:
    """With runAsNonRoot a container whose user is root, or is not known, is refused."""
    own, whole = contexts(pod, container)
    if not (whole.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root):
        return
    user = effective_user(pod, container)
    place = f'(pod: "{pod.full_name}", container: {container.name})'
    if user is not None:
        if user == 0:
            raise ConfigProblem(f"container's runAsUser breaks non-root policy {place}")
    elif made.image_user:
        text = f"image has non-numeric user ({made.image_user}), cannot verify user is non-root"
        raise ConfigProblem(f"container has runAsNonRoot and {text} {place}")
    elif not made.image_uid:
        raise ConfigProblem(f"container has runAsNonRoot and image will run as root {place}")


def effective_user(pod: PodSpec, container: ContainerSpec) -> int | None:
    """The container's own, else the pod's, else the image's."""
    own, whole = contexts(pod, container)
    return whole.run_as_user if own.run_as_user is None else own.run_as_user


def contexts(pod: PodSpec, container: ContainerSpec) -> tuple[SecurityContext, PodSecurityContext]:
    return container.fields.security_context or SecurityContext(), pod.spec.security_context or PodSecurityContext()


def container_security(
    pod: PodSpec, container: ContainerSpec, made: Made, node: NodeShape
) -> pb.LinuxContainerSecurityContext:
    own, whole = contexts(pod, container)
    is_unmasked = own.proc_mount == "Unmasked"
    context = pb.LinuxContainerSecurityContext(
        namespace_options=namespaces(pod, node),
        privileged=own.privileged,
        readonly_rootfs=own.read_only_root_filesystem,
        no_new_privs=own.allow_privilege_escalation is False,
        supplemental_groups=_groups(pod),
        masked_paths=() if is_unmasked or own.privileged else (*MASKED, *node.settings.facts.masked),
        readonly_paths=() if is_unmasked or own.privileged else READ_ONLY,
        seccomp=_profile(own.seccomp_profile or whole.seccomp_profile, node, node.settings.pods.default_seccomp),
    )
    if made.target_id and context.namespace_options.pid == pb.CONTAINER:
        context.namespace_options.pid = pb.TARGET
        context.namespace_options.target_id = made.target_id
    user = effective_user(pod, container)
    if user is not None:
        context.run_as_user.value = user
    elif made.image_user:
        context.run_as_username = made.image_user
    else:
        # A group alone would be refused, and an image without a user means root.
        context.run_as_user.value = made.image_uid or 0
    group = whole.run_as_group if own.run_as_group is None else own.run_as_group
    if group is not None:
        context.run_as_group.value = group
    if own.capabilities is not None:
        context.capabilities.CopyFrom(
            pb.Capability(add_capabilities=own.capabilities.add, drop_capabilities=own.capabilities.drop)
        )
    selinux = own.se_linux_options or whole.se_linux_options
    if selinux is not None:
        context.selinux_options.CopyFrom(_selinux(selinux))
    armour = own.app_armor_profile or whole.app_armor_profile
    if armour is not None:
        context.apparmor.CopyFrom(_profile(armour, node, "RuntimeDefault", is_name=True))
        # What runtimes read that do not know the field above yet.
        context.apparmor_profile = APPARMOR_WORDS.get(armour.type, f"localhost/{armour.localhost_profile}")
    if whole.supplemental_groups_policy == "Strict":
        context.supplemental_groups_policy = pb.Strict
    return context


def _profile(given: Profile | None, node: NodeShape, default: str, *, is_name: bool = False) -> pb.SecurityProfile:
    """A name for AppArmor, a file for seccomp."""
    kind = given.type if given is not None and given.type else default
    place = ""
    if kind == "Localhost" and given is not None:
        place = given.localhost_profile if is_name else f"{node.settings.seccomp_root}/{given.localhost_profile}"
    return pb.SecurityProfile(profile_type=PROFILE_TYPES[kind], localhost_ref=place)
