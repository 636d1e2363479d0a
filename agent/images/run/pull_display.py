# SPDX-License-Identifier: Apache-2.0
"""Pulls as those who look see them: states in the feed, events while a pull waits or runs."""

from collections.abc import Mapping

from agent.images.queue.flights import Flight
from agent.images.queue.plan import PullPlan
from agent.images.queue.queue import PullQueue
from agent.images.run.attempt import Job
from agent.images.run.caller_pulls import CallerPulls
from agent.images.run.requests import PullRequests
from agent.images.run.watcher import ProgressWatcher
from agent.images.settings import ImageSettings
from agent.images.view.announce import Announcer


class PullDisplay:
    def __init__(
        self, queue: PullQueue, requests: PullRequests, watcher: ProgressWatcher, caller_pulls: CallerPulls
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._watcher = watcher
        self._caller_pulls = caller_pulls
        self._announcer = Announcer()

    def rate_bytes_s(self, jobs: Mapping[int, Job]) -> float:
        seen = map(self._watcher.progress, jobs)
        return sum(progress.rate_bytes_s for progress in seen if progress is not None)

    def show(self, plan: PullPlan, jobs: Mapping[int, Job], settings: ImageSettings, now_s: float) -> None:
        flights = dict(self._queue.flights)
        self._requests.show_waiting(flights, plan, self._queue.rules, self.rate_bytes_s(jobs))
        for number, job in jobs.items():
            flight = flights.get(number)
            if flight is not None:
                self._requests.show_running(flight, job.stage, self._watcher.progress(number), job.attempts)
        self._caller_pulls.show(flights)
        self._requests.tidy(flights)
        if settings.keys.progress.events and not settings.is_like_kubelet:
            self._announce_waiting(flights, plan, now_s)
            self._announce_running(flights, jobs, settings)
            self._announcer.forget(flights.keys())

    def _announce_waiting(self, flights: Mapping[int, Flight], plan: PullPlan, now_s: float) -> None:
        for waiting in plan.waiting:
            flight = flights[waiting.flight]
            for ask in self._requests.asks(flight.members)[:1]:
                waited_s = now_s - ask.member.arrived_s
                sentence = self._announcer.waiting(flight.number, ask.request.image, waited_s, waiting)
                if sentence is not None:
                    self._requests.tell_all(flight.members, (sentence,))

    def _announce_running(
        self, flights: Mapping[int, Flight], jobs: Mapping[int, Job], settings: ImageSettings
    ) -> None:
        for number, job in jobs.items():
            progress = self._watcher.progress(number)
            if progress is not None and number in flights:
                sentence = self._announcer.running(number, job.reference.written, progress, settings.keys.progress)
                if sentence is not None:
                    self._requests.tell_all(flights[number].members, (sentence,))
