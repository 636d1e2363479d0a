# SPDX-License-Identifier: Apache-2.0
"""A relay between kepd and its runtime at which something happens at every step that changes the runtime.

Each step is known by its method and the container it is about, and is gone through in stages: something happens
before it is passed on, while it is under way, and after it was answered. Whatever happens comes to the next stage when
the step is tried again, so that a test goes through all of them and needs no luck.

Owns: the relay and the book of steps. Never: decides what happens; the test does.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from agent.wire.cri import runtime_v1_pb2 as pb

STREAMS = ("GetContainerEvents", "Subscribe")
BEFORE, DURING, AFTER = "before", "during", "after"
STAGES = {
    "RunPodSandbox": (BEFORE, AFTER),
    "PullImage": (BEFORE, AFTER),
    "CreateContainer": (BEFORE, AFTER),
    "StartContainer": (BEFORE, AFTER),
    "RemoveContainer": (BEFORE, AFTER),
    # A command that was asked for and may have run is not run again, so nobody would come to a second stage.
    "ExecSync": (AFTER,),
    "StopContainer": (BEFORE, DURING, AFTER),
    "StopPodSandbox": (BEFORE, AFTER),
    "RemovePodSandbox": (BEFORE, AFTER),
}
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
WITHIN_S = 60.0
LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Step:
    """One thing that is done to the runtime: the method, whom it is about, and how often that was begun anew."""

    method: str
    subject: str


@dataclass(frozen=True)
class Stop:
    """A StopContainer as it was asked for; moments are of the kernel's clock."""

    name: str
    timeout_s: int
    at_s: float


class SteppingRelay(grpc.GenericRpcHandler):
    """`happens(step, stage)` is called once per step and stage, in the thread of the call; it returns whether kepd has
    died of it. `is_signalled(name)` tells that the stop signal has arrived."""

    def __init__(self, folder: Path, upstream: str, is_signalled: Callable[[str], bool]) -> None:
        self.endpoint = f"unix://{folder}/relay.sock"
        self.happens: Callable[[Step, str], bool] = lambda _step, _stage: False
        # Methods that the relay answers itself, for what the runtime behind it cannot do.
        self.answers: dict[str, Callable[[bytes], bytes]] = {}
        self.passed: list[tuple[Step, str]] = []
        self.stops: list[Stop] = []
        self._is_signalled = is_signalled
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self._is_dead = False
        self._upstream = grpc.insecure_channel(upstream, options=[*OPTIONS, ("grpc.default_authority", "localhost")])
        self._server = grpc.server(
            ThreadPoolExecutor(32, "relay"), handlers=(self,), options=[*OPTIONS, ("grpc.so_reuseport", 0)]
        )
        self._server.add_insecure_port(self.endpoint)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0.5).wait()
        self._upstream.close()

    def revive(self) -> None:
        """A new kepd is about to start."""
        self._is_dead = False

    def stages_of(self, method: str) -> list[tuple[str, str]]:
        """What was gone through of one method: whom it was about, and the stage."""
        return [(step.subject, stage) for step, stage in self.passed if step.method == method]

    # --- calls -------------------------------------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = details.method
        if path.rpartition("/")[2] in STREAMS:
            return grpc.unary_stream_rpc_method_handler(lambda request, context: self._stream(path, request, context))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._call(path, request, context))

    def _stream(self, path: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        answers = self._upstream.unary_stream(path)(request, metadata=metadata_of(context))
        context.add_callback(answers.cancel)
        try:
            yield from answers
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")

    def _call(self, path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        method = path.rpartition("/")[2]
        if method in self.answers:
            return self.answers[method](request)
        step = self._step(method, request) if method in STAGES else None
        if step is not None:
            self._reach(step, BEFORE, context)
        left_s = context.time_remaining()
        # A call without a deadline looks as if it had one in many years, which the other side would not take.
        timeout_s = left_s if left_s is not None and left_s < LONGEST_S else None
        answering = self._upstream.unary_unary(path).future(request, metadata=metadata_of(context), timeout=timeout_s)
        try:
            if step is not None and DURING in STAGES[method] and self._is_due(step, DURING):
                self._wait_under_way(step, answering)
                if not answering.done():
                    self._reach(step, DURING, context, answering)
            answer = answering.result()
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the relay has lost the runtime")
        if step is not None:
            self._note(method, step, answer)
            self._reach(step, AFTER, context)
        return answer

    def _wait_under_way(self, step: Step, answering: Any) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not answering.done() and not self._is_signalled(step.subject) and time.monotonic() < until_s:
            time.sleep(0.005)

    def _is_due(self, step: Step, stage: str) -> bool:
        with self._lock:
            return not self._is_dead and (step, stage) not in self.passed

    def _reach(self, step: Step, stage: str, context: grpc.ServicerContext, under_way: Any = None) -> None:
        with self._lock:
            if not self._is_dead and stage in STAGES[step.method] and (step, stage) not in self.passed:
                self.passed.append((step, stage))
                self._is_dead = self.happens(step, stage)
            is_dead = self._is_dead
        if is_dead:
            if under_way is not None:
                # The connection breaks when kepd dies.
                under_way.cancel()
            context.abort(grpc.StatusCode.UNAVAILABLE, "kepd is dead")

    # --- whom it is about --------------------------------------------------------------------------------------

    def _step(self, method: str, request: bytes) -> Step:
        if method == "CreateContainer":
            return Step(method, pb.CreateContainerRequest.FromString(request).config.metadata.name)
        if method == "ExecSync":
            return Step(method, " ".join(pb.ExecSyncRequest.FromString(request).cmd[-1:]))
        if method in ("StartContainer", "RemoveContainer"):
            message = getattr(pb, f"{method}Request").FromString(request)
            return Step(method, self._names.get(message.container_id, message.container_id))
        if method == "StopContainer":
            asked = pb.StopContainerRequest.FromString(request)
            name = self._names.get(asked.container_id, asked.container_id)
            uptime_s = float(Path("/proc/uptime").read_text().split()[0])
            self.stops.append(Stop(name, asked.timeout, uptime_s))
            return Step(method, name)
        return Step(method, "")

    def _note(self, method: str, step: Step, answer: bytes) -> None:
        if method == "CreateContainer":
            self._names[pb.CreateContainerResponse.FromString(answer).container_id] = step.subject


def metadata_of(context: grpc.ServicerContext) -> list[tuple[str, str | bytes]]:
    """What a client may send on; the rest belongs to the connection."""
    return [(key, value) for key, value in context.invocation_metadata() if not key.startswith(("user-agent", ":"))]
