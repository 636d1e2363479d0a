# SPDX-License-Identifier: Apache-2.0
"""Calls that are held. Each has a task that asks its gate again after every change, until the gate lets the call pass.

Tasks live in the group of the plane's run and end with their call. Every hold has a time limit, which the watchdog
enforces. Only a PullImage has none, as no client limits it: the pull queue decides how long it waits.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine

import structlog

from agent.model.images.pull import CallerPullEnd, PullGivenUp, PullsAway
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.text.outside_text import from_outside
from agent.model.text.redaction import Hidden
from agent.proxy.frames.cri_bytes import with_timeout
from agent.proxy.frames.layout import message_in
from agent.proxy.gates.ledger import LedgerContainer, LedgerState, Sandbox
from agent.proxy.gates.pull_request import pull_secrets, read_pull
from agent.proxy.gates.start import Go, HeldStart, StartRefused, judge_create, judge_start
from agent.proxy.gates.stop import LEAST_S, Forward, HeldStop, StopCall, judge_stop, note_evidence
from agent.proxy.ports import ProxyRuntime, Pulls
from agent.proxy.run.call import KnownContainer, ProxyCall, Refusal, Verdict
from agent.proxy.run.state import Hold, ProxyState
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="proxy")

CANCELLED, UNAVAILABLE = 1, 14
# What a gate allows for at its end; beyond that the watchdog opens it.
PATIENCE_S = 2.0
# Less than a kubelet waits for anything but pulls.
LONGEST_REMOVAL_S = 90.0
LEFT_FOR_REMOVAL_S = 15.0
WATCH_S = 1.0


class HeldCalls:
    def __init__(self, state: ProxyState, runtime: ProxyRuntime, pulls: Callable[[], Pulls | None]) -> None:
        self._state = state
        self._runtime = runtime
        self._pulls = pulls
        self._salt = secrets.token_bytes(16)
        self._by_call: dict[ProxyCall, Hold] = {}
        self._ends: dict[ProxyCall, asyncio.Event] = {}
        self._first_stops: dict[str, tuple[float, float, int]] = {}

    # for the judge

    def create(self, call: ProxyCall, sandbox: Sandbox, name: str) -> Verdict | Refusal:
        now_s = self._state.clock.now_s()
        verdict = judge_create(sandbox, name, now_s, call.began_s, call.deadline_s)
        if isinstance(verdict, Go):
            self._tell_opened(sandbox, name, verdict)
            return Verdict.PASS
        if isinstance(verdict, StartRefused) or self._state.is_ending or sandbox.uid in self._state.endings:
            return self._refusal(
                sandbox, name, verdict.waits_for if isinstance(verdict, StartRefused) else verdict.waits_for[0]
            )
        return self._hold(call, sandbox, name, verdict, lambda hold: self._wait_to_create(hold, sandbox, name))

    def start(self, call: ProxyCall, sandbox: Sandbox, container: LedgerContainer) -> Verdict:
        now_s = self._state.clock.now_s()
        verdict = judge_start(sandbox, container.name, now_s, _asked_s(call, container), call.deadline_s)
        if isinstance(verdict, Go) or self._state.is_ending or sandbox.uid in self._state.endings:
            return Verdict.PASS
        return self._hold(
            call, sandbox, container.name, verdict, lambda hold: self._wait_to_start(hold, sandbox, container)
        )

    def stop(self, call: ProxyCall, sandbox: Sandbox, container: LedgerContainer, timeout_s: int) -> Verdict:
        state, now_s = self._state, self._state.clock.now_s()
        sandbox.stops_s[container.id] = now_s
        note_evidence(sandbox, now_s, is_known=sandbox.uid in state.endings)
        state.wake(sandbox.id)
        end_s = now_s + max(0, timeout_s - LEAST_S)
        since_s, budget_end_s, riders = self._first_stops.get(container.id, (now_s, end_s, 0))
        self._first_stops[container.id] = (since_s, min(budget_end_s, end_s), riders + 1)
        stop = self._stop_call(container, timeout_s, now_s)
        verdict = judge_stop(sandbox, stop, now_s, state.settings.stop)
        if state.is_ending or (isinstance(verdict, Forward) and verdict.timeout_s == timeout_s):
            return Verdict.PASS
        # It goes on at once, with less time than the call says: people see that as a hold for its budget.
        reason = verdict.reason if isinstance(verdict, HeldStop) else "budget"
        hold = state.open_hold(call, reason, sandbox, container.name)
        hold.limit_s = now_s + max(1.0, timeout_s - LEAST_S + PATIENCE_S)
        return self._begin(hold, self._wait_to_stop(hold, sandbox, container, timeout_s))

    def pod_ends(self, uid: str) -> None:
        """Who follows the pods of the node says so. A stop that came before may have waited for that. A kubelet that
        waits for a start does not even begin to end the pod."""
        for sandbox in self._state.ledger.of_pod(uid):
            note_evidence(sandbox, self._state.clock.now_s(), is_known=True)
            for hold in self._state.holds.values():
                if hold.sandbox_id == sandbox.id and hold.reason == "start":
                    hold.is_interrupted = True
            self._state.wake(sandbox.id)

    def pull(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        """A PullImage, of any pod."""
        pulls = self._pulls()
        if self._state.refuses_pulls:
            return Refusal(UNAVAILABLE, "kepd: stopping; request the pull again in a moment")
        if pulls is None or self._state.is_ending:
            return Verdict.PASS
        request, fingerprint = read_pull(message, self._salt)
        # It has the kubelet's credentials, which nothing needs any more but to keep them out of the answer's text.
        call.request, given = bytearray(), Hidden(pull_secrets(message))
        hold = self._state.open_hold(call, "pull")
        hold.pod, hold.waits_for = str(request.pod), (request.image,)
        self._ends[call] = asyncio.Event()

        async def pull() -> CallerPullEnd:
            return await self._pulled(call, hold, given)

        async def queue() -> None:
            try:
                await pulls.run_caller_pull(request, fingerprint, pull)
            except PullGivenUp as error:
                call.abort(Refusal(CANCELLED, f"kepd: {error}"))
            except PullsAway:
                self._state.figures.policy_errors["pulls away"] += 1
                self._without_queue(call)
            except Exception as error:  # noqa: BLE001  # the images plane failed; pulls go on without it
                self._state.broke("pull", error, hold.pod)
                self._without_queue(call)

        return self._begin(hold, queue())

    def remove_image(self, call: ProxyCall, message: bytes) -> Verdict:
        """A RemoveImage: what is just being fetched for a pod goes after that pull at the earliest."""
        pulls, state = self._pulls(), self._state
        if pulls is None or state.is_ending or not pulls.is_busy:
            return Verdict.PASS
        image = pb.RemoveImageRequest.FromString(message).image.image
        hold = state.open_hold(call, "pull")
        hold.waits_for = (f"the pull of {image}",)
        now_s = state.clock.now_s()
        left_s = LONGEST_REMOVAL_S if call.deadline_s is None else call.deadline_s - now_s - LEFT_FOR_REMOVAL_S
        longest_s = max(0.0, min(LONGEST_REMOVAL_S, left_s))
        hold.limit_s = now_s + longest_s + PATIENCE_S

        async def wait() -> None:
            await pulls.settled(image, longest_s)
            self._let_go(hold)

        return self._begin(hold, wait())

    def ended(self, call: ProxyCall) -> None:
        """A call is over: by its answer, or because its client went away."""
        ended = self._ends.pop(call, None)
        if ended is not None:
            ended.set()
        hold = self._by_call.pop(call, None)
        if hold is not None:
            if hold.task is not None:
                hold.task.cancel()
            self._state.close_hold(hold)
        if call.route is not None and call.route.name == "StopContainer" and isinstance(call.subject, KnownContainer):
            self._forget_stop(call.subject.container)

    def look_again(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        """A call about a container failed; what became of it, only the runtime knows."""
        self._state.spawn(self._look(sandbox, container), f"proxy-look:{container.id[:12]}")

    def forget_masks(self, *, container_id: str = "", sandbox_id: str = "") -> None:
        """What is gone needs no mask; the file follows with the next one that is written."""
        masks = self._state.masks
        for one in [one for one, home in masks.items() if one == container_id or (sandbox_id and home == sandbox_id)]:
            del masks[one]

    # for people, and against ourselves

    def open_by_hand(self, hold_id: str) -> bool:
        """Let a held call go on. False: there is no such hold."""
        hold = self._state.holds.get(hold_id)
        if hold is None:
            return False
        self._force(hold)
        return True

    async def watch(self) -> None:
        """Open what should have opened by itself, for ever."""
        while True:
            await self._state.clock.sleep(WATCH_S)
            now_s = self._state.clock.now_s()
            for hold in [one for one in self._state.holds.values() if one.limit_s is not None and one.limit_s < now_s]:
                self._state.broke("watchdog", RuntimeError(f"{hold.call.path} was held too long"), hold.pod)
                self._force(hold)

    async def settle(self, longest_s: float) -> None:
        """At an end: until nothing is held any more."""
        until_s = self._state.clock.now_s() + longest_s
        while self._state.holds and self._state.clock.now_s() < until_s:
            await self._state.clock.sleep(0.05)

    def _force(self, hold: Hold) -> None:
        if hold.task is not None:
            hold.task.cancel()
        self._let_go(hold)

    # the tasks

    def _hold(
        self, call: ProxyCall, sandbox: Sandbox, name: str, wait: HeldStart, work: Callable[[Hold], Awaitable[None]]
    ) -> Verdict:
        hold = self._state.open_hold(call, "start", sandbox, name)
        hold.waits_for, hold.until_s = wait.waits_for, wait.until_s
        hold.limit_s = wait.until_s + PATIENCE_S

        async def run() -> None:
            await work(hold)

        return self._begin(hold, run())

    def _begin(self, hold: Hold, work: Coroutine[object, object, None]) -> Verdict:
        self._by_call[hold.call] = hold
        hold.task = self._state.spawn(self._guarded(hold, work), f"proxy-hold:{hold.id}")
        if hold.task is None:
            self._by_call.pop(hold.call, None)
            self._state.close_hold(hold)
            return Verdict.PASS
        return Verdict.HOLD

    async def _guarded(self, hold: Hold, work: Awaitable[None]) -> None:
        """A defect in a hold opens it."""
        try:
            await work
        except Exception as error:  # noqa: BLE001
            self._state.broke(f"hold {hold.call.path}", error, hold.pod)
            self._let_go(hold)

    def _let_go(self, hold: Hold) -> None:
        self._by_call.pop(hold.call, None)
        self._state.close_hold(hold)
        hold.call.release()

    async def _wait_to_create(self, hold: Hold, sandbox: Sandbox, name: str) -> None:
        call, state = hold.call, self._state
        while True:
            verdict = judge_create(sandbox, name, state.clock.now_s(), call.began_s, call.deadline_s)
            if isinstance(verdict, HeldStart) and not hold.is_interrupted:
                hold.waits_for = verdict.waits_for
                await state.change(sandbox.id, verdict.until_s)
                continue
            if isinstance(verdict, Go):
                self._tell_opened(sandbox, name, verdict)
                self._let_go(hold)
                return
            waits_for = verdict.waits_for if isinstance(verdict, StartRefused) else verdict.waits_for[0]
            self._by_call.pop(call, None)
            state.close_hold(hold)
            call.refuse(self._refusal(sandbox, name, waits_for))
            return

    async def _wait_to_start(self, hold: Hold, sandbox: Sandbox, container: LedgerContainer) -> None:
        call, state = hold.call, self._state
        while not hold.is_interrupted:
            verdict = judge_start(
                sandbox, container.name, state.clock.now_s(), _asked_s(call, container), call.deadline_s
            )
            if isinstance(verdict, Go):
                self._tell_opened(sandbox, container.name, verdict)
                break
            hold.waits_for = verdict.waits_for
            await state.change(sandbox.id, verdict.until_s)
        self._let_go(hold)

    async def _wait_to_stop(self, hold: Hold, sandbox: Sandbox, container: LedgerContainer, timeout_s: int) -> None:
        state, call = self._state, hold.call
        while True:
            now_s = state.clock.now_s()
            stop = self._stop_call(container, timeout_s, hold.since_s)
            verdict = judge_stop(sandbox, stop, now_s, state.settings.stop)
            if isinstance(verdict, HeldStop) and hold.is_interrupted:
                verdict = Forward(max(LEAST_S, timeout_s - int(now_s - hold.since_s)))
            if isinstance(verdict, Forward):
                break
            if verdict.reason == "sleep":
                sandbox.turns_s.setdefault(container.id, now_s)
            hold.reason, hold.waits_for, hold.until_s = verdict.reason, verdict.waits_for, verdict.until_s
            await state.change(sandbox.id, verdict.until_s)
        if verdict.expired:
            text = f"the time of {container.name} was over before {', '.join(verdict.expired)} had ended"
            state.tell(sandbox, "StopHoldExpired", text, container=container.name)
        self._by_call.pop(call, None)
        state.close_hold(hold)
        try:
            call.release(with_timeout(message_in(call.request or b"") or b"", verdict.timeout_s))
        except ValueError as error:
            state.broke("timeout", error, hold.pod)
            call.release()

    async def _pulled(self, call: ProxyCall, hold: Hold, given: Hidden[list[str]]) -> CallerPullEnd:
        """The kubelet's own call, from the moment it has a slot to its answer."""
        ended = self._ends.get(call)
        self._by_call.pop(call, None)
        self._state.close_hold(hold)
        if ended is None:
            return CallerPullEnd(error="the kubelet cancelled it")
        call.release()
        await ended.wait()
        if call.code != 0:
            return CallerPullEnd(error=from_outside(call.text, given.reveal()) or "the kubelet cancelled it")
        answer = message_in(call.answer or b"")
        return CallerPullEnd(image_id=pb.PullImageResponse.FromString(answer).image_ref if answer else "")

    async def _look(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        try:
            status = await self._runtime.container_status(container.id)
        except RuntimeCallFailed as error:
            log.info("proxy_look_failed", container=container.id, error=str(error))
            return
        if status.state == pb.CONTAINER_EXITED:
            self._state.ledger.note(container, LedgerState.EXITED)
            container.exit_code = status.exit_code
        elif status.state == pb.CONTAINER_RUNNING:
            self._state.ledger.note(container, LedgerState.RUNNING)
        self._state.wake(sandbox.id)

    # small things

    def _stop_call(self, container: LedgerContainer, timeout_s: int, arrived_s: float) -> StopCall:
        since_s, budget_end_s, _ = self._first_stops.get(container.id, (arrived_s, arrived_s, 0))
        return StopCall(container, timeout_s, arrived_s, since_s, budget_end_s)

    def _forget_stop(self, container: LedgerContainer) -> None:
        since_s, end_s, riders = self._first_stops.get(container.id, (0.0, 0.0, 1))
        if riders > 1:
            self._first_stops[container.id] = (since_s, end_s, riders - 1)
        else:
            self._first_stops.pop(container.id, None)

    def _refusal(self, sandbox: Sandbox, name: str, waits_for: str) -> Refusal:
        log.info("proxy_create_refused", pod=f"{sandbox.namespace}/{sandbox.name}", container=name, waits_for=waits_for)
        return Refusal(UNAVAILABLE, StartRefused(waits_for).text)

    def _without_queue(self, call: ProxyCall) -> None:
        if self._state.settings.fails_open:
            call.release()
        else:
            call.abort(Refusal(UNAVAILABLE, "kepd: the pull queue is not running; request the pull again"))

    def _tell_opened(self, sandbox: Sandbox, name: str, verdict: Go) -> None:
        if verdict.opened and f"{name} {verdict.opened}" not in sandbox.told:
            sandbox.told.add(f"{name} {verdict.opened}")
            text = f"{name} starts although sidecar {verdict.opened} has not started: the wait took too long"
            self._state.tell(sandbox, "StartGateOpened", text, container=name)


def _asked_s(call: ProxyCall, container: LedgerContainer) -> float:
    """Since when a main waits: making and starting it are two calls with one time between them."""
    return call.began_s if container.asked_s is None else container.asked_s
