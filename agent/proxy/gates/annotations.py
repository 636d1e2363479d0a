# SPDX-License-Identifier: Apache-2.0
"""What annotations `kepd.dev/…` ask of the proxy for one pod.

A value that cannot be used is noted and has no effect. CRI names containers one by one, so names are not checked.
Source: KEP-753 and KEP-3960 are what they stand in for.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from agent.model.annotation_list import PREFIX, AnnotationFault, AnnotationReader, one_of, parse_duration, parts_of

DEFAULT_START_TIMEOUT_S = 60.0
HIGHEST_PORT = 65535
PORT = re.compile(r"[0-9]{1,5}\Z")
# When sidecars of a finished pod are ended.
NEVER, ON_SUCCESS, AT_ANY_END = "", "success", "any"
NO_NAMES: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True):
    """When a sidecar counts as started. `kind` is started, exec, tcp or http."""

    kind: str = "started"
    command: tuple[str, ...] = ()
    port: int = 0
    path: str = ""


STARTED = Ready()


class ProxyAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """What was understood; `faults` are (annotation, text)."""

    sidecars: tuple[str, ...] = ()
    mains: tuple[str, ...] = ()
    ready: Mapping[str, Ready] = msgspec.field(default_factory=dict)
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    is_strict: bool = False
    sleeps_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    job_end: str = NEVER
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the pod passes untouched."""
        return not (self.sidecars or self.sleeps_s or self.job_end)

    def ready_of(self, name: str) -> Ready:
        return self.ready.get(name, STARTED)


NOTHING = ProxyAnnotations()


def read_annotations(annotations: Mapping[str, str]) -> ProxyAnnotations:
    if not any(key.startswith(PREFIX) for key in annotations):
        return NOTHING
    reader = AnnotationReader(annotations)
    sidecars, mains = (reader.value(key, lambda text: _names(reader, text), NO_NAMES) for key in ("sidecars", "mains"))
    both = set(sidecars) & set(mains)
    if both:
        reader.fault(
            "mains", f"{', '.join(sorted(both))}: a container is a sidecar or a main, not both; mains are ignored"
        )
        mains = ()
    job_end = reader.value("job-end", one_of(ON_SUCCESS, AT_ANY_END), NEVER)
    if job_end and not (mains and sidecars):
        reader.fault("job-end", "also needs kepd.dev/mains and kepd.dev/sidecars")
        job_end = NEVER
    return ProxyAnnotations(
        sidecars=sidecars,
        mains=mains,
        ready=reader.by_container("ready", _ready),
        start_timeout_s=reader.value("start-timeout", parse_duration, DEFAULT_START_TIMEOUT_S),
        is_strict=reader.value("start-policy", one_of("open", "strict"), "open") == "strict",
        sleeps_s=reader.by_container("prestop-sleep", lambda _name, text: parse_duration(text)),
        job_end=job_end,
        faults=tuple(reader.faults),
    )


def _names(reader: AnnotationReader, text: str) -> tuple[str, ...]:
    names = tuple(map(reader.container, parts_of(text)))
    if not names:
        raise AnnotationFault("names no container; expected a list such as proxy,logger")
    if len(set(names)) < len(names):
        raise AnnotationFault(f"{text!r} names a container twice")
    return names


def _ready(_name: str, text: str) -> Ready:
    kind, _, rest = text.partition(":")
    match kind:
        case "started" if not rest:
            return STARTED
        case "tcp":
            return Ready("tcp", port=_port(rest))
        case "http":
            port, slash, path = rest.partition("/")
            return Ready("http", port=_port(port), path=slash + path or "/")
        case "exec":
            return Ready("exec", command=_command(rest))
    raise AnnotationFault(f'{text!r} is none of started, exec:["…"], tcp:PORT, http:PORT/path')


def _port(text: str) -> int:
    # A number of any length would take long to read, or raise.
    if PORT.match(text) is None or not 0 < int(text) <= HIGHEST_PORT:
        raise AnnotationFault(f"{text!r} is not a port from 1 to {HIGHEST_PORT}")
    return int(text)


def _command(text: str) -> tuple[str, ...]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnnotationFault(f"{text!r} is no JSON list of words") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise AnnotationFault(f"{text!r} is no JSON list of words")
    return tuple(words)
