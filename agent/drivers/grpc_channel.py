# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to local daemons, and their failures in the words of agent.model."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import grpc

from agent.model.runtime.error import (
    AlreadyExists,
    DeadlineExceeded,
    NotFound,
    NotImplementedByRuntime,
    RuntimeCallFailed,
    Unavailable,
)
from agent.model.text.outside_text import from_outside

Answer = TypeVar("Answer")
# Hears (method, code, seconds) of every call.
Observer = Callable[[str, str, float], None]

MAX_MESSAGE_BYTES = 16 << 20
MAX_METADATA_BYTES = 1 << 20

# After an outage the defaults of gRPC wait up to two minutes; a runtime that came back must be seen within seconds.
# `min` is also how long one attempt may take: a runtime on a busy node answers late, and is there all the same.
RECONNECT_MS = {"initial": 100, "min": 10_000, "max": 2000}

FAILURES: dict[grpc.StatusCode, type[RuntimeCallFailed]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByRuntime,
}


def open_channel(endpoint: str) -> grpc.aio.Channel:
    """A channel to a unix socket; it connects by itself when somebody listens there."""
    return grpc.aio.insecure_channel(
        endpoint,
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS["initial"]),
            ("grpc.min_reconnect_backoff_ms", RECONNECT_MS["min"]),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS["max"]),
            ("grpc.default_authority", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


def translated(method: str, error: grpc.aio.AioRpcError, secrets: Iterable[str] = ()) -> RuntimeCallFailed:
    """The failure with a text that may be kept and shown; `secrets` are those that the call carried."""
    kind = FAILURES.get(error.code(), RuntimeCallFailed)
    details = error.details() or error.code().name.lower()
    if kind is Unavailable and "connect failed" in details:
        # gRPC says everything three times; the last part is what the kernel said.
        details = details.rpartition("error: ")[2]
    return kind(method, from_outside(details, secrets), error.code().name)


async def observed(method: str, call: Awaitable[Answer], observe: Observer, *, secrets: Iterable[str] = ()) -> Answer:
    """Wait for the answer. Raises RuntimeCallFailed; `observe` hears how long it took in both cases."""
    began_s, code = time.monotonic(), "OK"
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        code = error.code().name
        # Without its cause, which has the text as it came.
        raise translated(method, error, secrets) from None
    except BaseException:
        code = "CANCELLED"
        raise
    finally:
        observe(method, code, time.monotonic() - began_s)
