# SPDX-License-Identifier: Apache-2.0
"""What annotations `kepd.dev/…` ask of a pod: order, graces, hooks, restarts.

Owns: their grammar, in both forms (`KEY.NAME: VALUE` and `KEY: NAME=VALUE,NAME=VALUE`). A wrong one is ignored and
told; it never keeps a pod from running.
Never: applies them. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.pods.plan.order import Dependency, Member, cycle

__all__ = ["PodWishes", "read_wishes"]

PREFIX = "kepd.dev/"
DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\Z")
CONDITIONS = ("started", "ready", "completed")
PER_CONTAINER = ("grace", "depends-on", "poststart-timeout", "prestop-timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """What was understood; `faults` are (annotation, text)."""

    needs: dict[str, tuple[Dependency, ...]] = field(default_factory=dict)
    graces_s: dict[str, float] = field(default_factory=dict)
    post_start_limits_s: dict[str, float] = field(default_factory=dict)
    pre_stop_limits_s: dict[str, float] = field(default_factory=dict)
    reserve_s: float = 0.0
    is_hook_at_turn: bool = False
    keystone: str = ""
    most_restarts: int | None = None
    restart_window_s: float = 0.0
    faults: tuple[tuple[str, str], ...] = ()


class _Fault(ValueError):
    """A value that says nothing we understand."""


def read_wishes(annotations: Mapping[str, str], members: Sequence[Member]) -> PodWishes:
    """Everything that is understood."""
    names = [member.name for member in members]
    reader = _Reader(annotations, names)
    graces_s = reader.durations("grace")
    needs = reader.needs()
    most_restarts, window_s = reader.restarts()
    linked = [Member(name=one.name, kind=one.kind, needs=needs.get(one.name, ())) for one in members]
    if ring := cycle(linked):
        reader.faults.append((f"{PREFIX}depends-on", f"goes in a circle: {' → '.join(ring)}"))
        needs = {}
    return PodWishes(
        needs=needs,
        graces_s=graces_s,
        post_start_limits_s=reader.durations("poststart-timeout"),
        pre_stop_limits_s=reader.durations("prestop-timeout"),
        reserve_s=reader.duration("sidecar-reserve"),
        is_hook_at_turn=reader.text("prestop-at-turn", ("true", "false")) == "true",
        keystone=reader.text("keystone", names),
        most_restarts=most_restarts,
        restart_window_s=window_s,
        faults=tuple(reader.faults),
    )


def parse_duration(text: str) -> float:
    """Seconds; raises ValueError."""
    found = DURATION.match(text)
    if not text or found is None:
        raise _Fault(f"{text!r} is no duration such as 5s, 1m30s or 500ms")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


class _Reader:
    """Lives for one pod."""

    def __init__(self, annotations: Mapping[str, str], names: Sequence[str]) -> None:
        self._notes = annotations
        self._names = names
        self.faults: list[tuple[str, str]] = []

    def text(self, key: str, allowed: Sequence[str]) -> str:
        value = self._notes.get(PREFIX + key, "")
        if value and value not in allowed:
            self.faults.append((PREFIX + key, f"{value!r} is none of {', '.join(allowed)}"))
            return ""
        return value

    def duration(self, key: str) -> float:
        value = self._notes.get(PREFIX + key)
        return 0.0 if value is None else self._parsed(PREFIX + key, value) or 0.0

    def durations(self, key: str) -> dict[str, float]:
        """By container, from either form."""
        found = {}
        for annotation, name, value in self._by_container(key):
            seconds = self._parsed(annotation, value)
            if seconds is not None:
                found[name] = seconds
        return found

    def _parsed(self, annotation: str, value: str) -> float | None:
        try:
            return parse_duration(value)
        except _Fault as fault:
            self.faults.append((annotation, str(fault)))
            return None

    def _by_container(self, key: str) -> Iterator[tuple[str, str, str]]:
        listed = self._notes.get(PREFIX + key, "")
        pairs = [(PREFIX + key, *part.partition("=")[::2]) for part in listed.split(",") if part]
        prefix = f"{PREFIX}{key}."
        single = [
            (note, note.removeprefix(prefix), value) for note, value in self._notes.items() if note.startswith(prefix)
        ]
        twice = {name for _, name, _ in pairs} & {name for _, name, _ in single}
        for annotation, name, value in (*pairs, *single):
            if name not in self._names:
                self.faults.append((annotation, f"there is no container {name!r}"))
            elif name in twice:
                self.faults.append((annotation, f"{name!r} is given in both forms"))
            else:
                yield annotation, name, value

    def needs(self) -> dict[str, tuple[Dependency, ...]]:
        """depends-on has lists as values, so it has the form with the name alone."""
        found = {}
        prefix = f"{PREFIX}depends-on."
        for note, value in self._notes.items():
            if not note.startswith(prefix):
                continue
            name = note.removeprefix(prefix)
            if name not in self._names:
                self.faults.append((note, f"there is no container {name!r}"))
                continue
            needs = [self._dependency(note, name, part.strip()) for part in value.split(",") if part.strip()]
            found[name] = tuple(one for one in needs if one is not None)
        return found

    def _dependency(self, note: str, name: str, part: str) -> Dependency | None:
        other, _, condition = part.partition("=")
        condition = condition or "started"
        if other not in self._names or other == name:
            self.faults.append((note, f"there is no other container {other!r}"))
        elif condition not in CONDITIONS:
            self.faults.append((note, f"{condition!r} is none of {', '.join(CONDITIONS)}"))
        else:
            return Dependency(other, condition)
        return None

    def restarts(self) -> tuple[int | None, float]:
        """How many, and within how many seconds; 0 is for good (BEY-09)."""
        note = f"{PREFIX}max-restarts"
        value = self._notes.get(note)
        if value is None:
            return None, 0.0
        number, slash, window = value.partition("/")
        if not number.isdecimal():
            self.faults.append((note, f"{value!r} is no number of restarts, such as 5 or 5/10m"))
            return None, 0.0
        window_s = self._parsed(note, window) if slash else 0.0
        if window_s is None or (slash and not window_s):
            if window_s is not None:
                self.faults.append((note, f"{value!r} has a window without time; right is for example 5/10m"))
            return None, 0.0
        return int(number), window_s
