# SPDX-License-Identifier: Apache-2.0
"""Errors of the API: a gRPC code, a reason that programs can rely on, and a sentence for people."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NoReturn

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from agent.config.document import SWITCHES
from agent.config.packages import is_installed, not_installed
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed

DOMAIN = "kepd.dev"


class FailureReason(StrEnum):
    """Why a call failed. Values never change their meaning."""

    BUDGET_SPENT = "BUDGET_SPENT"
    CALL_REMOVED = "CALL_REMOVED"
    CHANGED_MEANWHILE = "CHANGED_MEANWHILE"
    DISK_FULL = "DISK_FULL"
    OBJECT_EXISTS = "OBJECT_EXISTS"
    BAD_CONFIGURATION = "BAD_CONFIGURATION"
    BAD_FILTER = "BAD_FILTER"
    BAD_PAGE_TOKEN = "BAD_PAGE_TOKEN"  # noqa: S105  # a reason, not a secret
    CONNECTIONS_KEPT = "CONNECTIONS_KEPT"
    ENDING = "ENDING"
    INTERNAL = "INTERNAL"
    LISTS_AWAITED = "LISTS_AWAITED"
    BAD_REFERENCE = "BAD_REFERENCE"
    BAD_MANIFEST = "BAD_MANIFEST"
    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    NEEDS_RESTART = "NEEDS_RESTART"
    NOT_PERMITTED = "NOT_PERMITTED"
    NOT_WATCHED = "NOT_WATCHED"
    NODE_LOGS_OFF = "NODE_LOGS_OFF"
    NO_CHECKPOINT = "NO_CHECKPOINT"
    NO_JOURNAL = "NO_JOURNAL"
    NO_SUCH_IMAGE = "NO_SUCH_IMAGE"
    NO_SUCH_LOG = "NO_SUCH_LOG"
    NO_SUCH_OBJECT = "NO_SUCH_OBJECT"
    NO_SUCH_PLANE = "NO_SUCH_PLANE"
    NO_SUCH_POD = "NO_SUCH_POD"
    POD_NOT_FIT = "POD_NOT_FIT"
    NO_SUCH_PULL = "NO_SUCH_PULL"
    NO_SUCH_SERVICE = "NO_SUCH_SERVICE"
    OTHER_SOURCE = "OTHER_SOURCE"
    RUNTIME_FAILED = "RUNTIME_FAILED"
    RUNTIME_UNAVAILABLE = "RUNTIME_UNAVAILABLE"
    PLANE_DISABLED = "PLANE_DISABLED"
    MEMORY_SHORT = "MEMORY_SHORT"
    TOO_MANY_LOG_READERS = "TOO_MANY_LOG_READERS"
    SHARE_USED = "SHARE_USED"
    UNREAD_ANSWERS = "UNREAD_ANSWERS"
    WATCHER_TOO_SLOW = "WATCHER_TOO_SLOW"


REFUSALS = {
    "budget": (code_pb2.RESOURCE_EXHAUSTED, FailureReason.BUDGET_SPENT),
    "conflict": (code_pb2.ABORTED, FailureReason.CHANGED_MEANWHILE),
    "disk_full": (code_pb2.RESOURCE_EXHAUSTED, FailureReason.DISK_FULL),
    "exists": (code_pb2.FAILED_PRECONDITION, FailureReason.OBJECT_EXISTS),
    "not_found": (code_pb2.NOT_FOUND, FailureReason.NO_SUCH_POD),
    "precondition": (code_pb2.FAILED_PRECONDITION, FailureReason.POD_NOT_FIT),
    "tracking": (code_pb2.FAILED_PRECONDITION, FailureReason.CONNECTIONS_KEPT),
    "awaits": (code_pb2.UNAVAILABLE, FailureReason.LISTS_AWAITED),
    "invalid": (code_pb2.INVALID_ARGUMENT, FailureReason.BAD_MANIFEST),
    "unavailable": (code_pb2.INTERNAL, FailureReason.INTERNAL),
    "log_request": (code_pb2.INVALID_ARGUMENT, FailureReason.MALFORMED_REQUEST),
    "log_closed": (code_pb2.PERMISSION_DENIED, FailureReason.NOT_PERMITTED),
    "log_readers": (code_pb2.RESOURCE_EXHAUSTED, FailureReason.TOO_MANY_LOG_READERS),
    "logs_off": (code_pb2.PERMISSION_DENIED, FailureReason.NODE_LOGS_OFF),
    "no_archive": (code_pb2.NOT_FOUND, FailureReason.NO_CHECKPOINT),
    "no_checkpoint": (code_pb2.FAILED_PRECONDITION, FailureReason.NO_CHECKPOINT),
    "no_room": (code_pb2.RESOURCE_EXHAUSTED, FailureReason.NO_CHECKPOINT),
    "no_journal": (code_pb2.FAILED_PRECONDITION, FailureReason.NO_JOURNAL),
    "no_object": (code_pb2.NOT_FOUND, FailureReason.NO_SUCH_OBJECT),
    "selection": (code_pb2.INVALID_ARGUMENT, FailureReason.MALFORMED_REQUEST),
    "no_log": (code_pb2.NOT_FOUND, FailureReason.NO_SUCH_LOG),
}


class ApiError(Exception):
    def __init__(
        self,
        code: int,
        reason: FailureReason,
        text: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[tuple[str, str]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason
        self.text = text
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s

    def status(self) -> status_pb2.Status:
        status = status_pb2.Status(code=self.code, message=self.text)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        status.details.add().Pack(info)
        if self.violations:
            fields = [
                error_details_pb2.BadRequest.FieldViolation(field=field, description=text)
                for field, text in self.violations
            ]
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=fields))
        if self.retry_after_s is not None:
            delay = Duration()
            delay.FromMilliseconds(int(self.retry_after_s * 1000))
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return status


def not_permitted(method: str, needed: str, who: str, remedy: str) -> ApiError:
    return ApiError(
        code_pb2.PERMISSION_DENIED,
        FailureReason.NOT_PERMITTED,
        f"{method} needs level {needed}; {who} does not have it; {remedy}",
        metadata={"method": method, "level": needed},
    )


def not_running(plane: str) -> ApiError:
    key = SWITCHES.get(plane, (f"{plane}.enabled",))[0]
    remedy = f"set {key} to true and restart kepd" if is_installed(plane) else f"it is {not_installed(plane)}"
    return ApiError(
        code_pb2.FAILED_PRECONDITION,
        FailureReason.PLANE_DISABLED,
        f"the {plane} plane does not run here; {remedy}",
        metadata={"plane": plane},
    )


class Absent(msgspec.Struct, frozen=True):
    """In the place of the service of a plane that does not run: each method answers that."""

    plane: str

    async def answer(self, _request: object) -> NoReturn:
        raise not_running(self.plane)

    def stream(self, _request: object) -> NoReturn:
        raise not_running(self.plane)


def refused(error: Refused) -> ApiError:
    code, reason = REFUSALS[error.kind]
    violations = [(one.path, str(one)) for one in error.findings]
    return ApiError(code, reason, str(error), violations=violations)


def runtime_unavailable(error: RuntimeCallFailed) -> ApiError:
    text = f"the container runtime does not answer ({error}); kepd goes on trying, see `kepctl status`"
    return ApiError(code_pb2.UNAVAILABLE, FailureReason.RUNTIME_UNAVAILABLE, text, retry_after_s=1.0)


def runtime_failed(error: RuntimeCallFailed) -> ApiError:
    text = f"the container runtime refused a call ({error}); its own log has the cause"
    return ApiError(code_pb2.INTERNAL, FailureReason.RUNTIME_FAILED, text)


def ending() -> ApiError:
    return ApiError(code_pb2.UNAVAILABLE, FailureReason.ENDING, "kepd is ending", retry_after_s=1.0)


def unread(size: int) -> ApiError:
    return ApiError(
        code_pb2.RESOURCE_EXHAUSTED,
        FailureReason.UNREAD_ANSWERS,
        f"an answer of {size} bytes has no room beside those that callers have not read yet; read yours first",
        retry_after_s=1.0,
    )


def too_much(what: str, retry_after_s: float = 1.0) -> ApiError:
    """More than a caller's share."""
    return ApiError(code_pb2.RESOURCE_EXHAUSTED, FailureReason.SHARE_USED, what, retry_after_s=max(retry_after_s, 1.0))


def memory_short() -> ApiError:
    text = "kepd is short of memory, so only root gets lists; try again later, and see `kepctl doctor`"
    return ApiError(code_pb2.RESOURCE_EXHAUSTED, FailureReason.MEMORY_SHORT, text, retry_after_s=10.0)


def not_found(reason: FailureReason, text: str) -> ApiError:
    return ApiError(code_pb2.NOT_FOUND, reason, text)


def invalid(reason: FailureReason, text: str, violations: Sequence[tuple[str, str]] = ()) -> ApiError:
    """The request is wrong and will stay wrong."""
    return ApiError(code_pb2.INVALID_ARGUMENT, reason, text, violations=violations)
