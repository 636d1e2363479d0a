# SPDX-License-Identifier: Apache-2.0
"""What a pull spent its time on, for the trace of the pod that waited for it: queue, resolve, layers, unpack.

Layers are seen by looks at the store, up to a second apart; a pull that is over before the first look has none.
"""

from collections.abc import Iterator

from agent.images.view.progress import PullProgress
from agent.model.images.pull import PullPhase

MOST_LAYERS = 32


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
