# SPDX-License-Identifier: Apache-2.0
"""Each call that is read along, at the door: what it tells the ledger, and whether it passes, waits or is refused.

A pod without annotations costs one look for the prefix. What fails in here lets the call pass, is counted and logged
once; only `proxy.failOpen: false` refuses instead.
"""

from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from agent.proxy.frames.cri_bytes import masked_answer
from agent.proxy.frames.layout import message_in
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.gates.annotations import read_annotations
from agent.proxy.gates.ledger import WHOLE_ID, LedgerContainer, LedgerState, Sandbox
from agent.proxy.gates.stop import note_evidence, pre_stop_command
from agent.proxy.run.call import (
    ContainerToMake,
    ContainerToRemove,
    KnownContainer,
    ProxyCall,
    Refusal,
    Subject,
    Verdict,
)
from agent.proxy.run.held_calls import HeldCalls
from agent.proxy.run.readiness import Readiness
from agent.proxy.run.state import ProxyState
from agent.wire.cri import runtime_v1_pb2 as pb

PREFIX = b"kepd.dev/"
UNAVAILABLE = 14
OK = 0

Judge = Callable[[ProxyCall, bytes], Verdict | Refusal]
Finish = Callable[[ProxyCall, Subject], None]


class GateJudge:
    def __init__(self, state: ProxyState, held_calls: HeldCalls, readiness: Readiness) -> None:
        self._state = state
        self._held_calls = held_calls
        self._readiness = readiness
        self._judges: Mapping[str, Judge] = {
            "RunPodSandbox": self._run_sandbox,
            "StopPodSandbox": self._stop_sandbox,
            "RemovePodSandbox": self._stop_sandbox,
            "CreateContainer": self._create,
            "StartContainer": self._start,
            "StopContainer": self._stop,
            "RemoveContainer": self._remove,
            "ExecSync": self._exec,
            "PullImage": self._held_calls.pull,
            "RemoveImage": self._held_calls.remove_image,
            "ContainerStatus": self._container_status,
            "PodSandboxStatus": self._sandbox_status,
            "GetContainerEvents": self._events,
        }
        self._finishes: Mapping[str, Finish] = {
            "RunPodSandbox": self._sandbox_runs,
            "RemovePodSandbox": self._sandbox_removed,
            "CreateContainer": self._created,
            "StartContainer": self._started,
            "StopContainer": self._stopped,
            "RemoveContainer": self._removed,
        }

    # for links

    def judge(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        if call.route is None:
            return Verdict.PASS
        try:
            return self._judges[call.route.name](call, message)
        except DecodeError:
            # The runtime will say what is wrong with it.
            return Verdict.PASS
        except Exception as error:  # noqa: BLE001  # a defect of ours must not keep a node from working
            self._state.broke(f"judge {call.route.name}", error)
            if self._state.settings.fails_open:
                return Verdict.PASS
            return Refusal(UNAVAILABLE, "kepd: cannot decide about this call; its log has the cause")

    def finish(self, call: ProxyCall) -> None:
        span = call.trace.own if call.trace is not None else None
        self._state.figures.called(call.path, call.code, call.added_s, span)
        if call.route is None:
            return
        self._held_calls.ended(call)
        finish = self._finishes.get(call.route.name)
        if finish is not None and call.subject is not None:
            try:
                finish(call, call.subject)
            except Exception as error:  # noqa: BLE001
                self._state.broke(f"finish {call.route.name}", error)

    def rewrite(self, call: ProxyCall, message: bytes) -> bytes:
        if not self._state.masks:
            return message
        try:
            method = call.route.name if call.route is not None else ""
            return masked_answer(method, message, self._state.masks)
        except Exception as error:  # noqa: BLE001
            self._state.broke("mask", error)
            return message

    # requests

    def _run_sandbox(self, call: ProxyCall, message: bytes) -> Verdict:
        if PREFIX in message:
            config = pb.RunPodSandboxRequest.FromString(message).config
            call.subject = self._sandbox_of(config, "")
        return Verdict.PASS

    def _sandbox_of(self, config: pb.PodSandboxConfig, sandbox_id: str) -> Sandbox:
        sandbox = Sandbox(
            sandbox_id,
            config.metadata.uid,
            config.metadata.namespace,
            config.metadata.name,
            read_annotations(config.annotations),
            self._state.clock.now_s(),
        )
        self._state.tell_faults(sandbox)
        return sandbox

    def _stop_sandbox(self, call: ProxyCall, message: bytes) -> Verdict:
        if not len(self._state.ledger):
            return Verdict.PASS
        sandbox_id = pb.StopPodSandboxRequest.FromString(message).pod_sandbox_id
        sandbox = self._state.ledger.sandboxes.get(sandbox_id)
        if sandbox is not None:
            call.subject = sandbox
            sandbox.is_ending = True
            self._state.interrupt(sandbox_id)
        return Verdict.PASS

    def _create(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        if PREFIX not in message and not len(self._state.ledger):
            return Verdict.PASS
        request = pb.CreateContainerRequest.FromString(message)
        sandbox = self._fresh_sandbox(request, has_prefix=PREFIX in message)
        if sandbox is None:
            return Verdict.PASS
        config = request.config
        name, attempt = config.metadata.name, config.metadata.attempt
        call.subject = ContainerToMake(sandbox, name, attempt, dict(config.annotations))
        return self._held_calls.create(call, sandbox, name)

    def _fresh_sandbox(self, request: pb.CreateContainerRequest, *, has_prefix: bool) -> Sandbox | None:
        """The sandbox with the annotations that its pod has now, which the kubelet sends again each time."""
        ledger, sandbox_id = self._state.ledger, request.pod_sandbox_id
        known = ledger.sandboxes.get(sandbox_id)
        if known is None and not has_prefix:
            return None
        fresh = self._sandbox_of(request.sandbox_config, sandbox_id)
        if known is not None:
            known.annotated = fresh.annotated
            return known
        if fresh.annotated.is_empty:
            return None
        ledger.put(fresh)
        return fresh

    def _start(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        found = self._find(pb.StartContainerRequest, message)
        if found is None:
            return Verdict.PASS
        call.subject = found
        return self._held_calls.start(call, found.sandbox, found.container)

    def _stop(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        found = self._find(pb.StopContainerRequest, message)
        if found is None:
            return Verdict.PASS
        call.subject = found
        timeout_s = pb.StopContainerRequest.FromString(message).timeout
        return self._held_calls.stop(call, found.sandbox, found.container, timeout_s)

    def _remove(self, call: ProxyCall, message: bytes) -> Verdict:
        container_id = pb.RemoveContainerRequest.FromString(message).container_id
        call.subject = ContainerToRemove(container_id)
        found = self._state.ledger.find(container_id)
        if found is not None:
            self._state.interrupt(found[0].id)
        return Verdict.PASS

    def _exec(self, call: ProxyCall, message: bytes) -> Verdict:
        if not len(self._state.ledger) or call.deadline_s is not None:
            return Verdict.PASS
        request = pb.ExecSyncRequest.FromString(message)
        found = self._state.ledger.find(request.container_id)
        if found is not None and pre_stop_command(found[1]) == list(request.cmd):
            sandbox, container = found
            now_s = self._state.clock.now_s()
            sandbox.hooks_s[container.id] = now_s
            note_evidence(sandbox, now_s)
            self._state.wake(sandbox.id)
        return Verdict.PASS

    def _container_status(self, call: ProxyCall, message: bytes) -> Verdict:
        if self._state.masks:
            container_id = pb.ContainerStatusRequest.FromString(message).container_id
            is_short = len(container_id) < WHOLE_ID
            if container_id in self._state.masks or (
                is_short and any(one.startswith(container_id) for one in self._state.masks)
            ):
                call.rewriting = Rewriting()
        return Verdict.PASS

    def _sandbox_status(self, call: ProxyCall, message: bytes) -> Verdict:
        if self._state.masks:
            sandbox_id = pb.PodSandboxStatusRequest.FromString(message).pod_sandbox_id
            if sandbox_id in self._state.masks.values():
                call.rewriting = Rewriting()
        return Verdict.PASS

    def _events(self, call: ProxyCall, _message: bytes) -> Verdict:
        call.rewriting = Rewriting()
        return Verdict.PASS

    def _find(
        self, kind: type[pb.StartContainerRequest | pb.StopContainerRequest], message: bytes
    ) -> KnownContainer | None:
        ledger = self._state.ledger
        found = ledger.find(kind.FromString(message).container_id) if len(ledger) else None
        return None if found is None else KnownContainer(*found)

    # answers

    def _sandbox_runs(self, call: ProxyCall, subject: Subject) -> None:
        answer = message_in(call.answer or b"")
        if call.code == OK and answer is not None and isinstance(subject, Sandbox):
            subject.id = pb.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
            if not subject.annotated.is_empty:
                self._state.ledger.put(subject)

    def _sandbox_removed(self, call: ProxyCall, subject: Subject) -> None:
        if call.code == OK and isinstance(subject, Sandbox):
            self._state.ledger.remove_sandbox(subject.id)
            self._state.wake(subject.id)
            self._held_calls.forget_masks(sandbox_id=subject.id)

    def _created(self, call: ProxyCall, subject: Subject) -> None:
        answer = message_in(call.answer or b"")
        if call.code == OK and answer is not None and isinstance(subject, ContainerToMake):
            container_id = pb.CreateContainerResponse.FromString(answer).container_id
            made = LedgerContainer(
                container_id,
                subject.name,
                subject.attempt,
                LedgerState.CREATED,
                subject.annotations,
                asked_s=call.began_s,
            )
            self._state.ledger.add(subject.sandbox, made)
            self._state.wake(subject.sandbox.id)

    def _started(self, call: ProxyCall, subject: Subject) -> None:
        if not isinstance(subject, KnownContainer) or call.code is None:
            return
        sandbox, container = subject.sandbox, subject.container
        if call.code != OK:
            self._held_calls.look_again(sandbox, container)
        elif container.state is LedgerState.CREATED:
            self._state.ledger.note(container, LedgerState.RUNNING)
            sandbox.has_started_main |= container.name in sandbox.annotated.mains
            self._readiness.watch(sandbox, container)
        self._state.wake(sandbox.id)

    def _stopped(self, call: ProxyCall, subject: Subject) -> None:
        if call.code == OK and isinstance(subject, KnownContainer):
            if subject.container.is_running:
                # Its code comes with the event; that it is down is what others wait for.
                self._state.ledger.note(subject.container, LedgerState.EXITED)
            self._state.wake(subject.sandbox.id)

    def _removed(self, call: ProxyCall, subject: Subject) -> None:
        if call.code == OK and isinstance(subject, ContainerToRemove):
            self._state.ledger.remove_container(subject.container_id)
            self._held_calls.forget_masks(container_id=subject.container_id)
