# SPDX-License-Identifier: Apache-2.0
"""The grammar of `kepd.dev/` annotations of pods, for every plane that reads them.

    KEY: VALUE                      of the whole pod
    KEY: NAME=VALUE, NAME=VALUE     of containers, in one list
    KEY.NAME: VALUE                 of one container

White space around a name or a value does not count, and a comma between brackets belongs to its value. A container
that is given twice, in one form or in both, gets none of its values.

Owns: the forms, durations, and the list of what is wrong. A value that cannot be used is left out and noted; it costs
its own annotation alone. Never: knows a key; planes do. Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

PREFIX = "kepd.dev/"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\Z", re.ASCII)
LONGEST_S = 366 * 24 * 3600.0
MOST_FAULTS = 20
LONGEST_TEXT = 400
Value = TypeVar("Value")


class AnnotationFault(ValueError):
    """A value that cannot be used; the text says why."""


class AnnotationReader:
    """Reads the annotations of one pod. `containers` are those it has; None where they are not known."""

    def __init__(self, annotations: Mapping[str, str], containers: Sequence[str] | None = None) -> None:
        self._notes = annotations
        self._containers = containers
        self.faults: list[tuple[str, str]] = []

    def fault(self, key: str, text: str) -> None:
        """Note what is wrong with an annotation. Each becomes an event, so a pod has no more than a few."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append((PREFIX + key, _clipped(text)))

    def value(self, key: str, parse: Callable[[str], Value], default: Value) -> Value:
        text = self._notes.get(PREFIX + key)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as fault:
            self.fault(key, _said(fault))
            return default

    def by_container(self, key: str, parse: Callable[[str, str], Value], *, has_list: bool = True) -> dict[str, Value]:
        """Of containers, from either form. `parse` gets name and value; without `has_list` values are lists."""
        found: dict[str, Value] = {}
        entries = [*(self._listed(key) if has_list else ()), *self._single(key)]
        given = Counter(name for _, name, _ in entries)
        for annotation, name, text in entries:
            try:
                if given[name] > 1:
                    raise AnnotationFault(f"{name!r} is given more than once; expected one form, and each name once")
                found[self.container(name)] = parse(name, text)
            except ValueError as fault:
                self.fault(annotation, _said(fault))
        return found

    def _listed(self, key: str) -> Iterator[tuple[str, str, str]]:
        for part in parts_of(self._notes.get(PREFIX + key, "")):
            name, _, text = part.partition("=")
            yield key, name.strip(), text.strip()

    def _single(self, key: str) -> Iterator[tuple[str, str, str]]:
        prefix = f"{PREFIX}{key}."
        for note, text in self._notes.items():
            if note.startswith(prefix):
                yield note.removeprefix(PREFIX), note.removeprefix(prefix), text.strip()

    def container(self, name: str) -> str:
        """The name of a container that there is, or may be. Raises AnnotationFault."""
        if self._containers is not None and name not in self._containers:
            raise AnnotationFault(f"there is no container {name!r}; expected one of {', '.join(self._containers)}")
        if not NAME.match(name):
            raise AnnotationFault(f"{name!r} is no name of a container")
        return name


def _said(fault: ValueError) -> str:
    """A reader that fails otherwise than it should still costs one annotation and not the pods beside it."""
    return str(fault) if isinstance(fault, AnnotationFault) else f"cannot be read: {fault}"


def _clipped(text: str) -> str:
    """Both ends of a text that a long value makes longer than people read."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]} … {text[-half:]}"


def parts_of(text: str) -> tuple[str, ...]:
    """A list by commas, except those between brackets: a command has some."""
    parts, depth, start = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth <= 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return tuple(part for part in (*parts, text[start:].strip()) if part)


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise AnnotationFault(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return parse


def parse_duration(text: str) -> float:
    """Seconds. Raises AnnotationFault."""
    found = DURATION.match(text)
    if not text or found is None:
        raise AnnotationFault(f"{text!r} is not a duration such as 5s, 1m30s or 500ms")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    total_s = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    if total_s > LONGEST_S:
        raise AnnotationFault(f"{text!r} is longer than a year; expected at most {LONGEST_S / 3600:.0f}h")
    return total_s
