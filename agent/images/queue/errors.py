# SPDX-License-Identifier: Apache-2.0
"""Classifies a failed pull, words its reason and message as a kubelet does, and says what kepd does next about it.

What other people chose is cut out before a text is looked at: an image may be called `web:429`, and a registry may
answer with any sentence. Pauses, fallbacks and holds go by the one table of meanings; reasons and messages do not.
Never: changes the runtime's words, which lost their secrets on entry; classes are a field of their own.
Source of behaviour: kubernetes `pkg/kubelet/images/image_manager.go`, containerd's texts.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from http import HTTPStatus

import msgspec

from agent.model.images.pull import ErrorClass

CUT = "…"
# Whatever comes behind these words is the other end's, to the end of the text.
_SAID_BY_OTHERS = re.compile(r"(server message|x509|malformed [\w ]{1,80}|response body):.*", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)', re.DOTALL)
_NAMED = re.compile(
    r"\[(?:manifests|blobs) [^\]]{0,300}\]|(?<=\bmanifest )\S+(?= in\b)|(?<=\blookup )\S+|(?<=\bhost )\S+"
)
_WORD = re.compile(r"\S+")
_OF_GO = frozenset({"net/http", "i/o"})
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


def own_words(text: str) -> str:
    """What is left of a runtime's error without quotes, references, addresses, and what servers said."""
    text = _SAID_BY_OTHERS.sub(r"\1:", text)
    text = _NAMED.sub(CUT, _QUOTED.sub(CUT, text))
    return _WORD.sub(lambda found: _own_word(found[0]), text)


def _own_word(word: str) -> str:
    """References, addresses, paths and digests have a slash, an @, or a colon with something behind it."""
    inner = word.rstrip(":")
    if inner in _OF_GO or not any(sign in inner for sign in "/:@"):
        return word
    return CUT + word[len(inner) :]


class BackoffCurve(msgspec.Struct, frozen=True):
    """How pauses grow. `jitter` is the largest share that is added at random."""

    start_s: float = 10
    factor: float = 2
    cap_s: float = 300
    jitter: float = 0

    @property
    def memory_s(self) -> float:
        return 2 * self.cap_s


class Deed(StrEnum):
    """What is done: tried again after a pause of the pod, or after one that all pods with these credentials share,
    since it would fail for each alike; the registry is left alone; space is made, then the pod's pause."""

    PAUSE = "pause"
    SHARED_PAUSE = "shared pause"
    LEAVE_REGISTRY = "leave registry"
    MAKE_ROOM = "make room"


class Meaning(msgspec.Struct, frozen=True):
    """`is_outage`: the registry could not be asked, so what is on the node may do."""

    deed: Deed
    curve: BackoffCurve | None = None
    """How the pauses grow; None: as configured for all."""
    is_outage: bool = False


KUBELET_CURVE = BackoffCurve()


NETWORK_CURVE = BackoffCurve(start_s=2, jitter=0.2)


MEANINGS = {
    ErrorClass.AUTH: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.AUTH_PROVIDER: Meaning(Deed.PAUSE),
    ErrorClass.NOT_FOUND: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.NAME: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.PLATFORM: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.VERIFIER: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.RATE: Meaning(Deed.LEAVE_REGISTRY, is_outage=True),
    ErrorClass.NO_SPACE: Meaning(Deed.MAKE_ROOM),
    ErrorClass.NET: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.DNS: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.TLS: Meaning(Deed.PAUSE),
    ErrorClass.TIMEOUT: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.SERVER: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.CORRUPT: Meaning(Deed.PAUSE),
    ErrorClass.RUNTIME: Meaning(Deed.PAUSE),
    ErrorClass.CANCELLED: Meaning(Deed.PAUSE),
    ErrorClass.UNKNOWN: Meaning(Deed.PAUSE),
}


CURVES = {kind: meaning.curve for kind, meaning in MEANINGS.items() if meaning.curve is not None}


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
