# SPDX-License-Identifier: Apache-2.0
"""Shows the pods of this node and what the plane says of itself: how each is, what is wrong with it, who is gone.

Never: decides whether a pod begins or ends.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence

from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState, with_since
from agent.pods.manifest.reading import ReadManifest
from agent.pods.plan.remembered import Memory, PastPods, Record
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.observed import SeenPod
from agent.pods.view.reasons import HAS_RIVALS
from agent.pods.view.status import Look, pod_status

MOST_TOLD = 5


class PodProblems:
    """Those without problems have no entry. `notes` are wrong with one container alone, such as its image."""

    def __init__(self) -> None:
        self._problems: dict[str, list[str]] = {}
        self._notes: dict[str, list[str]] = {}

    def clear(self) -> None:
        self._problems.clear()
        self._notes.clear()

    def forget(self, key: str) -> None:
        self._problems.pop(key, None)
        self._notes.pop(key, None)

    def look_at(self, key: str, memory: Memory, unsaved: str = "") -> None:
        """`unsaved` is why its record could not be written."""
        notes = [f"{key}: {name}: {one.message}" for name, one in memory.containers.items() if one.reason]
        self.forget(key)
        texts = [f"its record cannot be written, so a restart forgets what came since: {unsaved}"] if unsaved else []
        if problems := [*([memory.message] if memory.reason else []), *texts]:
            self._problems[key] = [f"{key}: {text}" for text in problems]
        if notes:
            self._notes[key] = notes

    @property
    def listed(self) -> list[str]:
        return [text for texts in self._problems.values() for text in texts]

    @property
    def notes(self) -> list[str]:
        return [text for texts in self._notes.values() for text in texts]


def first_of(texts: list[str]) -> list[str]:
    return texts if len(texts) <= MOST_TOLD else [*texts[:MOST_TOLD], f"and {len(texts) - MOST_TOLD} more"]


class ShownPods:
    """`changed` is set when the plane's line may be another."""

    def __init__(self, context: PodDependencies) -> None:
        self._context = context
        self.feed: Feed[PodState] = Feed()
        self.past = PastPods()
        self.changed = asyncio.Event()
        self._problems = PodProblems()
        # What is wrong with the manifests of pods that run, by uid.
        self._complaints: dict[str, str] = {}

    def clear(self) -> None:
        self._problems.clear()
        self._complaints.clear()

    @property
    def phases(self) -> Counter[str]:
        return Counter(pod.phase for pod in self.feed.items.values())

    def of(self, pod: PodSpec) -> PodState | None:
        state = self.feed.items.get(pod.key)
        return state if state is not None and state.uid == pod.uid else None

    def complaint_about(self, uid: str) -> str:
        """What is wrong with the manifest of a pod that runs."""
        return self._complaints.get(uid, "")

    def show(self, run: LivePod) -> None:
        key, before = run.pod.key, self.of(run.pod)
        # What an earlier kepd showed has not changed after the last that it noted.
        noted = run.history.moments if before is None else ()
        at_s = noted[-1].at_s if noted else self._context.clock.wall_s()
        self.feed.put(key, with_since(pod_status(run.look(self.complaint_about(run.pod.uid))), before, at_s))
        self._problems.look_at(key, run.memory, run.unsaved)
        self.changed.set()

    def show_unseen(self, records: Mapping[str, Record], had_begun: Container[str]) -> None:
        """The runtime does not answer. Which pods there are is known; how those are that had begun is not."""
        for key, record in records.items():
            look = Look(pod=record.pod, seen=SeenPod(), memory=record.memory, waits_for="the container runtime")
            self.feed.put(key, pod_status(look, is_seen=key not in had_begun))

    def hide_all_but(self, keys: Collection[str]) -> None:
        """Pods that were shown before the plane began anew, and whose end it did not see."""
        for key in self.feed.items.keys() - keys:
            self.feed.remove(key)

    def complain(self, run: LivePod, reading: ReadManifest, held: str) -> bool:
        """What is wrong with the manifest stands on the pod as well; whether it is another complaint than before.
        `held` is why an edit is refused."""
        text = "; ".join(str(finding) for finding in reading.complaints_about(run.pod.file))
        if text and reading.is_stale(run.pod):
            if run.pod.uid not in self._complaints:
                run.tell("ManifestStale", f"the last good manifest stays in force: {text}", is_warning=True)
            text = f"its last good manifest is in force: {text}"
        if held:
            text = f"its last good manifest is in force: {held}"
        if not text and (rivals := reading.rivals_of(run.pod)):
            text = f"{HAS_RIVALS}: {', '.join(rivals)}"
        is_another = text != self._complaints.get(run.pod.uid, "")
        if text:
            self._complaints[run.pod.uid] = text
        else:
            self._complaints.pop(run.pod.uid, None)
        return is_another

    def is_over(self, run: LivePod, *, is_free: bool) -> None:
        """Nothing of it is left; `is_free` where no other has its name."""
        self._complaints.pop(run.pod.uid, None)
        self.past.add(run.pod.key, run.history.moments, [one.name for one in run.pod.containers])
        if is_free:
            self.feed.remove(run.pod.key)
            self._problems.forget(run.pod.key)

    def tell(self, report: Report, troubles: Sequence[str], count: int | None) -> None:
        """`troubles` are those of the plane itself; `count` is None until it is known how many pods there are."""
        problems, notes = [*troubles, *self._problems.listed], self._problems.notes
        if problems:
            report.degraded("; ".join(first_of([*problems, *notes])))
        elif count is not None:
            # What one container lacks, such as its image, is no fault of this plane.
            report.ready("; ".join([f"{count} pods", *first_of(notes)]))
