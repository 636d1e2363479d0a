# SPDX-License-Identifier: Apache-2.0
"""Decides when a running pull has taken too long: no progress, too slow over five minutes, or too long in total.

Time in the queue never counts, nor progress that was not visible.
"""

from collections.abc import Sequence

import msgspec

from agent.images.view.progress import PullProgress
from agent.model.images.text import bytes_text, duration_text

SLOW_WINDOW_S = 300.0
CHECK_S = 10.0


class DeadlineRules(msgspec.Struct, frozen=True, kw_only=True):
    """0 = no such limit."""

    progress_s: float = 600.0
    total_s: float = 0.0
    least_bytes_s: float = 0.0


class BytesMark(msgspec.Struct, frozen=True):
    at_s: float
    done_bytes: int


def overdue(
    progress: PullProgress, marks: Sequence[BytesMark], rules: DeadlineRules, now_s: float, *, is_visible: bool
) -> str | None:
    """Why the pull has to end now, or None. `is_visible`: whether this runtime shows progress at all."""
    if rules.total_s and now_s - progress.began_s >= rules.total_s:
        return f"not finished within {duration_text(rules.total_s)} ({_how_far(progress)})"
    if not is_visible:
        return None
    if rules.progress_s and now_s - progress.moved_s >= rules.progress_s:
        return f"no progress for {duration_text(rules.progress_s)} ({_how_far(progress)})"
    if rules.least_bytes_s and not progress.is_downloaded and marks and now_s - marks[0].at_s >= SLOW_WINDOW_S:
        speed = (progress.done_bytes - marks[0].done_bytes) / (now_s - marks[0].at_s)
        if speed < rules.least_bytes_s:
            least = bytes_text(round(rules.least_bytes_s))
            return f"slower than {least}/s for {duration_text(SLOW_WINDOW_S)} ({_how_far(progress)})"
    return None


def recent_marks(marks: Sequence[BytesMark], progress: PullProgress) -> tuple[BytesMark, ...]:
    """The marks with one more, as far back as the window for slowness needs; one every ten seconds is enough."""
    if marks and progress.at_s - marks[-1].at_s < CHECK_S:
        return tuple(marks)
    extended = (*marks, BytesMark(progress.at_s, progress.done_bytes))
    first = 0
    while first + 1 < len(extended) and progress.at_s - extended[first + 1].at_s >= SLOW_WINDOW_S:
        first += 1
    return extended[first:]


def next_check_s(rules: DeadlineRules) -> float:
    """How long a check may wait; short limits are checked more often."""
    limits = [limit for limit in (rules.progress_s, rules.total_s) if limit]
    return min([CHECK_S, *(limit / 4 for limit in limits)])


def _how_far(progress: PullProgress) -> str:
    if not progress.layers:
        return f"{progress.done_bytes} bytes" if progress.done_bytes else "nothing fetched yet"
    share = f", {progress.percent}%" if progress.percent is not None else ""
    return f"{progress.layers_downloaded} of {len(progress.layers)} layers{share}"
