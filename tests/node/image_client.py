# SPDX-License-Identifier: Apache-2.0
"""A plain gRPC client of kepd's ImageService for tests: calls in threads, outcomes as messages."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from agent.wire.kepd.v1 import image_pb2, object_pb2

SERVICE = "/kepd.v1.ImageService/"


class Wish(threading.Thread):
    """One PullImage call; `outcomes` by image when it has ended."""

    def __init__(self, client: "ImageClient", request: image_pb2.PullImageRequest) -> None:
        super().__init__(daemon=True)
        self.outcomes: dict[str, image_pb2.PullOutcome] = {}
        self.states: dict[str, list[str]] = {}
        self.code: grpc.StatusCode | None = None
        self._stream = client.stream("PullImage", request, image_pb2.PullImageResponse)
        self.start()

    def run(self) -> None:
        try:
            for answer in self._stream:
                if answer.HasField("outcome"):
                    self.outcomes[answer.outcome.image] = answer.outcome
                if answer.HasField("pull"):
                    stages = self.states.setdefault(answer.pull.image, [])
                    if not stages or stages[-1] != answer.pull.stage:
                        stages.append(answer.pull.stage)
        except grpc.RpcError as error:
            self.code = error.code()

    def give_up(self) -> None:
        """End the call."""
        self._stream.cancel()

    def result(self, within_s: float = 30.0) -> dict[str, image_pb2.PullOutcome]:
        """All outcomes."""
        self.join(within_s)
        assert not self.is_alive(), f"no outcome within {within_s} s"
        assert self.code in (None, grpc.StatusCode.CANCELLED), self.code
        return self.outcomes


def serialized(message: Any) -> bytes:
    """As gRPC wants it."""
    return bytes(message.SerializeToString())


class ImageClient:
    """A channel."""

    def __init__(self, socket: Path) -> None:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)

    def close(self) -> None:
        """Ends calls in flight."""
        self._channel.close()

    def stream(self, method: str, request: Any, answer: Any) -> Any:
        """A stream."""
        return self._channel.unary_stream(
            SERVICE + method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=answer.FromString,
        )(request)

    def call(self, method: str, request: Any, answer: Any, within_s: float = 20.0) -> Any:
        """One call."""
        return self._channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=answer.FromString,
        )(request, timeout=within_s)

    def pull(self, *images: str, policy: str = "", priority: int = 0, detach: bool = False) -> Wish:
        """Ask for images."""
        return Wish(self, image_pb2.PullImageRequest(images=images, policy=policy, priority=priority, detach=detach))

    def pulls(self) -> list[SimpleNamespace]:
        """Pulls that are not over."""
        return [pull for pull in self._shown("pulls") if pull.stage not in ("done", "failed", "cancelled")]

    def images(self) -> dict[str, SimpleNamespace]:
        """Images by every name."""
        return {name: image for image in self._shown("images") for name in image.names}

    def watch(self, kind: str) -> Any:
        """A stream of its changes."""
        return self._channel.unary_stream(
            "/kepd.v1.ObjectService/Watch",
            request_serializer=object_pb2.WatchRequest.SerializeToString,
            response_deserializer=object_pb2.WatchResponse.FromString,
        )(object_pb2.WatchRequest(kind=kind))

    def _shown(self, kind: str) -> list[SimpleNamespace]:
        answer = self._channel.unary_unary(
            "/kepd.v1.ObjectService/List",
            request_serializer=object_pb2.ListRequest.SerializeToString,
            response_deserializer=object_pb2.ListResponse.FromString,
        )(object_pb2.ListRequest(kind=kind), timeout=20.0)
        made = (json.loads(one)["status"] for one in answer.objects)
        return [SimpleNamespace(**{_snake(name): value for name, value in one.items()}) for one in made]


def _snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()
