# SPDX-License-Identifier: Apache-2.0
"""The container that `kepctl debug` adds to a pod that runs, or why there cannot be one.

It joins the pod's sandbox, runs once and ends with the pod. Never: changes the pod's manifest, or what is planned for
the containers that stand there.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import asdict, replace

from agent.model.pods.container_fields import Capabilities, Container, Profile, SecurityContext
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.refused import Refused
from agent.pods.manifest.validation import check_pod
from agent.pods.plan.start_steps import Launch
from agent.pods.runtime.observed import SeenPod, Stage

# Also those that have ended; each stays in the runtime and in the record of its pod.
MOST_EPHEMERAL = 32
# As kubectl has them.
PROFILES: Mapping[str, SecurityContext | None] = MappingProxyType(
    {
        "general": SecurityContext(capabilities=Capabilities(add=("SYS_PTRACE",))),
        "baseline": None,
        "restricted": SecurityContext(
            run_as_non_root=True,
            allow_privilege_escalation=False,
            capabilities=Capabilities(drop=("ALL",)),
            seccomp_profile=Profile(type="RuntimeDefault"),
        ),
        "netadmin": SecurityContext(capabilities=Capabilities(add=("NET_ADMIN", "NET_RAW"))),
        "sysadmin": SecurityContext(privileged=True),
    }
)


def plan_ephemeral(
    pod: PodSpec, seen: SeenPod, fields: Container, profile: str, target: str
) -> tuple[ContainerSpec, Launch]:
    """The container, and the step that starts it. Raises Refused."""
    if profile not in PROFILES:
        raise Refused("invalid", f'profile "{profile}" is not known; expected one of {", ".join(PROFILES)}')
    name = fields.name
    if name in pod.by_name or seen.newest(name) is not None:
        raise Refused("precondition", f'pod {pod.key} has a container "{name}" already; choose another name')
    if len(seen.ephemerals) >= MOST_EPHEMERAL:
        raise Refused("precondition", f"pod {pod.key} has {MOST_EPHEMERAL} ephemeral containers already; exec into one")
    fields = replace(fields, security_context=_rights(PROFILES[profile], fields.security_context))
    if wrong := check_pod(replace(pod.spec, containers=(*pod.spec.containers, fields))):
        raise Refused("invalid", "; ".join(f"{one.path.rpartition('.')[2]}: {one.text}" for one in wrong))
    if seen.active is None:
        raise Refused("precondition", f"pod {pod.key} has no sandbox that is ready; nothing can join it now")
    launch = Launch(name, seen.next_attempt(name), seen.active.id, target_id=_target_id(pod, seen, target))
    return ContainerSpec(ContainerKind.EPHEMERAL, fields), launch


def _rights(profile: SecurityContext | None, given: SecurityContext | None) -> SecurityContext | None:
    """The rights of the profile, except where the file of `--custom` says something else."""
    if profile is None or given is None:
        return given or profile
    usual = asdict(SecurityContext())
    return replace(profile, **{name: value for name, value in asdict(given).items() if value != usual[name]})


def _target_id(pod: PodSpec, seen: SeenPod, target: str) -> str:
    if not target:
        return ""
    found = seen.newest(target)
    if found is None and target not in pod.by_name:
        raise Refused("not_found", f'pod {pod.key} has no container "{target}" whose processes could be seen')
    if found is None or found.stage is not Stage.RUNNING:
        raise Refused("precondition", f"{target} does not run, so it has no processes to be seen")
    return found.id
