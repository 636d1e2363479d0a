# SPDX-License-Identifier: Apache-2.0
"""Answers that are a Status: what went wrong, in the words and numbers that clients of Kubernetes know."""

from collections.abc import Sequence
from typing import Any

from google.rpc import code_pb2

from agent.api.errors import ApiError, FailureReason

Object = dict[str, Any]
# By the code of a call: the HTTP status and the reason.
CODES: dict[int, tuple[int, str]] = {
    code_pb2.NOT_FOUND: (404, "NotFound"),
    code_pb2.INVALID_ARGUMENT: (400, "BadRequest"),
    code_pb2.PERMISSION_DENIED: (403, "Forbidden"),
    code_pb2.FAILED_PRECONDITION: (409, "Conflict"),
    code_pb2.RESOURCE_EXHAUSTED: (429, "TooManyRequests"),
    code_pb2.UNAVAILABLE: (503, "ServiceUnavailable"),
    code_pb2.OUT_OF_RANGE: (410, "Expired"),
}
REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
    507: "InsufficientStorage",
}  # fmt: skip


# Reasons that say more than the code of their call.
OWN_CODES = {
    FailureReason.CHANGED_MEANWHILE: (409, "Conflict"),
    FailureReason.OBJECT_EXISTS: (409, "AlreadyExists"),
    # A client of Kubernetes repeats a conflict at once, which no full disk is better for.
    FailureReason.DISK_FULL: (507, "InsufficientStorage"),
}
SPENT = "Cannot evict pod as it would violate the pod's disruption budget."


class Failure(Exception):
    """What is answered instead."""

    def __init__(self, code: int, text: str, reason: str = "", **details: Any) -> None:  # noqa: ANN401
        super().__init__(text)
        self.code = code
        self.text = text
        self.reason = reason or REASONS.get(code, "")
        self.details = {name: value for name, value in details.items() if value}

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.text,
            "reason": self.reason,
            **({"details": self.details} if self.details or self.code == 404 else {}),
            "code": self.code,
        }


def success(name: str, group: str, kind: str, uid: str = "") -> Object:
    details = {"name": name, "group": group, "kind": kind, "uid": uid}
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }  # fmt: skip


def failure_of(error: ApiError, name: str = "", kind: str = "") -> Failure:
    """Of a call that failed."""
    if error.reason is FailureReason.BAD_MANIFEST and error.code == code_pb2.INVALID_ARGUMENT:
        return invalid(error.text, error.violations, name, kind)
    if error.reason is FailureReason.BUDGET_SPENT:
        # The words that clients look for before they try again.
        causes = [{"reason": "DisruptionBudget", "message": error.text}]
        return Failure(429, SPENT, name=name, kind=kind, causes=causes)
    code, reason = OWN_CODES.get(error.reason) or CODES.get(error.code, (500, "InternalError"))
    after_s = int(error.retry_after_s or 0)
    return Failure(code, error.text, reason, name=name, kind=kind, retryAfterSeconds=after_s)


def invalid(text: str, violations: Sequence[tuple[str, str]], name: str = "", kind: str = "") -> Failure:
    causes = [{"reason": "FieldValueInvalid", "message": said, "field": field} for field, said in violations]
    return Failure(422, text, name=name, kind=kind, causes=causes)
