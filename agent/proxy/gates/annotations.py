# SPDX-License-Identifier: Apache-2.0
"""What annotations `kepd.dev/…` ask of the proxy for one pod.

Owns: their grammar, in both forms (`KEY.NAME: VALUE` and `KEY: NAME=VALUE,NAME=VALUE`), and what is wrong with them.
A wrong one is told and has no effect; it never keeps a pod from running.
Never: applies them, or knows all containers of a pod: CRI names them one by one, so names are not checked.
Source: ORD, STO, SLP and JOB rules; KEP-753 and KEP-3960 are what they stand in for.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["JobEnd", "PodWishes", "Ready", "read_wishes"]

PREFIX = "kepd.dev/"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\Z")
DEFAULT_START_TIMEOUT_S = 60.0
HIGHEST_PORT = 65535
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ready:
    """When a sidecar counts as started. `kind` is started, exec, tcp or http."""

    kind: str = "started"
    command: tuple[str, ...] = ()
    port: int = 0
    path: str = ""


class JobEnd:
    """When sidecars of a finished pod are ended."""

    NEVER = ""
    SUCCESS = "success"
    ANY = "any"


STARTED = Ready()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """What was understood; `faults` are (annotation, text)."""

    sidecars: tuple[str, ...] = ()
    mains: tuple[str, ...] = ()
    ready: Mapping[str, Ready] = field(default_factory=dict)
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    is_strict: bool = False
    sleeps_s: Mapping[str, float] = field(default_factory=dict)
    job_end: str = JobEnd.NEVER
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the pod passes untouched (NOH-8)."""
        return not (self.sidecars or self.sleeps_s or self.job_end)

    def ready_of(self, name: str) -> Ready:
        """When this sidecar counts as started."""
        return self.ready.get(name, STARTED)


NOTHING = PodWishes()


class _Fault(ValueError):
    """A value that says nothing we understand."""


def read_wishes(annotations: Mapping[str, str]) -> PodWishes:
    """Everything that is understood."""
    if not any(key.startswith(PREFIX) for key in annotations):
        return NOTHING
    reader = _Reader(annotations)
    sidecars, mains = reader.names("sidecars"), reader.names("mains")
    both = set(sidecars) & set(mains)
    if both:
        reader.fault(
            "mains", f"{', '.join(sorted(both))}: a container is a sidecar or a main, not both; mains are ignored"
        )
        mains = ()
    job_end = reader.value("job-end", _one_of(JobEnd.SUCCESS, JobEnd.ANY), JobEnd.NEVER)
    if job_end and not (mains and sidecars):
        reader.fault("job-end", "needs kepd.dev/mains and kepd.dev/sidecars beside it")
        job_end = JobEnd.NEVER
    return PodWishes(
        sidecars=sidecars,
        mains=mains,
        ready=reader.by_container("ready", _ready),
        start_timeout_s=reader.value("start-timeout", _duration, DEFAULT_START_TIMEOUT_S),
        is_strict=reader.value("start-policy", _one_of("open", "strict"), "open") == "strict",
        sleeps_s=reader.by_container("prestop-sleep", _duration),
        job_end=job_end,
        faults=tuple(reader.faults),
    )


class _Reader:
    """Lives for one pod."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._notes = annotations
        self.faults: list[tuple[str, str]] = []

    def fault(self, key: str, text: str) -> None:
        self.faults.append((PREFIX + key, text))

    def value(self, key: str, parse: Callable[[str], Value], default: Value) -> Value:
        text = self._notes.get(PREFIX + key)
        if text is None:
            return default
        try:
            return parse(text)
        except _Fault as fault:
            self.fault(key, str(fault))
            return default

    def names(self, key: str) -> tuple[str, ...]:
        nobody: tuple[str, ...] = ()
        return self.value(key, _names, nobody)

    def by_container(self, key: str, parse: Callable[[str], Value]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        entries = list(self._entries(key))
        names = [name for _, name, _ in entries]
        for annotation, name, text in entries:
            try:
                if names.count(name) > 1:
                    raise _Fault(f"{name} is given more than once; use one form")
                found[_name(name)] = parse(text)
            except _Fault as fault:
                self.fault(annotation, str(fault))
        return found

    def _entries(self, key: str) -> Iterator[tuple[str, str, str]]:
        for part in _parts(self._notes.get(PREFIX + key, "")):
            name, _, text = part.partition("=")
            yield key, name, text
        prefix = f"{PREFIX}{key}."
        for note, text in self._notes.items():
            if note.startswith(prefix):
                yield note.removeprefix(PREFIX), note.removeprefix(prefix), text


def _parts(text: str) -> list[str]:
    """A list by commas, except those inside brackets: an exec has some."""
    parts, depth, start = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth <= 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [part for part in (*parts, text[start:].strip()) if part]


def _name(text: str) -> str:
    if not NAME.match(text):
        raise _Fault(f"{text!r} is no name of a container")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(_name(part.strip()) for part in text.split(",") if part.strip())
    if not names:
        raise _Fault("names no container; right is a list such as proxy,logger")
    if len(set(names)) < len(names):
        raise _Fault(f"{text!r} names a container twice")
    return names


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise _Fault(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return parse


def _duration(text: str) -> float:
    found = DURATION.match(text)
    if not text or found is None:
        raise _Fault(f"{text!r} is no duration such as 5s, 1m30s or 500ms")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def _ready(text: str) -> Ready:
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
    raise _Fault(f'{text!r} is none of started, exec:["…"], tcp:PORT, http:PORT/path')


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= HIGHEST_PORT:
        raise _Fault(f"{text!r} is no port from 1 to {HIGHEST_PORT}")
    return int(text)


def _command(text: str) -> tuple[str, ...]:
    try:
        words = json.loads(text)
    except ValueError as error:
        raise _Fault(f"{text!r} is no JSON list of words") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise _Fault(f"{text!r} is no JSON list of words")
    return tuple(words)
