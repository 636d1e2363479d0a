# SPDX-License-Identifier: Apache-2.0
"""Services by descriptor: which rpc runs which Python method, at which level, and what becomes of its errors.

Owns: the method table of the gRPC server. Bytes are decoded here, after the caller was checked, so that garbage is an
INVALID_ARGUMENT and never a traceback. An rpc `GetNode` is served by the method `get_node` of its implementation.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2

from agent.api.access import LEVEL_NAMES, AccessRule
from agent.api.call_quota import MIB, Shares, Turns, is_trusted
from agent.api.errors import (
    Absent,
    ApiError,
    FailureReason,
    ending,
    invalid,
    memory_short,
    refused,
    runtime_failed,
    runtime_unavailable,
    too_much,
    unread,
)
from agent.api.peer import CALLER, WORK, Peer
from agent.api.removed import INSTEAD
from agent.model.refused import Refused
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from agent.wire.kepd.v1 import access_pb2

log = structlog.get_logger(plane="api")

CODES = {code.value[0]: code for code in grpc.StatusCode}
DETAILS_KEY = "grpc-status-details-bin"
# Answers that their callers have not read yet; one of them is at most of a user's share.
ANSWERS_OF_USER, ANSWERS_OF_ALL = 16 * MIB, 64 * MIB
READS_OF_USER, READS_OF_ALL = 2, 4
# Streams that are open. A kepctl ui has eight.
STREAMS_OF_USER, STREAMS_OF_ALL = 32, 160
NO_UID = -1
# Methods whose answers grow with what the node has.
LARGE = ("List", "Diff", "Table")
# Streams that are one large answer in parts.
IN_PARTS = ("GetStatsSummary",)


class Context(Protocol):
    def peer(self) -> str: ...

    def set_trailing_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...

    def add_done_callback(self, callback: Callable[[object], None]) -> None: ...


UnaryMethod = Callable[[Message], Awaitable[Message]]
PartsMethod = Callable[[AsyncIterator[Message]], Awaitable[Message]]
StreamMethod = Callable[[Message], AsyncIterator[Message | bytes]]
Observer = Callable[[str, str], None]


def served_method(implementation: object, method: MethodDescriptor) -> Any:  # noqa: ANN401  # each kind has its own
    if isinstance(implementation, Absent):
        return implementation.stream if method.server_streaming else implementation.answer
    return getattr(implementation, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())


class MethodTable(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """All methods of all services. `peers` and the access rule are looked up per call, so that they may change."""

    def __init__(
        self,
        rule: Callable[[], AccessRule],
        peers: Callable[[], Mapping[str, Peer]],
        observe: Observer,
        is_short: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_short = is_short
        self._rule = rule
        self._peers = peers
        self._observe = observe
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._waiting: set[asyncio.Task[object] | None] = set()
        """Streams that wait for something to say."""
        self._is_ending = False
        self._answers = Shares(ANSWERS_OF_USER, ANSWERS_OF_ALL)
        self._reads = Turns(READS_OF_USER, READS_OF_ALL)
        self._streams = Shares(STREAMS_OF_USER, STREAMS_OF_ALL)

    def end_streams(self) -> None:
        """End all streams, with an error that asks their readers to reconnect. A stream in the middle of a write is
        not cancelled, because gRPC would then end it without any status; it ends itself after the write."""
        self._is_ending = True
        for stream in list(self._waiting):
            if stream is not None:
                stream.cancel()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = handler_call_details.method
        return self._handlers.get(path) or (self._removed(path) if path in INSTEAD else None)

    def _removed(self, path: str) -> grpc.RpcMethodHandler:
        """Says what has the place of a call, in whatever form it comes."""

        async def handle(_requests: object, context: Context) -> AsyncIterator[bytes]:
            text = f"{path} went with kepd 0.10; its place has kepd.v1.{INSTEAD[path]}"
            await self._refuse(path, ApiError(code_pb2.UNIMPLEMENTED, FailureReason.CALL_REMOVED, text), context)
            yield b""

        return grpc.stream_stream_rpc_method_handler(handle)

    def add(self, service: ServiceDescriptor, implementation: object) -> None:
        for method in service.methods:
            served = served_method(implementation, method)
            level = level_of(method)
            path = f"/{service.full_name}/{method.name}"
            if method.client_streaming:
                self._handlers[path] = grpc.stream_unary_rpc_method_handler(self._parts(path, level, method, served))
            elif method.server_streaming:
                self._handlers[path] = grpc.unary_stream_rpc_method_handler(self._stream(path, level, method, served))
            else:
                self._handlers[path] = grpc.unary_unary_rpc_method_handler(self._unary(path, level, method, served))

    def add_foreign(self, path: str, handler: grpc.RpcMethodHandler) -> None:
        """Serve a ready-made bidirectional stream (reflection) to whoever may read."""
        self._handlers[path] = handler._replace(stream_stream=self._admitted(path, handler.stream_stream))

    def _unary(
        self, path: str, level: int, method: MethodDescriptor, served: UnaryMethod
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        request_class = GetMessageClass(method.input_type)

        async def handle(raw: bytes, context: Context) -> bytes:
            return await self._answer(path, level, method, context, lambda: served(_decode(request_class, raw)))

        return handle

    def _parts(
        self, path: str, level: int, method: MethodDescriptor, served: PartsMethod
    ) -> Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]:
        """A request in several messages: none is read before its caller is known to have the right."""
        request_class = GetMessageClass(method.input_type)

        async def handle(parts: AsyncIterator[bytes], context: Context) -> bytes:
            requests = (_decode(request_class, raw) async for raw in parts)
            return await self._answer(path, level, method, context, lambda: served(requests))

        return handle

    async def _answer(
        self, path: str, level: int, method: MethodDescriptor, context: Context, serve: Callable[[], Awaitable[Message]]
    ) -> bytes:
        try:
            uid = self._admit(path, level, context)
            if method.name.startswith(LARGE) and self._is_short() and not is_trusted(uid):
                raise memory_short()
            async with AsyncExitStack() as turn:
                if level == access_pb2.LEVEL_READ:
                    await turn.enter_async_context(self._reads.turn(uid))
                answer = await serve()
                packed = answer.SerializeToString()
                self._hold(uid, len(packed), context)
            self._observe(path, "OK")
            return packed
        except Exception as error:  # noqa: BLE001  # a bug must not show its insides to callers
            await self._refuse(path, _answer_to(path, error), context)
        return b""

    def _stream(
        self, path: str, level: int, method: MethodDescriptor, served: StreamMethod
    ) -> Callable[[bytes, Context], AsyncIterator[bytes]]:
        request_class = GetMessageClass(method.input_type)

        async def handle(raw: bytes, context: Context) -> AsyncIterator[bytes]:
            task = asyncio.current_task()
            try:
                uid = self._admit(path, level, context)
                self._go_on()
                async with AsyncExitStack() as share:
                    share.enter_context(self._open_stream(uid))
                    if method.name in IN_PARTS:
                        await share.enter_async_context(self._reads.turn(uid))
                    self._waiting.add(task)
                    async for answer in served(_decode(request_class, raw)):
                        self._waiting.discard(task)
                        packed = answer if isinstance(answer, bytes) else answer.SerializeToString()
                        with self._held(uid, len(packed)):
                            yield packed
                        self._go_on()
                        self._waiting.add(task)
                self._observe(path, "OK")
            except asyncio.CancelledError:
                if not self._is_ending:
                    self._observe(path, "CANCELLED")
                    raise
                await self._refuse(path, ending(), context)
            except Exception as error:  # noqa: BLE001  # a bug must not show its insides to callers
                await self._refuse(path, _answer_to(path, error), context)
            finally:
                self._waiting.discard(task)

        return handle

    def _hold(self, uid: int, size: int, context: Context) -> None:
        """Until the caller has read the answer, or hung up."""
        if not self._answers.take(uid, size):
            raise unread(size)

        def give_back(_: object) -> None:
            self._answers.take(uid, -size)

        context.add_done_callback(give_back)

    @contextmanager
    def _open_stream(self, uid: int) -> Iterator[None]:
        if not self._streams.take(uid, 1):
            raise too_much(f"uid {uid} has {STREAMS_OF_USER} streams open, or all users together {STREAMS_OF_ALL}")
        try:
            yield
        finally:
            self._streams.take(uid, -1)

    @contextmanager
    def _held(self, uid: int, size: int) -> Iterator[None]:
        """While a stream writes: it goes on once the caller's window has room."""
        if not self._answers.take(uid, size):
            raise unread(size)
        try:
            yield
        finally:
            self._answers.take(uid, -size)

    def _go_on(self) -> None:
        if self._is_ending:
            raise ending()

    def _admitted(
        self, path: str, inner: Callable[[object, Context], AsyncIterator[Message]]
    ) -> Callable[[object, Context], AsyncIterator[Message]]:
        async def handle(request: object, context: Context) -> AsyncIterator[Message]:
            try:
                self._admit(path, access_pb2.LEVEL_READ, context)
            except ApiError as error:
                await self._refuse(path, error, context)
                return
            async for answer in inner(request, context):
                yield answer

        return handle

    def _admit(self, path: str, level: int, context: Context) -> int:
        """The uid of a caller who may. Raises ApiError."""
        peer = self._peers().get(context.peer())
        refusal = self._rule().check(path, level, peer)
        if level != access_pb2.LEVEL_READ and peer is not None:
            log.info(
                "api_call_refused" if refusal else "api_call_admitted",
                method=path,
                level_name=LEVEL_NAMES.get(level, "admin"),
                uid=peer.uid,
                pid=peer.pid,
                comm=peer.command,
                v=0,
            )
        if refusal is not None:
            raise refusal
        CALLER.set(peer)
        WORK.set(f"{'a caller' if peer is None else f'uid {peer.uid}'}, {path}")
        return NO_UID if peer is None else peer.uid

    async def _refuse(self, path: str, error: ApiError, context: Context) -> None:
        code = CODES.get(error.code, grpc.StatusCode.UNKNOWN)
        self._observe(path, code.name)
        context.set_trailing_metadata(((DETAILS_KEY, error.status().SerializeToString()),))
        await context.abort(code, error.text)


def _answer_to(path: str, error: Exception) -> ApiError:
    told = (ApiError, Refused, RuntimeCallFailed)
    while isinstance(error, ExceptionGroup) and (said := error.subgroup(told)) is not None:
        error = said.exceptions[0]
    if isinstance(error, Refused):
        return refused(error)
    if isinstance(error, Unavailable | DeadlineExceeded):
        return runtime_unavailable(error)
    if isinstance(error, RuntimeCallFailed):
        # Not by a fault of kepd: containerd, for instance, answers so while it begins.
        log.warning("api_call_refused_by_runtime", method=path, error=str(error))
        return runtime_failed(error)
    if isinstance(error, ApiError):
        return error
    log.error("api_call_failed", method=path, error=repr(error), exc_info=error)
    return ApiError(code_pb2.INTERNAL, FailureReason.INTERNAL, f"{path} failed; the daemon's log has the cause")


def level_of(method: MethodDescriptor) -> int:
    """The level that stands beside the rpc in its .proto file. Services of others (health) tell nothing secret."""
    if not method.containing_service.full_name.startswith("kepd."):
        return access_pb2.LEVEL_READ
    level: int = method.GetOptions().Extensions[access_pb2.level]  # type: ignore[index]  # generated without types
    return level


def _decode(request_class: type[Message], raw: bytes) -> Message:
    name = request_class.DESCRIPTOR.full_name
    try:
        request = request_class.FromString(raw)
    except DecodeError as error:
        raise invalid(FailureReason.MALFORMED_REQUEST, f"{len(raw)} bytes that are not a {name}") from error
    for field, value in request.ListFields():
        if isinstance(value, Timestamp | Duration):
            try:
                value.ToNanoseconds()
            except ValueError as error:
                text = f"{name}.{field.name}: {value.seconds} s and {value.nanos} ns are out of range"
                raise invalid(FailureReason.MALFORMED_REQUEST, text, [(field.name, text)]) from error
    return request
