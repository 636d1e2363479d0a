# SPDX-License-Identifier: Apache-2.0
"""Pulls as those who look see them: states in the feed, events while a pull waits or runs."""

import asyncio
from collections.abc import Mapping

from agent.images.queue.flights import SharedPull
from agent.images.queue.plan import PullPlan
from agent.images.queue.queue import PullQueue
from agent.images.run.caller_pulls import CallerPulls
from agent.images.run.pulling.attempt import Job
from agent.images.run.pulling.requests import PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.settings import ImageSettings
from agent.images.view.announce import Announcer
from agent.images.view.progress import PullProgress
from agent.model.images.state import PullStage

# Pulls that are shown at once, a tenth of a millisecond each.
PORTION = 2
# All that wait are looked at for events so often at most; the puller comes by each second while anything does.
ANNOUNCE_S = 1.0


class PullDisplay:
    def __init__(
        self, queue: PullQueue, requests: PullRequests, watcher: ProgressWatcher, caller_pulls: CallerPulls
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._watcher = watcher
        self._caller_pulls = caller_pulls
        self._announcer = Announcer()
        self._announced_s = -ANNOUNCE_S

    def rate_bytes_s(self, jobs: Mapping[int, Job]) -> float:
        seen = map(self._watcher.progress, jobs)
        return sum(progress.rate_bytes_s for progress in seen if progress is not None)

    def show_places(self, plan: PullPlan, jobs: Mapping[int, Job], *, is_look: bool = False) -> None:
        flights = dict(self._queue.flights)
        waiting = [one for one in plan.waiting if one.flight in flights]
        self._requests.show_waiting(flights, waiting, self._queue.rules, self.rate_bytes_s(jobs), is_look=is_look)

    async def show(self, plan: PullPlan, jobs: Mapping[int, Job], settings: ImageSettings, now_s: float) -> None:
        """Bring the feed up to date, in portions: others wait for this loop too, such as calls through the proxy."""
        flights = dict(self._queue.flights)
        has_events = settings.keys.progress.events and not settings.is_like_kubelet
        self.show_places(plan, jobs)
        if has_events and now_s - self._announced_s >= ANNOUNCE_S:
            self._announced_s = now_s
            self._announce_waiting(flights, plan, now_s)
        for position, number in enumerate([*jobs, *self._caller_pulls.running], 1):
            # By now it may have ended, or be another's.
            flight, job = self._queue.flights.get(number), jobs.get(number)
            if flight is not None and job is not None:
                progress = self._watcher.progress(number)
                self._requests.show_running(flight, job.stage, progress, job.attempts)
                if has_events and progress is not None:
                    self._announce_running(flight, job, progress, settings)
            elif flight is not None and number in self._caller_pulls.running:
                self._requests.show_running(flight, PullStage.DOWNLOADING, self._watcher.progress(number), 1)
            if position % PORTION == 0:
                await asyncio.sleep(0)
        self._requests.tidy(self._queue.flights)
        self._announcer.forget(self._queue.flights.keys())

    def _announce_waiting(self, flights: Mapping[int, SharedPull], plan: PullPlan, now_s: float) -> None:
        for waiting in plan.waiting:
            flight = flights[waiting.flight]
            for ask in self._requests.asks(flight.members)[:1]:
                waited_s = now_s - ask.member.arrived_s
                sentence = self._announcer.waiting(flight.number, ask.request.image, waited_s, waiting)
                if sentence is not None:
                    self._requests.tell_all(flight.members, (sentence,))

    def _announce_running(self, flight: SharedPull, job: Job, progress: PullProgress, settings: ImageSettings) -> None:
        written = job.reference.written
        sentence = self._announcer.running(flight.number, written, progress, settings.keys.progress)
        if sentence is not None:
            self._requests.tell_all(flight.members, (sentence,))
