# SPDX-License-Identifier: Apache-2.0
"""Classifies a failed pull, and words its reason and message as a kubelet does.

Never: changes the runtime's words, which lost their secrets on entry; classes are a field of their own.
Source of behaviour: kubernetes `pkg/kubelet/images/image_manager.go`, containerd's texts; IMG-B03, B04, B06, B08.
"""

import re
from collections.abc import Sequence

import msgspec

from agent.images.queue.meanings import MEANINGS, Deed
from agent.model.image_pull import ErrorClass

ERR_PULL = "ErrImagePull"
BACK_OFF = "ImagePullBackOff"
REGISTRY_UNAVAILABLE = "RegistryUnavailable"
SIGNATURE_FAILED = "SignatureValidationFailed"
SPECIAL = {
    REGISTRY_UNAVAILABLE: "image pull failed for {image} because the registry is unavailable{rest}",
    SIGNATURE_FAILED: "image pull failed for {image} because the signature validation failed{rest}",
}
GO_CODES = {"INVALID_ARGUMENT": "InvalidArgument", "CANCELLED": "Canceled"}
DEFAULT_HOLD_S = 60.0
RETRY_AFTER = re.compile(r"(?i)retry-after[\"':=\s]+(\d{1,6})")

# The first line that matches wins; texts name more than one thing, so the telling ones come first.
PATTERNS: tuple[tuple[ErrorClass, re.Pattern[str]], ...] = tuple(
    (kind, re.compile("|".join(texts), re.IGNORECASE))
    for kind, texts in (
        (ErrorClass.NO_SPACE, ["no space left on device", "disk quota exceeded"]),
        # A snapshotter is a program of this node; that it refuses connections says nothing of the registry.
        (ErrorClass.RUNTIME, ["extraction snapshot", "dial unix "]),
        (ErrorClass.VERIFIER, ["blocked pull", "^SignatureValidationFailed", r"signature \w+ failed"]),
        (ErrorClass.PLATFORM, ["no match for platform"]),
        (ErrorClass.CORRUPT, ["failed size validation", "unexpected commit (?:digest|size)", "wrong diff id"]),
        (ErrorClass.NAME, ["invalid reference format", "couldn't parse image name", "could not parse reference"]),
        (ErrorClass.RATE, [r"\b429\b", "too many requests", "toomanyrequests"]),
        (ErrorClass.AUTH, ["pull access denied", "insufficient_scope", "authorization failed", "no basic auth"]),
        (ErrorClass.AUTH, [r"\b40[13] (?:Unauthorized|Forbidden)", "authentication required", "unauthorized"]),
        (ErrorClass.DNS, ["no such host", "server misbehaving", "temporary failure in name resolution"]),
        (ErrorClass.NET, ["TLS handshake timeout"]),
        (ErrorClass.TLS, ["x509:", "tls: ", "server gave HTTP response to HTTPS client"]),
        (
            ErrorClass.SERVER,
            [r"\b5\d\d (?:internal|bad|service|gateway)", r"status\S*:? 5\d\d", "^RegistryUnavailable"],
        ),
        (ErrorClass.TIMEOUT, ["^no progress for", "^slower than", "^not done within"]),
        (ErrorClass.NET, ["connection refused", "connection reset", "i/o timeout", r"\bEOF\b", "broken pipe"]),
        (ErrorClass.NET, ["no route to host", "network is unreachable", r"stopped after \d+ redirects"]),
        (ErrorClass.NOT_FOUND, [r": not found\b", "manifest unknown", "name unknown", r"\b404 Not Found"]),
    )
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
    for kind, pattern in PATTERNS:
        if pattern.search(failure.details):
            return kind
    if failure.code in ("CANCELLED", "DEADLINE_EXCEEDED") or "context canceled" in failure.details:
        return ErrorClass.TIMEOUT  # the runtime gave up by itself
    if failure.code == "NOT_FOUND":
        return ErrorClass.NOT_FOUND
    return ErrorClass.RUNTIME if failure.code == "UNAVAILABLE" else ErrorClass.UNKNOWN


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
    """How long a registry that is asked too often wants to be left alone."""
    found = RETRY_AFTER.search(text)
    return float(found[1]) if found else DEFAULT_HOLD_S
