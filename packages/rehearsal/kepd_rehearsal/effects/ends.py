# SPDX-License-Identifier: Apache-2.0
"""How pods end by their specs: when the signal reaches each container, when the kill comes, what cannot be in time.

The planner of `kepctl plan stop` decides, twice, in the kubelet's profile, as a dump is of a cluster of kubelets. Once
all is as quick as can be: programs end at their signal, exec and HTTP hooks take no time. Once nothing is: programs
ignore the signal and such hooks never return. A real end lies between the two. Pods of one template are one row.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import structs
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.order import Member as Ordered
from agent.pods.plan.order import waits_for_end
from agent.pods.plan.stop_state import SLEEP, ContainerEnding, HookPhase, Trigger, begin_stop
from agent.pods.view.forecast import Assumption, Happening, HookAssumption, forecast_stop
from kepd_rehearsal.plan.cluster import Member, Object, part
from kepd_rehearsal.plan.reading import listed_in

TCP = "tcpSocket"
HOOKS = (SLEEP, "exec", "httpGet", TCP)
# kube-proxy gathers changes for up to its minSyncPeriod, by default this long, before it writes them.
PROXY_SYNC_S = 1.0
KUBELET_LEAST_S = 1
MOST_SECONDS = 1 << 31
# Of a pod; planning takes the square of their number.
MOST_PROGRAMS = 100


class Program(msgspec.Struct, frozen=True):
    """What in a container's spec decides its end. `sleep_s` is of a native sleep; no spec says how long other hooks
    take."""

    name: str
    is_sidecar: bool = False
    hook: str = ""
    sleep_s: int | None = None
    signal: str = "TERM"


class ContainerEnd(Program, frozen=True, kw_only=True):
    """Seconds after the delete: its signal comes between the first two, the kill at the latest at the third. `left_s`
    is what it has between signal and kill if all before it use all they may."""

    signal_first_s: float
    signal_last_s: float
    killed_s: float
    left_s: float
    is_cut_off: bool
    """Its hook, even where all is quick."""


class PodsEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that end alike. `faults` keep them from ending in time whatever their programs do; `remarks` do not."""

    what: str
    pods: tuple[str, ...]
    grace_s: int
    killed_s: float
    containers: tuple[ContainerEnd, ...] = ()
    services: tuple[str, ...] = ()
    late_s: float = 0.0
    """How long proxies may still send new connections after the first signal."""
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class _Alike(msgspec.Struct, frozen=True):
    """What pods share that end alike."""

    what: str
    grace_s: int
    programs: tuple[Program, ...]
    services: tuple[str, ...]


def ends_of(members: Iterable[Member], services: Mapping[str, Sequence[str]]) -> tuple[PodsEnd, ...]:
    """`services` has for each pod those that send it requests now."""
    groups: dict[_Alike, list[str]] = {}
    for one in members:
        programs = programs_of(part(one.made, "spec"))
        alike = _Alike(_what(one), one.grace_s, programs, tuple(services.get(one.key, ())))
        groups.setdefault(alike, []).append(one.key)
    found = (_end(alike, tuple(pods)) for alike, pods in groups.items())
    return tuple(sorted(found, key=lambda one: (not one.faults, -one.killed_s, one.what)))


def _what(one: Member) -> str:
    return one.key if one.workload is None else f"{one.workload[0]} {one.workload[1]}/{one.workload[2]}"


def programs_of(spec: Object) -> tuple[Program, ...]:
    """Those that run to the end of the pod, in the order of the spec; other init containers have ended."""
    sidecars = [one for one in listed_in(spec, "initContainers") if one.get("restartPolicy") == "Always"]
    mains = listed_in(spec, "containers")
    return (*(_program(one, is_sidecar=True) for one in sidecars), *map(_program, mains))


def _program(made: Object, *, is_sidecar: bool = False) -> Program:
    lifecycle = part(made, "lifecycle")
    stop = part(lifecycle, "preStop")
    hook = next((name for name in HOOKS if isinstance(stop.get(name), Mapping)), "")
    slept_s = _seconds(part(stop, SLEEP).get("seconds")) if hook == SLEEP else None
    signal = str(lifecycle.get("stopSignal") or "TERM").removeprefix("SIG")
    return Program(str(made.get("name", "")), is_sidecar, hook, slept_s, signal)


def _seconds(value: object) -> int:
    return min(max(value, 0), MOST_SECONDS) if isinstance(value, int) else 0


def _end(alike: _Alike, pods: tuple[str, ...]) -> PodsEnd:
    programs = alike.programs[:MOST_PROGRAMS]
    # Many templates differ by names alone, and one plan serves all of them.
    shape = tuple(replace(one, name=str(place), signal="") for place, one in enumerate(programs))
    planned = zip(timeline(shape, min(alike.grace_s, MOST_SECONDS)), programs, strict=True)
    containers = tuple(replace(end, name=one.name, signal=one.signal) for end, one in planned)
    signals = [one.signal_first_s for one in containers if not one.is_sidecar]
    late_s = max(PROXY_SYNC_S - min(signals), 0.0) if alike.services and signals else 0.0
    return PodsEnd(
        what=alike.what,
        pods=pods,
        grace_s=alike.grace_s,
        killed_s=max((one.killed_s for one in containers), default=0.0),
        containers=containers,
        services=alike.services,
        late_s=late_s,
        faults=tuple(_faults(containers, alike.grace_s)),
        remarks=tuple(_remarks(containers, late_s, len(alike.programs) - MOST_PROGRAMS)),
    )


@lru_cache(maxsize=1024)
def timeline(programs: tuple[Program, ...], grace_s: int) -> tuple[ContainerEnd, ...]:
    """No two programs may have one name."""
    quick, slow = (_forecast(programs, grace_s, is_quick=is_quick) for is_quick in (True, False))
    first, last, killed = (_times(quick, "stop_signal"), _times(slow, "stop_signal"), _times(slow, "sigkill"))
    cut_off = {one.container for one in quick if one.result == HookPhase.TIMEOUT}
    return tuple(
        ContainerEnd(
            **structs.asdict(one),
            signal_first_s=first[one.name],
            signal_last_s=last[one.name],
            killed_s=killed[one.name],
            left_s=killed[one.name] - last[one.name],
            is_cut_off=one.name in cut_off,
        )
        for one in programs
    )


def _forecast(programs: Sequence[Program], grace_s: int, *, is_quick: bool) -> tuple[Happening, ...]:
    kinds = {one.name: ContainerKind.SIDECAR if one.is_sidecar else ContainerKind.MAIN for one in programs}
    waits = waits_for_end([Ordered(name=name, kind=kind) for name, kind in kinds.items()])
    endings = [
        ContainerEnding(name=one.name, kind=kinds[one.name], hook=one.hook, waits_for=waits[one.name])
        for one in programs
    ]
    exits_s = 0.0 if is_quick else None
    assumed = {one.name: Assumption(hook=_hook(one, is_quick=is_quick), exit_after_s=exits_s) for one in programs}
    return forecast_stop(begin_stop(Trigger.DELETE, endings, float(grace_s), 0.0, copies_kubelet=True), assumed)


def _hook(one: Program, *, is_quick: bool) -> HookAssumption | None:
    if one.sleep_s is not None:
        return HookAssumption(seconds=float(one.sleep_s), is_native=True)
    fails = one.hook == TCP
    return HookAssumption(seconds=0.0 if is_quick or fails else None, succeeds=not fails) if one.hook else None


def _times(happenings: Iterable[Happening], event: str) -> dict[str, float]:
    return {one.container: one.at_s for one in happenings if one.event == event}


def _faults(containers: Iterable[ContainerEnd], grace_s: int) -> Iterable[str]:
    if grace_s < KUBELET_LEAST_S:
        yield f"grace {grace_s}: a kubelet makes {KUBELET_LEAST_S} s of it"
    for one in containers:
        if one.sleep_s is not None and one.is_cut_off:
            yield f"preStop of {one.name} sleeps {one.sleep_s} s and is cut off when the grace is over"
        elif one.signal_first_s >= max(grace_s, KUBELET_LEAST_S):
            why = f"preStop of {one.name} sleeps {one.sleep_s} s" if one.sleep_s else "others take it all"
            yield f"{why}: nothing of the grace is left for {one.name} when {one.signal} comes"


def _remarks(containers: Iterable[ContainerEnd], late_s: float, left_out: int) -> Iterable[str]:
    for one in containers:
        if one.hook == TCP:
            yield f"no kubelet carries out the hook of {one.name}, tcpSocket"
        elif one.hook and one.sleep_s is None:
            yield f"preStop of {one.name} may take any time, {one.hook}"
        if one.is_sidecar and one.signal_first_s < one.signal_last_s:
            yield f"{one.name} has {one.left_s:.0f} s if the others use up their grace"
        if one.signal != "TERM":
            yield f"{one.name} gets {one.signal} in the place of TERM"
    if late_s:
        yield f"proxies may send new connections for up to {late_s:.0f} s after the signal"
    if left_out > 0:
        yield f"{left_out} more containers are not looked at"
