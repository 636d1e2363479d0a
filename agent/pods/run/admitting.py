# SPDX-License-Identifier: Apache-2.0
"""Lets pods begin or not, as plan/admit.py decides, and shows those that may not.

A pod that belongs to another node, or that comes while the node goes down, is shown as Failed. One that waits for room
or for the end of a drain is Pending. What ends for a critical pod begins anew when there is room again. Never: begins
a pod.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import structlog
from msgspec.structs import replace

from agent.kinds.selectors import parse_selector
from agent.model.feed import Feed
from agent.model.nodes.drain import KeptPod, NodeDrain
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.model.text.json_text import decode_json
from agent.pods.plan.admit import (
    MESSAGE,
    OUTCOME,
    PREFIX,
    REASON,
    AdmissionRefusal,
    AskedResources,
    Capacity,
    Occupant,
    asked_by,
    is_critical,
    plan_preemption,
    priority_of,
    why_against_rules,
    why_not_here,
    why_refused,
    why_unfit,
)
from agent.pods.plan.remembered import Memory, PodOutcome
from agent.pods.plan.scarcity.victims import EVICTED
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.observed import SeenPod
from agent.pods.runtime.qos import qos_class
from agent.pods.view.status import Look, pod_status
from agent.pods.workloads.workload import Key

log = structlog.get_logger(plane="pods")

NODE_FOLDER, DRAINED = "node", "drained.json"
OUT_OF = "OutOf"
SHUTDOWN_TEXT = "Pod was rejected as the node is shutting down."


class Rejected(msgspec.Struct, frozen=True):
    pod: PodSpec
    refusal: AdmissionRefusal
    is_waiting: bool


def _waits_for(one: Rejected) -> str:
    text = one.refusal.message.removeprefix(PREFIX)
    return "" if not one.is_waiting else text if one.refusal.reason == "NodeDrained" else f"room: {text}"


def rank_of(pod: PodSpec) -> int:
    """The lowest comes first."""
    return -priority_of(pod.spec)


class Cordon:
    """That the node is drained or cordoned, kept on disk for a kepd that starts anew; `drained` is None while pods may
    begin."""

    def __init__(self, context: PodDependencies) -> None:
        self._context = context
        self.drained: NodeDrain | None = None
        self.lets_in: frozenset[Key] = frozenset()
        """Whose pods begin all the same, in place of others that are to end."""
        self.kept: tuple[KeptPod, ...] = ()
        """Pods that do not end yet."""

    async def load(self) -> None:
        try:
            content = (await self._context.records.read_folder(NODE_FOLDER)).get(DRAINED)
            found = decode_json(content, NodeDrain) if content is not None else None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("node_drain_unreadable", error=str(error), effect="the node takes pods")
            return
        if found is not None and found.boot_id == self._context.settings().facts.boot_id:
            self.drained = found

    def concerns(self, run: LivePod) -> bool:
        """Whether the drain is to end it. What takes the place of others meanwhile stays."""
        drain = self.drained
        if drain is None or drain.keeps_pods or run.memory.outcome is not None:
            return False
        if drain.surges and run.memory.first_seen_wall_s > drain.began_at_s:
            return False
        return parse_selector(drain.selector)(dict(run.pod.labels))

    def shown(self, runs: Iterable[LivePod]) -> NodeDrain | None:
        """With what has not ended yet."""
        if self.drained is None or self.drained.keeps_pods:
            return self.drained
        return replace(
            self.drained, waits_for=tuple(sorted(run.pod.key for run in runs if self.concerns(run))), kept=self.kept
        )

    async def change(self, wish: NodeDrain | None, *, is_under_way: bool = False) -> None:
        """Drained or cordoned by a user; None: not any more. A drain that is under way goes on, with force and a reason
        if it has none; one that is over gives way to the next. Raises Refused for another choice of pods meanwhile."""
        context, before = self._context, self.drained
        try:
            if wish is None:
                self.drained = None
                await context.records.remove(f"{NODE_FOLDER}/{DRAINED}")
                return
            if before is None or not (wish.keeps_pods or is_under_way):
                now_s, boot_id = context.clock.wall_s(), context.settings().facts.boot_id
                self.drained = replace(wish, began_at_s=now_s, boot_id=boot_id)
            elif not wish.keeps_pods:
                if (before.selector, before.surges) != (wish.selector, wish.surges):
                    chosen = f"of {before.selector or 'all pods'}{' with --surge' if before.surges else ''}"
                    text = f"a drain {chosen} is under way; wait for it, or end it by `kepctl uncordon`"
                    raise Refused("precondition", text)
                is_forced = before.is_forced or wish.is_forced
                self.drained = replace(before, is_forced=is_forced, reason=before.reason or wish.reason)
            if self.drained is not None and self.drained != before:
                await context.records.write(f"{NODE_FOLDER}/{DRAINED}", msgspec.json.encode(self.drained))
        except OSError as error:
            log.warning("node_drain_not_saved", error=str(error), effect="a kepd that starts anew does not know it")


class Admitter:
    def __init__(self, context: PodDependencies, pods: Feed[PodState], changed: Callable[[], None]) -> None:
        self._context = context
        self._pods = pods
        self._changed = changed
        self.cordon = Cordon(context)
        self.is_shutting_down = False
        # By name of the pod.
        self._rejected: dict[str, Rejected] = {}
        # Edits for which there is no room, by uid of the pod that runs on as it was.
        self._held: dict[str, AdmissionRefusal] = {}
        # What critical pods need for which others end now, by name of the pod.
        self._reserved: dict[str, AskedResources] = {}

    def may_begin(self, pod: PodSpec) -> bool:
        context, settings = self._context, self._context.settings()
        refusal, is_waiting = None, False
        if self.is_shutting_down:
            refusal = AdmissionRefusal("NodeShutdown", SHUTDOWN_TEXT)
        elif (drained := self.cordon.drained) and not self._is_let_in(pod):
            done = "cordoned" if drained.keeps_pods else "drained"
            why = f" ({drained.reason})" if drained.reason else ""
            text = f"{PREFIX}{drained.by} has {done} the node{why}; `kepctl uncordon` lets pods begin again"
            refusal, is_waiting = AdmissionRefusal("NodeDrained", text), True
        elif text := why_not_here(pod.spec, settings.labels, settings.node):
            refusal = AdmissionRefusal("NodeAffinity", text)
        elif refusal := why_unfit(pod.spec, settings.pods.allowed_unsafe_sysctls):
            pass
        elif refusal := (
            context.pressure.why_refused(pod)
            or why_against_rules(pod, context.places, context.rules())
            or why_refused(pod, pod.uid, context.places, self._capacity_for(pod))
        ):
            is_waiting = True
        if refusal is not None:
            self._reject(Rejected(pod, refusal, is_waiting))
        return refusal is None

    def _is_let_in(self, pod: PodSpec) -> bool:
        return pod.owner is not None and pod.owner.key in self.cordon.lets_in

    def _capacity_for(self, pod: PodSpec) -> Capacity:
        """Of the node, without what critical pods wait for."""
        capacity = self._context.settings().capacity
        kept = [asked for key, asked in self._reserved.items() if key != pod.key]
        if not kept or is_critical(pod):
            return capacity
        return Capacity(
            milli_cpus=capacity.milli_cpus - sum(asked.milli_cpus for asked in kept),
            memory_bytes=capacity.memory_bytes - sum(asked.memory_bytes for asked in kept),
            pods=capacity.pods - len(kept),
        )

    def lacks_room(self, pod: PodSpec) -> bool:
        """Whether it was refused for want of CPU, memory or places, which others could leave to it."""
        one = self._rejected.get(pod.key)
        return one is not None and one.refusal.reason.startswith(OUT_OF)

    def reserve(self, pod: PodSpec) -> None:
        """What others leave to a critical pod is for no other, until it begins or is wanted no more."""
        self._reserved[pod.key] = asked_by(pod)

    def has_room(self, pod: PodSpec) -> bool:
        return why_refused(pod, pod.uid, self._context.places, self._capacity_for(pod)) is None

    def begun(self, run: LivePod) -> None:
        """It is kept from now on."""
        self._rejected.pop(run.pod.key, None)
        self._reserved.pop(run.pod.key, None)
        self.settle(run)

    def may_follow(self, run: LivePod, wanted: PodSpec) -> bool:
        """Whether a pod may become another, in place or by a successor. A resize waits by itself."""
        pod, places = run.pod, self._context.places
        is_here = wanted.uid == pod.uid
        before = self._held.pop(pod.uid, None)
        if wanted is pod or wanted == pod or run.memory.outcome is not None or run.is_removed:
            return True
        refusal = why_refused(wanted, pod.uid, places, self._context.settings().capacity)
        if refusal is None:
            if is_here:
                places.take(wanted)
            return True
        if is_here and wanted.by_name.keys() == pod.by_name.keys() and refusal.reason in ("OutOfcpu", "OutOfmemory"):
            return True
        self._held[pod.uid] = refusal
        if before is None or before.reason != refusal.reason:
            text = f"the edit is refused, and the pod runs on as it was: {refusal.message.removeprefix(PREFIX)}"
            run.tell(refusal.reason, text, is_warning=True)
        return False

    def why_held(self, uid: str) -> str:
        held = self._held.get(uid)
        return f"{held.reason}: {held.message.removeprefix(PREFIX)}" if held is not None else ""

    def settle(self, run: LivePod) -> bool:
        """A pod has a place until it is over or gone; whether that makes room for another now."""
        places = self._context.places
        if run.memory.outcome is None and not run.is_gone:
            if run.pod.uid not in places:
                places.take(run.pod)
            return False
        self._held.pop(run.pod.uid, None)
        return places.release(run.pod.uid) and not self.is_shutting_down and self.cordon.drained is None

    @property
    def held(self) -> Collection[str]:
        return tuple(self._held)

    @property
    def waiting(self) -> list[PodSpec]:
        """Who begins as soon as there is room: by priority, then who came first."""
        return sorted((one.pod for one in self._rejected.values() if one.is_waiting), key=rank_of)

    def why_waits(self, pod: PodSpec) -> str:
        one = self._rejected.get(pod.key)
        return _waits_for(one) if one is not None else ""

    def forget_all_but(self, keys: Collection[str]) -> None:
        for key in self._rejected.keys() - keys:
            del self._rejected[key]
            self._reserved.pop(key, None)
            self._pods.remove(key)

    def _reject(self, one: Rejected) -> None:
        """Shown, reported once, and begun as soon as it may."""
        pod, refusal = one.pod, one.refusal
        before = self._rejected.get(pod.key)
        if before == one:
            return
        self._rejected[pod.key] = one
        phase = "Pending" if one.is_waiting else "Failed"
        memory = Memory(outcome=PodOutcome(phase=phase, reason=refusal.reason, message=refusal.message))
        self._pods.put(pod.key, pod_status(Look(pod=pod, seen=SeenPod(), memory=memory, waits_for=_waits_for(one))))
        self._changed()
        # What others have changes often; that is shown and is no news.
        if before is not None and before.pod == pod and before.refusal.reason == refusal.reason:
            return
        self._context.tell_of(pod, refusal.reason, refusal.message.removeprefix(PREFIX), is_warning=True)


class Displacer:
    """Ends pods for critical ones (preempt.py), and brings them back."""

    def __init__(self, context: PodDependencies, admitter: Admitter, keepers: Mapping[str, PodWorker]) -> None:
        self._context = context
        self._admitter = admitter
        self._keepers = keepers
        # Uids of pods that ended for a critical one.
        self._displaced: set[str] = set()

    def make_room(self, pod: PodSpec) -> None:
        """A pod was refused; where it is critical, others end."""
        if not is_critical(pod) or not self._admitter.lacks_room(pod):
            return
        there = [self._occupant(one.run) for one in self._keepers.values() if one.run.pod.uid in self._context.places]
        for uid in plan_preemption(pod, there, self._context.settings().capacity):
            self._admitter.reserve(pod)
            self._displaced.add(uid)
            keeper = self._keepers[uid]
            keeper.run.tell(REASON, MESSAGE, is_warning=True)
            keeper.end("preempted", float(keeper.run.pod.grace_s), OUTCOME)

    def _occupant(self, run: LivePod) -> Occupant:
        return Occupant(
            uid=run.pod.uid,
            asked=self._context.places.of(run.pod.uid),
            qos=qos_class(run.pod),
            is_critical=is_critical(run.pod),
            is_ending=run.is_ending,
        )

    def found(self, run: LivePod) -> None:
        """One that ended for a critical pod before kepd began anew."""
        if run.memory.outcome is not None and run.memory.outcome.reason == REASON:
            self._displaced.add(run.pod.uid)

    def bring_back(self) -> None:
        """There is room for more: those that ended for a critical pod begin anew, but for policy `Never`."""
        kept = [self._keepers[uid] for uid in self._displaced if uid in self._keepers]
        may_return = [one for one in kept if not one.run.is_removed and one.run.pod.spec.restart_policy != "Never"]
        self._displaced = {one.run.pod.uid for one in may_return}
        for keeper in sorted(may_return, key=lambda one: rank_of(one.run.pod)):
            if keeper.run.memory.outcome is not None and self._admitter.has_room(keeper.run.pod):
                self._displaced.discard(keeper.run.pod.uid)
                keeper.revive(REASON)
                self._admitter.settle(keeper.run)

    def readmit(self, keeper: PodWorker) -> bool:
        """One that ended for want of something begins anew where it has a place."""
        if not self._admitter.has_room(keeper.run.pod) or not keeper.revive(EVICTED):
            return False
        self._admitter.settle(keeper.run)
        return True
