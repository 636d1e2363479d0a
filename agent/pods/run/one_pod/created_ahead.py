# SPDX-License-Identifier: Apache-2.0
"""Creates a container while the one before it starts, so that its own start finds it there.

Only the first containers of a pod, and only where nothing but that start is waited for. Nothing is told and nothing is
retried here: what cannot be had, or is not taken at once, its launch makes anew. It never starts ahead of its turn.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from agent.model.pods.pod import ContainerKind, ContainerSpec, container_hash
from agent.pods.plan.start_steps import Launch
from agent.pods.plan.work import CreatingAhead
from agent.pods.run.handlers.interrupts import LaunchInterrupted
from agent.pods.run.one_pod.pod_images import PodImages
from agent.pods.run.one_pod.run_state import FAILURES, LivePod
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.observed import Instance, Stage
from agent.wire.cri import runtime_v1_pb2 as pb

# What a container is made with is what was true then; a start that takes longer has its successor made anew.
FRESH_S = 5.0

New = Callable[[Launch, ContainerSpec, pb.Image], Awaitable[tuple[Instance, float]]]


class CreatedAhead:
    """For one pod; `new` creates."""

    def __init__(self, run: LivePod, new: New, images: PodImages) -> None:
        self._run = run
        self._new = new
        self._images = images
        self._made: dict[str, tuple[Instance, float]] = {}

    def create_next(self, starting: ContainerSpec, sandbox_id: str) -> None:
        """While this one starts."""
        after = self._next(starting)
        if after is not None and CreatingAhead(after.name) not in self._run.tasks:
            step = Launch(after.name, 0, sandbox_id)
            self._run.spawn(CreatingAhead(after.name), self._create(step, after))

    def _next(self, starting: ContainerSpec) -> ContainerSpec | None:
        """The one that starts as soon as this one runs, and never did before."""
        run = self._run
        fields = starting.fields
        waits = starting.kind is ContainerKind.INIT or fields.startup_probe is not None or fields.post_start is not None
        if waits or run.rules.needs or starting.name not in run.pod.by_name:
            return None
        place = [one.name for one in run.pod.containers].index(starting.name) + 1
        after = run.pod.containers[place] if place < len(run.pod.containers) else None
        if after is None or run.seen.newest(after.name) is not None or run.memory.of(after.name).reason:
            return None
        images = {one.name for one in run.pod.spec.volumes if one.image is not None}
        return after if images.isdisjoint(mount.name for mount in after.fields.volume_mounts) else None

    async def _create(self, step: Launch, container: ContainerSpec) -> None:
        with suppress(ConfigProblem, LaunchInterrupted, *FAILURES):
            image = await self._images.present(container)
            if image is not None:
                self._made[container.name] = await self._new(step, container, image)

    def take(self, step: Launch, container: ContainerSpec, image: pb.Image) -> tuple[Instance, float] | None:
        """What this launch needs not create: of the same sandbox, manifest and image, and still only created."""
        made = self._made.pop(container.name, None)
        if made is None:
            return None
        known = self._run.seen.instance(made[0].id)
        is_fresh = self._run.context.clock.now_s() - made[0].created_s <= FRESH_S
        is_same = (made[0].sandbox_id, made[0].image_id) == (step.sandbox_id, image.id)
        is_whole = known is not None and known.stage is Stage.CREATED and known.hash == container_hash(container.fields)
        others = set(step.discards) - {made[0].id}
        return made if is_fresh and is_same and is_whole and not others and not step.target_id else None
