# SPDX-License-Identifier: Apache-2.0
"""Calls from kepctl to the daemon. A failed call becomes one line that says what would help, and an exit code."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message

from agent.cli.quick.call import may_be_quick, quick_call
from agent.cli.session import TOO_LATE, CommandFailed, Session
from agent.model.exit_codes import CONFLICT, DEADLINE, FAILURE, NOT_FOUND, NOT_PERMITTED, UNREACHABLE, USAGE

if TYPE_CHECKING:
    import grpc

Answer = TypeVar("Answer", bound=Message)
MAX_MESSAGE_BYTES = 16 << 20
DETAILS_KEY = "grpc-status-details-bin"
LONGEST_PATH_BYTES = 107
LONGEST_RECONNECT_MS = 2000

EXIT_CODES = {
    "INVALID_ARGUMENT": USAGE,
    "NOT_FOUND": NOT_FOUND,
    "UNAVAILABLE": UNREACHABLE,
    "PERMISSION_DENIED": NOT_PERMITTED,
    "FAILED_PRECONDITION": CONFLICT,
    "ABORTED": CONFLICT,
    "ALREADY_EXISTS": CONFLICT,
    "DEADLINE_EXCEEDED": DEADLINE,
}

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.default_authority", "localhost"),
    # Who waits for a daemon that comes back does not wait for gRPC's own two minutes.
    ("grpc.min_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
)


class Client:
    """A connection to one daemon; `other` is one to the next on this node, for planes that the first does not run."""

    def __init__(self, path: str, timeout_s: float, other: "Client | None" = None, namespace: str = "") -> None:
        """`namespace`: that of names which have none; empty = it was not said."""
        self._channel: grpc.Channel | None = None
        self._is_closed = False
        self._making = Lock()
        self.other = other
        self.namespace = namespace
        self.path = path
        self._timeout_s = timeout_s

    @property
    def channel(self) -> "grpc.Channel":
        """Made when a call needs it: gRPC's import takes longer than most calls."""
        import grpc

        with self._making:
            if self._channel is None:
                self._channel = grpc.insecure_channel(f"unix:{self.path}", options=OPTIONS)
            if self._is_closed:
                self._channel.close()
            return self._channel

    def close(self) -> None:
        """From any thread; calls under way end."""
        with self._making:
            self._is_closed = True
            if self._channel is not None:
                self._channel.close()

    def call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """One call, such as `kepd.v1.NodeService/GetNode`; of a list all pages, unless a size of pages is asked for."""
        found = result = self._once(method, request, answer)
        while token := _next_page(request, result):
            request = type(request).FromString(request.SerializeToString())
            request.options.page_token = token  # type: ignore[attr-defined]  # those with pages have it
            result = self._once(method, request, answer)
            found.MergeFrom(result)
            found.meta.CopyFrom(result.meta)  # type: ignore[attr-defined]
        return found

    def _once(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        if self._channel is None and may_be_quick(method):
            try:
                found = quick_call(self.path, method, request.SerializeToString(), self._timeout_s, MAX_MESSAGE_BYTES)
            except TimeoutError as error:
                raise CommandFailed(TOO_LATE, DEADLINE) from error
            if found is not None:
                return answer.FromString(found)
        import grpc

        invoke = self.channel.unary_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            result: Answer = invoke(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if self.other is not None and _is_plane_elsewhere(error):
                return self.other.call(method, request, answer)
            raise failure(error, self.path) from error
        return result

    def send(self, method: str, parts: Sequence[Message], answer: type[Answer]) -> Answer:
        """One call whose request is larger than a message may be."""
        import grpc

        invoke = self.channel.stream_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            result: Answer = invoke(iter(parts), timeout=self._timeout_s)
        except grpc.RpcError as error:
            if self.other is not None and _is_plane_elsewhere(error):
                return self.other.send(method, parts, answer)
            raise failure(error, self.path) from error
        return result

    def follow(self, method: str, request: Message, answer: type[Answer]) -> Iterator[Answer]:
        import grpc

        invoke = self.channel.unary_stream(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            yield from invoke(request)
        except grpc.RpcError as error:
            if self.other is None or not _is_plane_elsewhere(error):
                raise failure(error, self.path) from error
            yield from self.other.follow(method, request, answer)


@contextmanager
def connected(session: Session) -> Iterator[Client]:
    client: Client | None = None
    with ExitStack() as channels:
        for path in reversed(session.sockets()):
            if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
                text = f"{path} is longer than the {LONGEST_PATH_BYTES} bytes a socket path may have"
                raise CommandFailed(text, USAGE)
            client = Client(path, session.timeout_s, client, session.namespace)
            channels.callback(client.close)
        if client is not None:
            yield client


def ask(session: Session, method: str, request: Message, answer: type[Answer]) -> Answer:
    with connected(session) as daemon:
        return daemon.call(method, request, answer)


def _next_page(request: Message, answer: Message) -> str:
    if "options" not in request.DESCRIPTOR.fields_by_name or request.options.page_size:  # type: ignore[attr-defined]
        return ""
    token: str = answer.meta.next_page_token  # type: ignore[attr-defined]
    return token


def _is_plane_elsewhere(error: "grpc.RpcError") -> bool:
    """Whether a daemon does not run the plane that was asked for; another of the node may."""
    return error.code().name == "FAILED_PRECONDITION" and _reason(error) == "PLANE_DISABLED"


def _reason(error: "grpc.RpcError") -> str:
    """As kepd gives it with each of its errors; empty if the error is not kepd's own."""
    from google.rpc import error_details_pb2

    info = error_details_pb2.ErrorInfo()
    return next((info.reason for packed in _details(error) if packed.Unpack(info)), "")


def failure(error: "grpc.RpcError", path: str) -> CommandFailed:
    code = error.code()
    if code.name == "UNAVAILABLE" and not _reason(error):
        return CommandFailed(_unreachable(path), UNREACHABLE)
    violations = _violations(error)
    text = error.details() or code.name.lower()
    if code.name == "DEADLINE_EXCEEDED":
        text = TOO_LATE
    if len(violations) > 1:
        text = "\n".join([text.partition(": ")[0], *(f"  {violation}" for violation in violations)])
    return CommandFailed(text, EXIT_CODES.get(code.name, FAILURE), _reason(error))


def _violations(error: "grpc.RpcError") -> list[str]:
    from google.rpc import error_details_pb2

    wrong = error_details_pb2.BadRequest()
    for packed in _details(error):
        if packed.Unpack(wrong):
            return [violation.description for violation in wrong.field_violations]
    return []


def _details(error: "grpc.RpcError") -> Sequence[Packed]:
    from google.rpc import status_pb2

    details = dict(error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
    return list(status_pb2.Status.FromString(details).details)


def _unreachable(path: str) -> str:
    """Why nobody answers at a socket, as far as this process can see."""
    try:
        entry = Path(path).stat()
    except FileNotFoundError:
        return f"no daemon at {path}: there is no such socket; start kepd, or name its socket with --endpoint"
    except PermissionError:
        return f"no access to {path}: this user may not enter its directory; {_join(Path(path).parent)}"
    if not stat.S_ISSOCK(entry.st_mode):
        return f"{path} is not a socket; name the socket of kepd with --endpoint"
    if not os.access(path, os.R_OK | os.W_OK):
        mode = stat.filemode(entry.st_mode)
        return f"no access to {path} ({mode}); {_join(Path(path))}"
    return f"{path} exists but nothing answers there; is kepd running?"


def _join(closed: Path) -> str:
    """What opens it to this user."""
    from grp import getgrgid

    try:
        gid = closed.stat().st_gid
    except OSError:
        return "use root"
    try:
        group = getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return f"join group {group} and log in anew, or use root" if gid else "use root"
