# SPDX-License-Identifier: Apache-2.0
"""One request for an image and its outcome, as other planes exchange them with the images plane."""

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec

from agent.model.images.credential import PullSecret
from agent.model.span import SpanRef

CRITICAL_PRIORITY = 2_000_000_000


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PullClass(StrEnum):
    """Who wants it, in order of importance."""

    CRITICAL = "critical"
    POD = "pod"
    PREFETCH = "prefetch"


class ErrorClass(StrEnum):
    AUTH = "auth"
    AUTH_PROVIDER = "auth-provider"
    NOT_FOUND = "notfound"
    NAME = "name"
    PLATFORM = "platform"
    VERIFIER = "verifier"
    RATE = "rate"
    NO_SPACE = "nospace"
    NET = "net"
    DNS = "dns"
    TLS = "tls"
    TIMEOUT = "timeout"
    SERVER = "5xx"
    CORRUPT = "corrupt"
    RUNTIME = "runtime"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class PullResult(StrEnum):
    """How a request ended; also the label of a metric."""

    PULLED = "pulled"
    REVALIDATED = "revalidated"
    PRESENT = "present"
    JOINED = "joined"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class PodIdentity(msgspec.Struct, frozen=True):
    """Whose pod. All empty: nobody's, such as a pull by hand."""

    uid: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else ""


NO_POD = PodIdentity()


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container (or image volume, or line of a list) that needs an image."""

    image: str
    policy: PullPolicy
    pod: PodIdentity = NO_POD
    container: str = ""
    priority: int = 0
    is_prefetch: bool = False
    handler: str = ""
    secrets: tuple[PullSecret, ...] = ()
    missing_secrets: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    is_content_only: bool = False
    """Fetch what it is made of and do not unpack it: nothing can run from it yet."""
    span: SpanRef | None = None
    """What it is part of, where a trace of that is kept."""


class ListedImage(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    is_pinned: bool = False
    handler: str = ""
    is_content_only: bool = False
    """Fetched and not unpacked, until it is needed."""


class PullPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a pull: queue, resolve, layer or unpack. Wall time; `digest` and `size_bytes` are of a layer."""

    name: str
    begin_s: float
    end_s: float
    digest: str = ""
    size_bytes: int = 0


class PullOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. `reason` and `message` are what a container status shows when there is no image."""

    result: PullResult
    image: str
    image_id: str = ""
    size_bytes: int = 0
    reason: str = ""
    message: str = ""
    error_class: ErrorClass | None = None
    waited_s: float = 0.0
    active_s: float = 0.0
    retry_in_s: float | None = None
    notes: tuple[str, ...] = msgspec.field(default=())
    """Warnings that did not stop it, such as a secret that could not be read."""
    phases: tuple[PullPhase, ...] = ()
    """As far as they were seen."""

    @property
    def is_ok(self) -> bool:
        return bool(self.image_id)


class PullGivenUp(Exception):
    """The queue does not want this pull any more; the text says why."""


class PullsAway(Exception):
    """There is no queue now."""


class CallerPullEnd(msgspec.Struct, frozen=True):
    """How a pull ended that somebody else made: the image it gave, or the runtime's words."""

    image_id: str = ""
    error: str = ""


CallerPull = Callable[[], Awaitable[CallerPullEnd]]
