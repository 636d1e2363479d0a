# SPDX-License-Identifier: Apache-2.0
"""Which dead containers and sandboxes of a pod are of no use any more."""

from collections import Counter
from collections.abc import Iterable

from agent.model.pods.pod import ContainerKind, PodSpec
from agent.pods.plan.work import LaunchingEphemeral, Work
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage


def dead_instances(pod: PodSpec, seen: SeenPod, keep: int) -> tuple[Instance, ...]:
    """Beyond the newest so many of each container, and of an init beyond its newest; never the newest instance."""
    counted: Counter[str] = Counter()
    found = []
    for one in seen.instances:
        newest = seen.newest(one.name)
        if one.stage is not Stage.ENDED or (newest is not None and newest.id == one.id):
            continue
        container = pod.by_name.get(one.name)
        is_init = container is not None and container.kind is ContainerKind.INIT
        counted[one.name] += 1
        if is_init or counted[one.name] > keep:
            found.append(one)
    return tuple(found)


def dead_ephemerals(seen: SeenPod, works: Iterable[Work]) -> tuple[Instance, ...]:
    """Those that were created and will not be started, because kepd died in between, and those that ended with
    an earlier sandbox."""
    at_work = {one.container for one in works if isinstance(one, LaunchingEphemeral)}
    current = seen.sandboxes[0].id if seen.sandboxes else ""
    return tuple(
        one
        for one in seen.ephemerals
        if (one.stage is Stage.CREATED and one.name not in at_work)
        or (one.stage is Stage.ENDED and one.sandbox_id != current)
    )


def dead_sandboxes(seen: SeenPod) -> tuple[SeenSandbox, ...]:
    used = {one.sandbox_id for one in seen.instances}
    return tuple(one for one in seen.sandboxes[1:] if not one.is_ready and one.id not in used)
