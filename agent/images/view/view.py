# SPDX-License-Identifier: Apache-2.0
"""Turns flights, plan, progress and disks into the values that people, the API and tests see; without credentials.

What a pull spent its time on is for the trace of the pod that waited. Layers are seen by looks at the store, up to a
second apart; a pull that is over before the first look has none.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.images.collect.disks import ImageDisk, Need, lies_on
from agent.images.collect.plan import CollectMode, CollectPlan, CollectRules, NodeImage
from agent.images.prefetch.plan import Skip
from agent.images.queue.flights import SharedPull
from agent.images.queue.plan import WaitingFlight
from agent.images.queue.rules import QueueRules
from agent.images.view.progress import PullProgress
from agent.model.images.pull import ErrorClass, PullClass, PullPhase, PullRequest
from agent.model.images.reference import ImageReference
from agent.model.images.state import LayerStage, LimitState, PullStage, PullState, Requester
from agent.model.images.text import bytes_text
from agent.model.nodes.file_system import ImagesOnDisk

MOST_LAYERS = 32


def pull_id(flight: SharedPull) -> str:
    return f"p{flight.number}"


def requesters_of(flight: SharedPull, requests: Mapping[str, PullRequest], epoch_s: float) -> tuple[Requester, ...]:
    """Who waits for it. `epoch_s` turns the queue's time into wall time."""
    return tuple(
        Requester(
            id=member.id,
            pod_uid=request.pod.uid,
            namespace=request.pod.namespace,
            pod=request.pod.name,
            container=request.container,
            priority=member.priority,
            policy=str(member.policy),
            since_s=epoch_s + member.arrived_s,
        )
        for member in flight.members
        if (request := requests.get(member.id)) is not None
    )


def queued_state(
    flight: SharedPull,
    reference: ImageReference,
    requesters: tuple[Requester, ...],
    waiting: WaitingFlight | None,
    eta_s: float | None,
) -> PullState:
    return PullState(
        id=pull_id(flight),
        image=reference.written,
        reference=str(reference),
        registry=flight.registry,
        handler=flight.key.handler,
        pull_class=flight.pull_class,
        stage=PullStage.QUEUED,
        requesters=requesters,
        position=waiting.position if waiting else 0,
        wait_reason=str(waiting.why.reason) if waiting else "",
        wait_text=str(waiting.why) if waiting else "",
        queued_at_s=min((one.since_s for one in requesters), default=0.0),
        size_bytes=flight.size_bytes,
        eta_s=eta_s,
        is_eta_rough=True,
    )


def running_state(state: PullState, stage: PullStage, progress: PullProgress | None, attempts: int) -> PullState:
    base = replace(
        state, position=0, wait_reason="", wait_text="", attempts=attempts, eta_s=None, is_eta_rough=False, stage=stage
    )
    if progress is None:
        return base
    if stage is PullStage.RESOLVING and progress.manifest is not None:
        stage = PullStage.UNPACKING if progress.is_downloaded else PullStage.DOWNLOADING
    if progress.is_lazy and not stage.is_over and stage is not PullStage.VERIFYING:
        stage = PullStage.LAZY
    return replace(
        base,
        stage=stage,
        total_bytes=None if progress.is_lazy else progress.total_bytes,
        done_bytes=progress.done_bytes,
        percent=progress.percent,
        rate_bytes_s=round(progress.rate_bytes_s, 1),
        eta_s=progress.eta_s,
        layers=progress.layers,
        layers_unpacked=progress.unpacked_layers,
    )


def skipped_state(state_id: str, skip: Skip, since_s: float) -> PullState:
    """An image that is not fetched ahead; it is no pull, but stands where people look for one."""
    return PullState(
        id=state_id,
        image=skip.image,
        reference=skip.image,
        registry=skip.image.partition("/")[0],
        handler="",
        pull_class=PullClass.PREFETCH,
        stage=PullStage.SKIPPED,
        wait_text=skip.why,
        queued_at_s=since_s,
    )


def over(
    state: PullState,
    stage: PullStage,
    ended_at_s: float,
    image_id: str = "",
    error: str = "",
    error_class: ErrorClass | None = None,
) -> PullState:
    """A pull that is over. Only one that worked is at 100 %."""
    is_done = stage is PullStage.DONE
    kept = (LayerStage.CACHED, LayerStage.LAZY)
    layers = tuple(
        one if not is_done or one.stage in kept else replace(one, done_bytes=one.size_bytes, stage=LayerStage.DONE)
        for one in state.layers
    )
    return replace(
        state,
        stage=stage,
        position=0,
        wait_reason="",
        wait_text="",
        ended_at_s=ended_at_s,
        image_id=image_id,
        error=error,
        error_class=error_class,
        percent=100 if is_done else state.percent,
        done_bytes=(state.total_bytes or state.done_bytes) if is_done else state.done_bytes,
        layers=layers,
        layers_unpacked=len(layers) if is_done else state.layers_unpacked,
        rate_bytes_s=0.0,
        eta_s=None,
    )


def limit_states(flights: Sequence[SharedPull], rules: QueueRules) -> list[LimitState]:
    """The node's limit, and those of registries that have one or have something running."""
    running = [flight for flight in flights if flight.is_running]
    by_group: dict[str, int] = dict.fromkeys(rules.per_registry, 0)
    for flight in running:
        group = rules.registry_group(flight.registry)
        by_group[group] = by_group.get(group, 0) + 1
    node = LimitState("node", rules.max_parallel, len(running))
    return [
        node,
        *(LimitState(group, rules.registry_limit(group) or 0, count) for group, count in sorted(by_group.items())),
    ]


def pull_phases(
    arrived_s: float, started_s: float, ended_s: float, progress: PullProgress | None, wall_minus_now_s: float
) -> tuple[PullPhase, ...]:
    """Times are on the monotonic clock; those of the phases are wall time."""

    def phase(name: str, begin_s: float, end_s: float, digest: str = "", size_bytes: int = 0) -> PullPhase:
        return PullPhase(
            name=name,
            begin_s=begin_s + wall_minus_now_s,
            end_s=min(max(begin_s, end_s), ended_s) + wall_minus_now_s,
            digest=digest,
            size_bytes=size_bytes,
        )

    def phases() -> Iterator[PullPhase]:
        yield phase("queue", arrived_s, max(arrived_s, started_s))
        if progress is None or progress.resolved_s is None:
            return
        yield phase("resolve", started_s, progress.resolved_s)
        sizes = {one.digest: one.size_bytes for one in progress.layers}
        for digest, time in list(progress.layer_times.items())[:MOST_LAYERS]:
            yield phase("layer", time.begin_s, ended_s if time.end_s is None else time.end_s, digest, sizes[digest])
        if progress.downloaded_s is not None:
            yield phase("unpack", progress.downloaded_s, ended_s)

    return tuple(phases())


def images_on_disks(
    disks: Sequence[ImageDisk], plan: CollectPlan, forced: CollectPlan, rules: CollectRules
) -> tuple[ImagesOnDisk, ...]:
    """`plan` is the one in force, `forced` has all that nothing protects, in the order in which it would go."""
    return tuple(_of_one(disk, need, plan, forced, rules) for disk, need in zip(disks, plan.needs, strict=False))


def _of_one(disk: ImageDisk, need: Need, plan: CollectPlan, forced: CollectPlan, rules: CollectRules) -> ImagesOnDisk:
    high = rules.of_disk(disk).high if rules.mode is CollectMode.FULL else 0
    if not high or need.problem:
        return ImagesOnDisk(paths=disk.paths, collects_at=high)
    chosen = plan if need.is_some else forced
    going = [one.image for one in chosen.removals if lies_on(one.image.devices, disk.device, chosen.needs)]
    text = _text(going) if need.is_some else going[0].shown_name if going else ""
    return ImagesOnDisk(paths=disk.paths, collects_at=high, is_collecting=need.is_some, next=text)


def _text(going: Sequence[NodeImage]) -> str:
    if not going:
        return ""
    size = bytes_text(sum(one.size_bytes for one in going))
    return f"{len(going)} images, {size}" if len(going) > 1 else f"{going[0].shown_name}, {size}"
