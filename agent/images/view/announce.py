# SPDX-License-Identifier: Apache-2.0
"""Decides which pulls get an event while they wait or run, and how often."""

from collections.abc import Collection

import msgspec

from agent.config.sections.images import ImageProgress
from agent.images.queue.plan import WaitingFlight
from agent.images.view.progress import PullProgress
from agent.images.view.texts import Sentence, progress, queued
from agent.model.images.text import bytes_text

QUEUED_AFTER_S = 10.0
SHORT_PULL_S = 30.0
LEAST_PAUSE_S = 60.0
LEAST_POINTS = 10
MOST_PER_FLIGHT = 20


class _Told(msgspec.Struct):
    has_queued: bool = False
    last: PullProgress | None = None
    count: int = 0


class Announcer:
    """Changed by its puller alone."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}

    def waiting(self, number: int, image: str, waited_s: float, waiting: WaitingFlight) -> Sentence | None:
        told = self._told.setdefault(number, _Told())
        if told.has_queued or waited_s < QUEUED_AFTER_S:
            return None
        told.has_queued = True
        return queued(image, waiting.position, str(waiting.why))

    def running(self, number: int, image: str, now: PullProgress, often: ImageProgress) -> Sentence | None:
        told = self._told.setdefault(number, _Told())
        if now.at_s - now.began_s < SHORT_PULL_S or told.count >= MOST_PER_FLIGHT or now.total_bytes is None:
            return None
        if told.last is not None:
            points = (now.percent or 0) - (told.last.percent or 0)
            if now.at_s - told.last.at_s < LEAST_PAUSE_S or points < LEAST_POINTS:
                return None
            if not _is_due(told.last, now, often):
                return None
        told.last = now
        told.count += 1
        done = f"{now.percent or 0}% ({bytes_text(now.done_bytes)} of {bytes_text(now.total_bytes)})"
        unpacked = f"{now.unpacked_layers} of {len(now.layers)} layers unpacked" if now.chains else ""
        return progress(image, done, unpacked, now.eta_s)

    def forget(self, present: Collection[int]) -> None:
        self._told = {number: told for number, told in self._told.items() if number in present}


def _is_due(then: PullProgress, now: PullProgress, often: ImageProgress) -> bool:
    """Whichever comes first; 0 = not by this."""
    return (
        (often.every > 0 and now.at_s - then.at_s >= often.every)
        or (often.bytes > 0 and now.done_bytes - then.done_bytes >= often.bytes)
        or (often.percent > 0 and (now.percent or 0) - (then.percent or 0) >= often.percent)
    )
