# SPDX-License-Identifier: Apache-2.0
"""How long a pod took to start by what the node itself does: without pulls and init containers."""

from collections.abc import Collection, Iterable, Sequence

from agent.pods.view.history import Moment

PULL_ENDS = ("pull_finished", "pull_failed")


def own_start_s(moments: Sequence[Moment], inits: Collection[str], began_s: float, started_s: float) -> float:
    """What passes at once is left out once. A beginning whose moment is forgotten began when the pod was seen."""
    spans = [*_spans(moments, "pull_started", PULL_ENDS, None), *_spans(moments, "started", ("exit",), inits)]
    left_out_s, until_s = 0.0, began_s
    for begin_s, end_s in sorted(spans):
        first_s, last_s = max(begin_s, until_s), min(end_s, started_s)
        if last_s > first_s:
            left_out_s, until_s = left_out_s + last_s - first_s, last_s
    return max(started_s - began_s - left_out_s, 0.0)


def _spans(
    moments: Iterable[Moment], begin: str, ends: Collection[str], of: Collection[str] | None
) -> list[tuple[float, float]]:
    begun: dict[str, float] = {}
    found = []
    for one in moments:
        if of is not None and one.container not in of:
            continue
        if one.kind == begin:
            begun[one.container] = one.at_s
        elif one.kind in ends and one.container in begun:
            found.append((begun.pop(one.container), one.at_s))
    return found
