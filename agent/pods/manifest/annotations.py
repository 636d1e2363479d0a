# SPDX-License-Identifier: Apache-2.0
"""Annotations `kepd.dev/…` of a pod: order, graces, hooks, restarts. An unusable value is noted and ignored."""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from agent.model.annotation_list import AnnotationFault, AnnotationReader, one_of, parse_duration, parts_of
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.pods.plan.order import Dependency, Member, cycle, cycle_text
from agent.pods.plan.scarcity.checkpoints import archive_of
from agent.pods.plan.stop_state import ContainerEnding
from agent.pods.runtime.qos import cpu_quota, effective_needs

Kinds = Mapping[str, ContainerKind]
NUMBER = re.compile(r"[0-9]{1,9}\Z")
CONDITIONS = ("started", "ready", "completed")
NO_LIMIT: tuple[int | None, float] = (None, 0.0)


class KepdAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """What was understood; `faults` are (annotation, text). With a `cycle` no container of it could ever start."""

    needs: dict[str, tuple[Dependency, ...]] = msgspec.field(default_factory=dict)
    graces_s: dict[str, float] = msgspec.field(default_factory=dict)
    post_start_limits_s: dict[str, float] = msgspec.field(default_factory=dict)
    pre_stop_limits_s: dict[str, float] = msgspec.field(default_factory=dict)
    reserve_s: float = 0.0
    is_hook_at_turn: bool = False
    keystone: str = ""
    most_restarts: int | None = None
    restart_window_s: float = 0.0
    bursts_us: dict[str, int] = msgspec.field(default_factory=dict)
    restores: dict[str, str] = msgspec.field(default_factory=dict)
    """Archives of checkpoints that containers begin from."""
    cycle: str = ""
    faults: tuple[tuple[str, str], ...] = ()

    def member(self, one: ContainerSpec) -> Member:
        return Member(name=one.name, kind=one.kind, needs=self.needs.get(one.name, ()))

    def ending(self, one: ContainerSpec, waits_for: frozenset[str], *, is_running: bool) -> ContainerEnding:
        """As its end begins."""
        hook = one.fields.pre_stop
        return ContainerEnding(
            name=one.name,
            kind=one.kind,
            hook=hook.type if hook is not None else "",
            is_hook_at_turn=self.is_hook_at_turn and one.kind is ContainerKind.SIDECAR,
            waits_for=waits_for,
            own_grace_s=self.graces_s.get(one.name),
            reserve_s=self.reserve_s if one.kind is ContainerKind.MAIN else 0.0,
            is_running=is_running,
        )


def annotations_of(pod: PodSpec, *, has_cpu_burst: bool = True) -> KepdAnnotations:
    limits = {one.name: effective_needs(one.fields.resources, pod.spec.resources).cpu_limit for one in pod.containers}
    members = [Member(name=one.name, kind=one.kind) for one in pod.containers]
    return read_annotations(pod.notes, members, limits if has_cpu_burst else None)


def read_annotations(
    annotations: Mapping[str, str], members: Sequence[Member], cpu_limits: Mapping[str, int] | None = None
) -> KepdAnnotations:
    """`cpu_limits` are in thousandths, by container, and None where the kernel has no bursts."""
    kinds = {member.name: member.kind for member in members}
    names = list(kinds)
    reader = AnnotationReader(annotations, names)
    # Its values are lists, so it has the form with the name alone.
    needs = reader.by_container("depends-on", _needs(kinds, reader), has_list=False)
    linked = [Member(name=one.name, kind=one.kind, needs=needs.get(one.name, ())) for one in members]
    circle = ""
    if ring := cycle(linked):
        circle = f"is a cycle: {cycle_text(linked, ring)}"
        reader.fault("depends-on", circle)
        needs = {}
    most_restarts, window_s = reader.value("max-restarts", _restarts, NO_LIMIT)
    return KepdAnnotations(
        needs=needs,
        graces_s=reader.by_container("grace", _seconds),
        post_start_limits_s=reader.by_container("poststart-timeout", _seconds),
        pre_stop_limits_s=reader.by_container("prestop-timeout", _seconds),
        reserve_s=reader.value("sidecar-reserve", parse_duration, 0.0),
        is_hook_at_turn=reader.value("prestop-at-turn", one_of("true", "false"), "false") == "true",
        keystone=reader.value("keystone", one_of(*names), ""),
        most_restarts=most_restarts,
        restart_window_s=window_s,
        bursts_us=reader.by_container("cpu-burst", _burst(cpu_limits)),
        restores=reader.by_container("restore", _checkpoint),
        cycle=circle,
        faults=tuple(reader.faults),
    )


def _seconds(_name: str, text: str) -> float:
    return parse_duration(text)


def _checkpoint(_name: str, text: str) -> str:
    """A name that kepd gives, so it leads nowhere else."""
    if archive_of(text, 0) is None:
        raise AnnotationFault(f"{text!r} is no name of a checkpoint; kepctl get checkpoints lists them")
    return text


def _burst(cpu_limits: Mapping[str, int] | None) -> Callable[[str, str], int]:
    """The kernel takes no burst above the quota."""

    def parse(name: str, text: str) -> int:
        if cpu_limits is None:
            raise AnnotationFault("has no effect: this kernel has no bursts; expected Linux 5.14 or newer")
        burst_us, quota_us = round(parse_duration(text) * 10**6), cpu_quota(cpu_limits.get(name, 0))
        if burst_us > quota_us:
            most = f"at most {quota_us / 1000:g}ms, its quota of 100ms" if quota_us else "a CPU limit, which it lacks"
            raise AnnotationFault(f"{text!r} is too much for {name!r}; expected {most}")
        return burst_us

    return parse


def _needs(kinds: Kinds, reader: AnnotationReader) -> Callable[[str, str], tuple[Dependency, ...]]:
    """One need that cannot be used costs itself alone."""

    def parse(name: str, text: str) -> tuple[Dependency, ...]:
        needs = []
        for part in parts_of(text):
            try:
                needs.append(_dependency(kinds, name, part))
            except AnnotationFault as fault:
                reader.fault(f"depends-on.{name}", str(fault))
        return tuple(needs)

    return parse


def _dependency(kinds: Kinds, name: str, text: str) -> Dependency:
    other, _, condition = (part.strip() for part in text.partition("="))
    condition = condition or CONDITIONS[0]
    if other not in kinds or other == name:
        raise AnnotationFault(f"there is no other container {other!r}")
    if condition == "completed" and kinds[other] is ContainerKind.SIDECAR:
        raise AnnotationFault(f"{other!r} is a sidecar, which never completes; expected started or ready")
    return Dependency(other, one_of(*CONDITIONS)(condition))


def _restarts(text: str) -> tuple[int | None, float]:
    """How many, and within how many seconds; 0 is for good."""
    number, slash, window = text.partition("/")
    if not NUMBER.match(number):
        raise AnnotationFault(f"{text!r} is not a number of restarts such as 5 or 5/10m")
    window_s = parse_duration(window) if slash else 0.0
    if slash and not window_s:
        raise AnnotationFault(f"{text!r} has a window without time; expected, for example, 5/10m")
    return int(number), window_s
