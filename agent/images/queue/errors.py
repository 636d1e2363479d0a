# SPDX-License-Identifier: Apache-2.0
"""Classifies a failed pull, and words its reason and message as a kubelet does.

Never: changes the runtime's words, which lost their secrets on entry; classes are a field of their own.
Source of behaviour: kubernetes `pkg/kubelet/images/image_manager.go`, containerd's texts.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from agent.images.queue.foreign_text import own_words
from agent.images.queue.meanings import MEANINGS, Deed
from agent.model.images.pull import ErrorClass

ERR_PULL = "ErrImagePull"
BACK_OFF = "ImagePullBackOff"
REGISTRY_UNAVAILABLE = "RegistryUnavailable"
SIGNATURE_FAILED = "SignatureValidationFailed"
SPECIAL = {
    REGISTRY_UNAVAILABLE: "image pull failed for {image} because the registry is unavailable{rest}",
    SIGNATURE_FAILED: "image pull failed for {image} because the signature validation failed{rest}",
}
GO_CODES = {"INVALID_ARGUMENT": "InvalidArgument", "CANCELLED": "Canceled"}
DEFAULT_HOLD_S, LONGEST_HOLD_S = 60.0, 3600.0
RETRY_AFTER = re.compile(r"(?i)\bretry-after: (\d{1,6})\b")
_PHRASES = "|".join(sorted({re.escape(status.phrase) for status in HTTPStatus}))
# The last one of a text is the cause of the others.
STATUS = re.compile(rf"\bstatus\b[^:,;]{{0,60}}:? (\d{{3}})\b|\b(\d{{3}}) (?:{_PHRASES})\b", re.IGNORECASE)
OF_STATUS = {401: ErrorClass.AUTH, 403: ErrorClass.AUTH, 404: ErrorClass.NOT_FOUND, 429: ErrorClass.RATE}
OF_CODE = {
    "NOT_FOUND": ErrorClass.NOT_FOUND, "UNAUTHENTICATED": ErrorClass.AUTH, "PERMISSION_DENIED": ErrorClass.AUTH,
    "CANCELLED": ErrorClass.TIMEOUT, "DEADLINE_EXCEEDED": ErrorClass.TIMEOUT, "UNAVAILABLE": ErrorClass.RUNTIME,
}  # fmt: skip


def _patterns(*rows: tuple[ErrorClass, Sequence[str]]) -> tuple[tuple[ErrorClass, re.Pattern[str]], ...]:
    return tuple((kind, re.compile("|".join(texts), re.IGNORECASE)) for kind, texts in rows)


# What the runtime says of the node and of the image, where the code is one for several things: the first that matches.
OF_NODE = _patterns(
    (ErrorClass.VERIFIER, ["blocked pull", "^SignatureValidationFailed", r"signature \w+ failed"]),
    (ErrorClass.NO_SPACE, ["no space left on device", "disk quota exceeded"]),
    # A snapshotter is a program of this node; that it refuses connections says nothing of the registry.
    (ErrorClass.RUNTIME, ["extraction snapshot", "dial unix "]),
    (ErrorClass.PLATFORM, ["no match for platform"]),
    (ErrorClass.CORRUPT, ["failed size validation", "unexpected commit (?:digest|size)", "wrong diff id"]),
    (ErrorClass.NAME, ["invalid reference format", "couldn't parse image name", "could not parse reference"]),
)
# What has neither a code nor a status: the registry was not reached, or the runtime tells it in words alone.
OF_WORDS = _patterns(
    (ErrorClass.AUTH, ["pull access denied", "insufficient_scope", "authorization failed", "no basic auth"]),
    (ErrorClass.AUTH, ["authentication required", "unauthorized"]),
    (ErrorClass.RATE, ["too many requests", "toomanyrequests"]),
    (ErrorClass.DNS, ["no such host", "server misbehaving", "temporary failure in name resolution"]),
    (ErrorClass.NET, ["TLS handshake timeout"]),
    (ErrorClass.TLS, ["x509:", "tls: ", "server gave HTTP response to HTTPS client"]),
    (ErrorClass.SERVER, ["^RegistryUnavailable"]),
    (ErrorClass.TIMEOUT, ["^no progress for", "^slower than", "^not done within"]),
    (ErrorClass.NET, ["connection refused", "connection reset", "i/o timeout", r"\bEOF\b", "broken pipe"]),
    (ErrorClass.NET, ["no route to host", "network is unreachable", r"stopped after \d+ redirects"]),
    (ErrorClass.NOT_FOUND, [r"\bnot found\b", "manifest unknown", "name unknown"]),
    (ErrorClass.TIMEOUT, ["context canceled"]),
)


class AttemptFailure(msgspec.Struct, frozen=True):
    """One attempt that failed, in the runtime's words. `code` is the gRPC code's name, such as `NOT_FOUND`."""

    details: str
    code: str = "UNKNOWN"

    def __str__(self) -> str:
        """As a kubelet prints it: the code Unknown says nothing and is left out."""
        if self.code == "UNKNOWN":
            return self.details
        name = GO_CODES.get(self.code) or "".join(word.capitalize() for word in self.code.split("_"))
        return f"rpc error: code = {name} desc = {self.details}"


class PullFailure(msgspec.Struct, frozen=True):
    """Why a pull failed. `text` is the kubelet's E, `message` what the container status shows."""

    error_class: ErrorClass
    reason: str
    text: str
    message: str
    hold_s: float | None = None


def classify(failure: AttemptFailure) -> ErrorClass:
    """By the call's code and the registry's status, and by words only where neither is there: a text has names that
    anybody may have chosen, which are cut out before it is looked at."""
    words = own_words(failure.details)
    of_node = _first(OF_NODE, words)
    if of_node is not None or failure.code in OF_CODE:
        return of_node or OF_CODE[failure.code]
    statuses = [int(one or other) for one, other in STATUS.findall(words)]
    if statuses and statuses[-1] >= HTTPStatus.BAD_REQUEST:
        is_broken = statuses[-1] >= HTTPStatus.INTERNAL_SERVER_ERROR
        return OF_STATUS.get(statuses[-1], ErrorClass.SERVER if is_broken else ErrorClass.UNKNOWN)
    return _first(OF_WORDS, words) or ErrorClass.UNKNOWN


def _first(patterns: Sequence[tuple[ErrorClass, re.Pattern[str]]], words: str) -> ErrorClass | None:
    return next((kind for kind, pattern in patterns if pattern.search(words)), None)


def joined(failures: Sequence[AttemptFailure]) -> str:
    """Several attempts as one text: duplicates merged, one as it is, more in brackets."""
    texts = list(dict.fromkeys(map(str, failures)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def failure_of(image: str, failures: Sequence[AttemptFailure]) -> PullFailure:
    """What the failed attempts of one pull come to. The last one decides the class: it was the best guess left."""
    text = joined(failures)
    error_class = classify(failures[-1])
    hold_s = None
    if MEANINGS[error_class].deed is Deed.LEAVE_REGISTRY:
        hold_s = _retry_after_s(failures[-1].details)
    for reason, wording in SPECIAL.items():
        if text.startswith(reason):
            rest = text.removeprefix(reason)
            return PullFailure(error_class, reason, text, wording.format(image=image, rest=rest), hold_s)
    return PullFailure(error_class, ERR_PULL, text, text, hold_s)


def _retry_after_s(text: str) -> float:
    """How long a registry that is asked too often wants to be left alone, within what one may ask for."""
    found = RETRY_AFTER.search(own_words(text))
    return min(float(found[1]), LONGEST_HOLD_S) if found else DEFAULT_HOLD_S
