# SPDX-License-Identifier: Apache-2.0
"""Whether a container that ended is started again.

Owns: the restart matrix of 1.3: what it is, how it ended, its own policy and rules, the policy of its pod.
Never: says when; restart.py has the pauses. Pure.
"""

from agent.model.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.pod_fields import Container
from agent.pods.runtime.seen import Instance

__all__ = ["is_done_init", "matching_action", "may_restart", "policy_of"]

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"


def policy_of(pod: PodSpec, container: ContainerSpec) -> str:
    """The container's own, else the pod's."""
    return container.fields.restart_policy or pod.spec.restart_policy


def is_done_init(instance: Instance) -> bool:
    """STA-02."""
    return instance.has_succeeded


def matching_action(container: Container, exit_code: int) -> str:
    """What the first rule that speaks of this code wants (RST-04); empty if none does."""
    for rule in container.restart_policy_rules:
        if rule.exit_codes is not None:
            is_listed = exit_code in rule.exit_codes.values
            if is_listed == (rule.exit_codes.operator == "In"):
                return rule.action
    return ""


def may_restart(pod: PodSpec, container: ContainerSpec, ended: Instance, *, is_killed: bool) -> bool:
    """`is_killed` says that kepd ended it because a probe or hook failed: rules do not count then, only the policy."""
    if container.kind is ContainerKind.SIDECAR:
        return True
    if container.kind is ContainerKind.INIT and is_done_init(ended):
        return False
    if not is_killed and matching_action(container.fields, ended.exit_code) in (RESTART, RESTART_ALL):
        return True
    policy = policy_of(pod, container)
    if container.kind is ContainerKind.INIT:
        return policy != "Never"
    if policy == "OnFailure":
        return is_killed or not ended.has_succeeded
    return policy == "Always"
