# SPDX-License-Identifier: Apache-2.0
"""Counts kills for want of memory, keeps the counts over restarts, and tells of each.

Sources: the counters of each sample, events of the runtime, and the reason of an end. A record is written when a count
has changed, one small file for each pod that ever lost something.
"""

from collections.abc import Callable

import structlog
from msgspec.structs import replace

from agent.model.event import Event
from agent.model.images.text import bytes_text
from agent.model.pods.state import PodState
from agent.model.text.records import RecordFiles
from agent.observe.kernel.group_text import NO_FIGURES, GroupFigures
from agent.observe.run.container_registry import Observed, ObservedPod, Roster
from agent.observe.sample.ooms import (
    InstanceOoms,
    NodeKills,
    OomKill,
    PodOoms,
    decode_ooms,
    encode_ooms,
    kills_of,
    scope_by_limits,
    scope_of,
    scope_of_one,
)

log = structlog.get_logger(plane="observe")

FOLDER = "ooms"
REASON = "ContainerOOM"
# A counter that has not moved so long after the runtime's word for a kill will not move for it.
LATE_S = 1.0


class OomBook:
    """`lives` says whether a pod is still wanted, though nothing of it may run now."""

    def __init__(
        self,
        roster: Roster,
        records: RecordFiles,
        tell: Callable[[Event], None],
        lives: Callable[[str], bool] = lambda _uid: False,
    ) -> None:
        self._lives = lives
        self._roster = roster
        self._records = records
        self._tell = tell
        self.pods: dict[str, PodOoms] = {}
        self._before: dict[str, GroupFigures] = {}
        self._changed: set[str] = set()
        self._instances: dict[str, InstanceOoms] = {}
        # What the runtime told of containers that nobody has asked about yet.
        self._early: dict[str, bool] = {}
        # When the runtime told of a kill in one whose counter says nothing of it.
        self._words: dict[str, float] = {}
        # Kills that are counted and not told yet, for a moment later it shows whether their container goes on.
        self._untold: dict[str, OomKill] = {}
        # Kills since this process began: events, and processes that the kernel's counters of the groups explain.
        self.kills = 0
        self._processes = 0
        self._node: NodeKills | None = None

    async def load(self) -> None:
        try:
            found = await self._records.read_folder(FOLDER)
        except OSError as error:
            log.warning("oom_records_unreadable", error=str(error))
            return
        for name, content in found.items():
            try:
                pod = decode_ooms(content)
            except ValueError as error:
                log.warning("oom_record_unreadable", record=name, error=str(error))
                continue
            self.pods[pod.uid] = pod

    def count(self, instance: str) -> int:
        found = self._instances.get(instance)
        return found.count if found is not None else 0

    def look(self, available_share: float | None) -> None:
        """At the figures that were just read, before anybody sees their sample."""
        for pod in self._roster.pods.values():
            own = pod.own.figures if pod.own is not None else NO_FIGURES
            group = (self._before.get(pod.sandbox.id, NO_FIGURES), own)
            for one in pod.containers.values():
                if self._before.get(one.id) is one.figures and one.id not in self._early:
                    continue
                ooms = self._of(pod, one)
                ooms.is_told |= self._early.pop(one.id, False)
                kills = kills_of(one.figures)
                if kills is not None and kills > ooms.read:
                    ooms.read = kills
                self._processes += max((one.figures.oom_kills or 0) - (self._known(one.id).oom_kills or 0), 0)
                before = self._before.get(one.id, NO_FIGURES)
                self._settle(pod, one, ooms, scope_of(before, one.figures, group, available_share))
                self.tell(one.id)
                self._before[one.id] = one.figures
            self._before[pod.sandbox.id] = own

    def _known(self, instance: str) -> GroupFigures:
        return self._before.get(instance, NO_FIGURES)

    def look_at_node(self, killed: int | None) -> None:
        """Of all processes that the kernel killed on this node, those that no container explains."""
        if killed is None:
            return
        if self._node is None:
            self._node = NodeKills(killed - self._processes)
        new = self._node.look(killed, max(self._processes, self.kills))
        if new:
            text = f"System OOM encountered: the kernel killed {new} outside of pods"
            self._tell(Event(is_warning=True, reason="SystemOOM", message=text, plane="observe"))

    @property
    def of_node(self) -> dict[str, int]:
        return {"pods": self.kills, "node": self._node.count if self._node is not None else 0}

    def heard(self, instance: str) -> None:
        """The runtime told of a kill in this container. With version 1 it does so of each container of a pod that has
        no memory left, wherever the kill was, so where the counter can be read the counter decides."""
        found = self._find(instance)
        if found is None:
            self._early[instance] = True
            return
        pod, one = found
        ooms = self._of(pod, one)
        kills = kills_of(one.figures)
        if kills is not None and kills <= ooms.read and one.ended_s is None:
            self._words[instance] = one.seen_s
            return
        ooms.is_told = True
        ooms.read = max(ooms.read, kills or 0)
        self._settle(pod, one, ooms, self._scope(pod, one))

    def _scope(self, pod: ObservedPod, one: Observed) -> str:
        of_pod = pod.own.figures.limits.memory if pod.own is not None else None
        return scope_of_one(self._known(one.id), one.figures, of_pod)

    def _is_denied(self, instance: str, one: Observed | None) -> bool:
        """Whether the runtime's word was about another container: this one lived on, and its counter did not move."""
        word_s = self._words.pop(instance, None)
        return word_s is not None and one is not None and one.seen_s - word_s >= LATE_S and not kills_of(one.figures)

    def looked(self, instance: str) -> bool:
        """At its counter, out of turn. Answers whether there is something new."""
        found = self._find(instance)
        if found is None:
            return False
        pod, one = found
        ooms = self._of(pod, one)
        kills = kills_of(one.figures) or 0
        if kills <= ooms.read:
            return False
        ooms.read = kills
        self._settle(pod, one, ooms, self._scope(pod, one))
        return True

    def tell(self, instance: str) -> None:
        """What was counted of it and not told. The kernel counts a kill before the process is gone."""
        kill, found = self._untold.pop(instance, None), self._find(instance)
        if kill is not None and found is not None:
            pod, one = found
            is_over = one.ended_s is not None or one.is_gone or one.figures.processes == 0
            self._tell(_event(pod.namespace, pod.name, one.name, one.figures, kill, is_over=is_over))

    def ended(self, pod: PodState, container: str, instance: str) -> None:
        """The runtime said of the end of one of our containers that memory was the reason; told often, counted once."""
        known = self.pods.setdefault(pod.uid, PodOoms(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        found = self._find(instance)
        figures = found[1].figures if found is not None else NO_FIGURES
        untold = self._untold.pop(instance, None)
        if untold is not None:
            self._tell(_event(pod.namespace, pod.name, container, figures, untold, is_over=True))
        if known.is_past(container, instance):
            return
        ooms = known.instance(container, instance)
        if ooms.is_told:
            return
        if self._is_denied(instance, found[1] if found is not None else None):
            return
        ooms.is_told = True
        kill = ooms.settle(instance, scope_by_limits(figures))
        if kill is not None:
            self.kills += kill.count
            self._changed.add(pod.uid)
            self._tell(_event(pod.namespace, pod.name, container, figures, kill, is_over=True))

    def _find(self, instance: str) -> tuple[ObservedPod, Observed] | None:
        for pod in self._roster.pods.values():
            if instance in pod.containers:
                return pod, pod.containers[instance]
        return None

    def _of(self, pod: ObservedPod, one: Observed) -> InstanceOoms:
        known = self.pods.setdefault(pod.uid, PodOoms(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        ooms = self._instances[one.id] = known.instance(one.name, one.id)
        return ooms

    def _settle(self, pod: ObservedPod, one: Observed, ooms: InstanceOoms, scope: str) -> None:
        kill = ooms.settle(one.id, scope)
        if kill is None:
            return
        self.kills += kill.count
        self._changed.add(pod.uid)
        log.warning("container_out_of_memory", pod=f"{pod.namespace}/{pod.name}", container=one.name, scope=scope)
        if pod.is_ours:
            before = self._untold.get(one.id)
            self._untold[one.id] = kill if before is None else replace(kill, count=before.count + kill.count)

    async def save(self) -> None:
        """What changed, and the end of what is gone."""
        for uid in list(self._changed):
            pod = self.pods.get(uid)
            self._changed.discard(uid)
            try:
                if pod is None:
                    await self._records.remove(f"{FOLDER}/{uid}.json")
                elif pod.has_any:
                    await self._records.write(f"{FOLDER}/{uid}.json", encode_ooms(pod))
            except OSError as error:
                self._changed.add(uid)
                log.warning("oom_record_not_saved", pod=uid, error=str(error))
                return

    def forget(self) -> None:
        """Pods and instances that are not seen any more."""
        seen = {pod.uid for pod in self._roster.pods.values()}
        for uid in [one for one in self.pods if one not in seen and not self._lives(one)]:
            if self.pods.pop(uid).has_any:
                self._changed.add(uid)
        instances = {one for pod in self._roster.pods.values() for one in pod.containers}
        for pod in self.pods.values():
            for ooms in pod.containers.values():
                ooms.forget(instances)
        self._early.clear()
        kept = instances | self._roster.pods.keys()
        self._before = {one: figures for one, figures in self._before.items() if one in kept}
        self._instances = {one: ooms for one, ooms in self._instances.items() if one in instances}
        self._words = {one: word_s for one, word_s in self._words.items() if one in instances}
        self._untold = {one: kill for one, kill in self._untold.items() if one in instances}


def _event(namespace: str, pod: str, container: str, figures: GroupFigures, kill: OomKill, *, is_over: bool) -> Event:
    limit = f", limit {bytes_text(figures.limits.memory)}" if figures.limits.memory else ""
    after = "the container ended" if is_over else "the container goes on"
    killed = "1 kill" if kill.count == 1 else f"{kill.count} kills"
    return Event(
        is_warning=True,
        reason=REASON,
        message=f"Container {container}: out of memory{limit}; {killed} ({kill.scope}), {after}",
        plane="observe",
        namespace=namespace,
        object_name=pod,
        container=container,
    )
