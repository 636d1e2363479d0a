# SPDX-License-Identifier: Apache-2.0
"""A relay before a runtime that is slow: calls reach it late, its answers and news come late, twice or not at all.

A list that comes late shows what was when it was asked for. What a kepd that died had asked for is carried out.
"""

import heapq
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.node.stepping import SteppingRelay, metadata_of

# Seconds at most until a call is passed on, and from the runtime's answer to kepd's.
CALLS = {
    "StopContainer": (1.0, 2.5),
    "ListContainers": (0.3, 1.5),
    "ListPodSandbox": (0.3, 0.8),
    "StartContainer": (1.0, 0.8),
    "CreateContainer": (0.3, 0.5),
    "RemoveContainer": (0.3, 0.3),
    "ExecSync": (0.3, 0.5),
    "RunPodSandbox": (0.2, 0.5),
}
LATE_S = 3.0


class News:
    """What a stream has told, by when it is passed on."""

    def __init__(self) -> None:
        self._told: list[tuple[float, int, bytes]] = []
        self._bell = threading.Condition()
        self._count = 0
        self.error: grpc.RpcError | None = None
        self._is_over = False

    def put(self, answer: bytes, after_s: float) -> None:
        with self._bell:
            self._count += 1
            heapq.heappush(self._told, (time.monotonic() + after_s, self._count, answer))
            self._bell.notify()

    def end(self, error: grpc.RpcError | None) -> None:
        with self._bell:
            self.error, self._is_over = error, True
            self._bell.notify()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._bell:
                while not self._is_over and (not self._told or self._told[0][0] > time.monotonic()):
                    self._bell.wait(self._told[0][0] - time.monotonic() if self._told else None)
                if self._is_over:
                    return
                _, _, answer = heapq.heappop(self._told)
            yield answer


class SlowRelay(SteppingRelay):
    """How slow is a matter of chance: half of what is called or told is in time."""

    def __init__(self, folder: Path, upstream: str, chance: random.Random) -> None:
        super().__init__(folder, upstream, lambda _name: False)
        self._chance = chance

    def _pause(self, most_s: float) -> None:
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0, most_s))

    def _call(self, path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        before_s, after_s = CALLS.get(path.rpartition("/")[2], (0.0, 0.0))
        self._pause(before_s)
        answer = super()._call(path, request, context)
        self._pause(after_s)
        return answer

    def _stream(self, path: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        answers = self._upstream.unary_stream(path)(request, metadata=metadata_of(context))
        context.add_callback(answers.cancel)
        news = News()

        def read() -> None:
            try:
                for answer in answers:
                    for after_s in self._chance.choice(((0.0,), (0.0,), (self._late_s(),), (0.0, self._late_s()), ())):
                        news.put(answer, after_s)
            except grpc.RpcError as error:
                news.end(error)
            else:
                news.end(None)

        threading.Thread(target=read, daemon=True).start()
        yield from news
        if news.error is not None:
            context.abort(news.error.code(), news.error.details() or "")

    def _late_s(self) -> float:
        return self._chance.uniform(0.1, LATE_S)
