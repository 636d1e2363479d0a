# SPDX-License-Identifier: Apache-2.0
"""How talking to an API server fails, in terms the reflector and planes can act on.

Each is one line: what was asked, where, what came back, what would be right.
Never: carries a token, a key, or anything an exec plugin printed. Text of a server is taken only out of its `Status`
object, never from a page some proxy put in its place.
"""

from collections.abc import Mapping

import msgspec

LONGEST_MESSAGE = 400
LONGEST_RETRY_AFTER_S = 300.0


class KubeError(Exception):
    """Any failure on the way to an answer that can be used."""


class AccessInvalid(KubeError):
    """A kubeconfig, service account or key file that cannot work as written; names file and field."""


class CredentialsFailed(KubeError):
    """A token file, key file or exec plugin gives nothing usable now; a later try may succeed."""


class Unreachable(KubeError):
    """No connection, or one that broke in the middle of an answer."""


class Unanswered(KubeError):
    """Connected, but the answer did not begin in time."""


class StreamSilent(KubeError):
    """An answer that began and then stopped: a connection that only looks alive."""


class AnswerTooBig(KubeError):
    """A body or a line above its bound; it was not kept."""


class AnswerUnreadable(KubeError):
    """An answer that is not what the API promises."""


class ApiRefused(KubeError):
    """The server answered with an error status. `code` is the HTTP one, `reason` the server's word for it."""

    def __init__(self, text: str, code: int, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class Unauthenticated(ApiRefused):
    """401: the server does not know who asks."""


class Denied(ApiRefused):
    """403: the server knows who asks and says no."""


class Missing(ApiRefused):
    """404: no such object, or no such kind of object on this server."""


class NotAcceptable(ApiRefused):
    """406: the server cannot answer in the form that was asked for."""


class Conflict(ApiRefused):
    """409: the object exists, or changed since it was read."""


class Expired(ApiRefused):
    """410: the resource version or page is older than what the server keeps."""


class Unprocessable(ApiRefused):
    """400 or 422: the server does not understand the request, for instance an option it does not have."""


class Throttled(ApiRefused):
    """429: too many requests."""


class VersionAhead(ApiRefused):
    """504 with ResourceVersionTooLarge: this server does not know that resource version yet, or never will."""


class ServerFailed(ApiRefused):
    """5xx, or a status that makes no sense here, such as a redirect."""


class Cause(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, gc=False):
    """The API's error object, as body of an answer or object of an ERROR event."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


BY_CODE: Mapping[int, type[ApiRefused]] = {
    400: Unprocessable,
    401: Unauthenticated,
    403: Denied,
    404: Missing,
    405: Unprocessable,
    406: NotAcceptable,
    409: Conflict,
    410: Expired,
    422: Unprocessable,
    429: Throttled,
}


def refusal(what: str, code: int, status: Status | None, retry_after: str = "") -> ApiRefused:
    """The error for an answer with `code`. `what` is verb, resource and server; `status` its body if it had one."""
    said = f": {shown_message(status.message)}" if status and status.message else ""
    return _kind_of(code, status)(
        f"{what}: {code}{said}", code, status.reason if status else "", _retry_after_s(status, retry_after)
    )


def _kind_of(code: int, status: Status | None) -> type[ApiRefused]:
    """The class of error for a status code; a cause of the body may make it more exact."""
    causes = status.details.causes if status and status.details else None
    if any(cause.reason == "ResourceVersionTooLarge" for cause in causes or ()):
        return VersionAhead
    if status and status.reason in ("Expired", "Gone"):
        return Expired
    return BY_CODE.get(code, ServerFailed)


def shown_message(text: str) -> str:
    """A server's message on one printable line of bounded length."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


def _retry_after_s(status: Status | None, header: str) -> float | None:
    if header.strip().isdecimal():
        return min(float(header), LONGEST_RETRY_AFTER_S)
    if status and status.details and status.details.retry_after_seconds > 0:
        return min(float(status.details.retry_after_seconds), LONGEST_RETRY_AFTER_S)
    return None
