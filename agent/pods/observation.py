# SPDX-License-Identifier: Apache-2.0
"""What the runtime lists, as the planner sees it.

Owns: which sandboxes are ours, and the translation from CRI's lists. Pure.
"""

from collections.abc import Collection, Iterable, Mapping

from agent.model.pod import DEFAULT_GRACE_S
from agent.pods.plan import SeenContainer, SeenSandbox, Stage
from agent.pods.sandbox_config import FILE, GRACE, HASH, INSTANCE, UID
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["seen_sandboxes"]

# A container of unknown state may well run, so it is stopped like one that does.
STAGES = {pb.CONTAINER_CREATED: Stage.CREATED, pb.CONTAINER_EXITED: Stage.ENDED}


def seen_sandboxes(
    sandboxes: Iterable[pb.PodSandbox], containers: Iterable[pb.Container], instance: str, ending: Collection[str]
) -> Mapping[str, tuple[SeenSandbox, ...]]:
    """Our sandboxes by pod, newest first. `ending` are the ids of those whose end has begun."""
    inside: dict[str, list[SeenContainer]] = {}
    for container in containers:
        inside.setdefault(container.pod_sandbox_id, []).append(_container(container))
    found: dict[str, list[SeenSandbox]] = {}
    for sandbox in sorted(sandboxes, key=lambda one: -one.created_at):
        if sandbox.annotations.get(INSTANCE) != instance:
            continue
        seen = SeenSandbox(
            id=sandbox.id,
            namespace=sandbox.metadata.namespace,
            name=sandbox.metadata.name,
            uid=sandbox.labels.get(UID, sandbox.metadata.uid),
            hash=sandbox.annotations.get(HASH, ""),
            file=sandbox.annotations.get(FILE, ""),
            is_ready=sandbox.state == pb.SANDBOX_READY,
            is_ending=sandbox.id in ending,
            created_at_s=sandbox.created_at / 1e9,
            containers=tuple(inside.get(sandbox.id, ())),
        )
        found.setdefault(seen.key, []).append(seen)
    return {key: tuple(seen) for key, seen in found.items()}


def _container(container: pb.Container) -> SeenContainer:
    grace = container.annotations.get(GRACE, "")
    return SeenContainer(
        container.id,
        container.metadata.name,
        STAGES.get(container.state, Stage.RUNNING),
        container.image.user_specified_image or container.image.image,
        int(grace) if grace.isdecimal() else DEFAULT_GRACE_S,
    )
